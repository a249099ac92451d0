# SPDX-License-Identifier: Apache-2.0
"""Random lives of a hot buffer, with the input that callers should not give among it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotkit.machine import Machine
from hotkit.new_rows import append
from hotkit.shape import BOUND, PlaneShape, Shape
from hotkit.world import World

# Rows of the models' formats: MLA bf16, V3.2 fp8, V4, V4.1, nvfp4, indexer keys.
FORMATS = (1152, 656, 584, 528, 352, 132)

SHAPES = {
    "plain": Shape(),
    "one-slot": Shape(slots=1, top_k=1, units_max=40),
    "all-slots": Shape(slots=64, top_k=64, units_max=600),
    "odd": Shape(slots=257, top_k=131, units_max=4000, planes=(PlaneShape(7),), page_units=5),
    "two-levels": Shape(units_max=1 << 20, planes=(PlaneShape(12),), page_units=64),
    "early": Shape(
        heads=2, units_max=1 << 20, planes=(PlaneShape(512), PlaneShape(132)), page_units=64
    ),
    "not-early": Shape(early=False, planes=(PlaneShape(1152),)),
    "heads": Shape(heads=3, planes=(PlaneShape(64), PlaneShape(64)), page_units=16),
    "planes": Shape(planes=(PlaneShape(584), PlaneShape(8), PlaneShape(132), PlaneShape(32))),
    "padded": Shape(planes=(PlaneShape(656, 704, 768),)),
    "blocks": Shape(slots=64, top_k=32, block=16, planes=(PlaneShape(256), PlaneShape(20))),
    **{f"row-{row}": Shape(planes=(PlaneShape(row),)) for row in FORMATS},
}
LARGE = Shape(4096, 2048, 131072, (PlaneShape(132),), page_units=64)


def selection(world: World, units: int, keep: NDArray[Any] | None = None) -> NDArray[Any]:
    """A row of top_k units: some of ``keep``, duplicates, padding anywhere, some wrong."""
    rng, k = world.rng, world.shape.top_k
    row = rng.integers(0, max(units, 1), k)
    if keep is not None and len(keep):
        row = np.where(rng.random(k) < 0.7, rng.choice(keep, k), row)
    kind = rng.integers(0, 6)
    if kind == 0:
        row[rng.random(k) < 0.3] = -1
    elif kind == 1:
        row = row[rng.integers(0, max(k // 4, 1), k)]  # many duplicates
    elif kind == 2:
        wrong = [-2, -(2**31), units, units + 1, 2**31 - 1]
        row[rng.integers(0, k, 3)] = rng.choice(wrong, 3)
    elif kind == 3 and rng.random() < 0.3:
        row[:] = -1
    return row


class Life:
    """Plays random steps in a world."""

    def __init__(self, machine: Machine, shape: Shape, rng: np.random.Generator) -> None:
        self.rng = rng
        self.units = min(20000 if shape.units_max > 1 << 17 else 300, shape.units_max)
        most = min(self.units + 120, shape.units_max)
        self.world = World(machine, shape, rng, units=self.units, most=most)
        self.world.blocks = int(rng.choice([1, 2, 3, 5]))
        self.last: dict[int, NDArray[Any]] = {}
        self.most = most

    def play(self, steps: int) -> None:
        actions = [self.resolve] * 10 + [self.prefetch] * 3 + [self.rebind, self.kill]
        if self.world.shape.block == 1:
            actions += [self.append] * 3
        for _ in range(steps):
            actions[self.rng.integers(len(actions))]()

    def batch(self) -> list[int]:
        """Requests of a step: most once each; sometimes twice, or ones that there are not."""
        rng, n = self.rng, self.world.requests
        batch = [int(r) for r in rng.permutation(n)[: rng.integers(1, n + 1)]]
        if rng.random() < 0.1:
            batch.append(int(rng.choice([-1, n, 2**31 - 1, batch[0]])))
        return batch

    def rows(self, batch: list[int]) -> NDArray[Any]:
        heads = self.world.shape.heads
        rows = []
        for r in batch:
            known = 0 <= r < self.world.requests
            units = self.world.units(r) if known else 10
            rows.append([selection(self.world, units, self.last.get(r)) for _ in range(heads)])
        return np.array(rows)

    def resolve(self) -> None:
        batch = self.batch()
        rows = self.rows(batch)
        k = int(self.rng.choice([rows.shape[2], max(rows.shape[2] // 2, 1)]))
        rows = np.ascontiguousarray(rows[:, :, :k])
        self.world.step(batch, rows, scores=self.scores(rows))
        for r, row in zip(batch, rows, strict=True):
            self.last[r] = row[(row >= 0) & (row < self.units)]
        self.world.replay(batch, 1)

    def scores(self, rows: NDArray[Any]) -> NDArray[Any] | None:
        if self.world.shape.policy != "lru_score" or self.rng.random() < 0.2:
            return None
        scores = self.rng.normal(size=rows.shape).round(1).astype(np.float32)
        odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
        which = self.rng.random(rows.shape) < 0.2
        scores[which] = self.rng.choice(odd, int(which.sum()))
        return scores

    def prefetch(self) -> None:
        batch = self.batch()
        rows = self.rows(batch)
        self.world.step(batch, rows, kernel="sac_prefetch", scores=self.scores(rows))
        self.world.replay(batch, 1)

    def append(self) -> None:
        batch, n = self.batch(), int(self.rng.integers(1, 17))
        first = None
        if self.rng.random() < 0.3:
            first = [int(self.rng.integers(-2, self.units)) for _ in batch]
        else:
            for r in set(batch):
                if 0 <= r < self.world.requests:
                    self.world.resize(r, min(self.world.units(r) + n, self.most))
        for r in range(self.world.requests):
            some = int(self.rng.integers(0, self.world.units(r) + 2))
            self.world.table[r]["open"] = some if self.rng.random() < 0.3 else 0
        append(self.world, batch, n, first)

    def rebind(self) -> None:
        """Another context takes a request's place, or nobody does; or it becomes shorter."""
        world, r = self.world, int(self.rng.integers(self.world.requests))
        kind = self.rng.integers(4)
        if kind == 0:
            world.release(r)
        elif kind == 1 and world.table[r]["flags"] & BOUND:
            units = int(self.rng.integers(1, world.units(r) + 1))
            world.resize(r, units)
            world.reset([r], units=units)
        else:
            world.pages.revive(r)
            direct = bool(self.rng.integers(2))
            units = min(self.units, world.shape.slots) if direct else self.units
            world.bind(r, units, direct=direct)
            world.reset([r])
            if direct:
                world.load(r, 0, units // 2)
                world.load(r, units // 2)

    def kill(self) -> None:
        r = int(self.rng.integers(self.world.requests))
        if self.rng.random() < 0.5:
            self.world.pages.kill(r, int(self.rng.integers(self.world.pages.each)))
        else:
            self.world.pages.revive(r)
