# SPDX-License-Identifier: Apache-2.0
"""A hot buffer over a pool of random bytes, on a machine and in the reference at once.

Every step runs the kernel and the reference, and then compares all that a kernel may write:
outcome, rows, state, plan, counters, errors, and the bytes around the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotkit.lanes import Lanes
from hotkit.machine import Machine
from hotkit.pages import Pages
from hotkit.shape import (
    BOUND,
    COUNTERS,
    DIRECT,
    FOLLOWER,
    GROUP_PLANES,
    PLAN_ONLY,
    TABLE,
    Args,
    Load,
    Plane,
    Reset,
    Shape,
)
from hotkit.slots import FarSlots, NearSlots, Slots
from libsac.hotbuffer.reference import Errors, Step

LEADER = 0

Array = NDArray[Any]


class World:
    """``requests`` requests, all bound, each with ``units`` units and room for ``most``.

    Layer 0 has a state; the layers behind it share its index. far: the requests that will be
    stepped, of a buffer of gigabytes and a pool ``spread`` times as large as it needs to be.
    """

    def __init__(
        self,
        machine: Machine,
        shape: Shape,
        rng: np.random.Generator,
        *,
        requests: int = 3,
        units: int = 300,
        most: int = 0,
        layers: int = 2,
        blocks: int = 3,
        spread: int = 1,
        far: Sequence[int] = (),
    ) -> None:
        self.machine, self.address = machine, machine.address
        self.shape, self.rng, self.requests = shape, rng, requests
        self.layers, self.blocks = layers, blocks
        self.module = machine.load("hot.cu", shape)
        most = max(units, most)
        self.pages = Pages(machine, shape, rng, requests, most, layers, spread, far)
        self.table = machine.array(requests, TABLE)
        for r in range(requests):
            bodies = self.address(self.pages.bodies[r])
            self.table[r] = (bodies, units, BOUND, units * shape.block, 0)
        self.lanes = Lanes(machine, shape, requests * shape.heads)
        kind = FarSlots if far else NearSlots
        slots = layers * len(self.lanes) * shape.slots
        self.slots: list[Slots] = [
            kind(machine, shape, p, slots) for p in range(len(shape.planes))
        ]
        self.counters = machine.array(8, np.uint64)
        self.errors = machine.array(requests + 1, np.uint32)
        self.counted = dict.fromkeys(COUNTERS, 0)
        self.moves: dict[int, list[tuple[int, int]]] = {}
        self.reset(range(requests), is_new=True)

    def bind(self, request: int, units: int, *, direct: bool = False) -> None:
        self.table[request]["flags"] = BOUND | (DIRECT if direct else 0)
        for lane in self.lanes_of(request):
            self.lanes[lane].direct = direct
        self.resize(request, units)

    def resize(self, request: int, units: int, rows: int | None = None) -> None:
        """Another length; rows: of units of several rows, of which the last is not full."""
        entry = self.table[request]
        entry["units"] = units
        entry["rows"] = units * self.shape.block if rows is None else rows
        if units > self.shape.slots:  # for good, as args.h says
            entry["flags"] &= ~DIRECT & 0xFFFFFFFF
            for lane in self.lanes_of(request):
                self.lanes[lane].direct = False

    def units(self, request: int) -> int:
        return int(self.table[request]["units"])

    def release(self, request: int) -> None:
        self.table[request]["flags"] = 0

    def lanes_of(self, request: int) -> range:
        return range(request * self.shape.heads, (request + 1) * self.shape.heads)

    def reset(self, requests: Sequence[int], *, is_new: bool = False, units: int = -1) -> None:
        """Lanes as new, or (units given) without the units from there on."""
        at, lanes = self.address, self.lanes
        for r in [0] if is_new else requests:
            args = Reset(
                at(lanes.slot_token), at(lanes.order), at(lanes.state), at(lanes.plan),
                at(self.counters), len(lanes), r * self.shape.heads, int(units >= 0),
                max(units, 0), int(is_new), 0,
            )  # fmt: skip
            count = len(lanes) if is_new else self.shape.heads
            self.module.launch("sac_reset", (1, count, 1), args)
        for r in requests:
            for i in self.lanes_of(r):
                if units >= 0:
                    lanes[i].truncate(units)
                else:
                    lanes.renew(i)
                    self.moves[i] = []
        self.check()

    def args(self, layer: int, requests: Array, flags: int = 0) -> Args:
        s = self.shape
        planes = []
        for p, slots in enumerate(self.slots):
            each = len(self.lanes) * s.slots * s.planes[p].slot_pitch(s.block)
            offset, stride = int(self.pages.offsets[p, layer]), self.pages.head_stride[p]
            planes.append(Plane(slots.address + layer * each, offset, stride))
        planes += [Plane(0, 0, 0)] * (GROUP_PLANES - len(planes))
        at, lanes = self.address, self.lanes
        return Args(
            requests=at(requests), slot_token=at(lanes.slot_token),
            order=at(lanes.order), state=at(lanes.state), plan=at(lanes.plan),
            table=at(self.table), counters=at(self.counters),
            errors=at(self.errors), planes=(Plane * GROUP_PLANES)(*planes),
            batch=len(requests), table_size=self.requests, heads=s.heads, flags=flags,
        )  # fmt: skip

    def put(self, values: Any, dtype: Any) -> Array:
        """A copy that kernels can read."""
        values = np.asarray(values, dtype)
        array = self.machine.array(values.shape, dtype)
        array[...] = values
        return array

    def step(
        self,
        requests: Sequence[int],
        selection: Any,
        *,
        kernel: str = "sac_resolve",
        scores: Any = None,
        flags: int = 0,
    ) -> Array:
        """resolve or prefetch: selection (batch, heads, top_k). Returns the outcome."""
        which, chosen = self.put(requests, np.int32), self.put(selection, np.int32)
        given = None if scores is None else self.put(scores, np.float32)
        out = self.put(np.full(chosen.shape, -7), np.int32)
        args = self.args(LEADER, which, flags)
        at = self.address
        args.selection, args.scores, args.out = at(chosen), at(given), at(out)
        args.top_k = chosen.shape[2]
        self.module.launch(kernel, (self.blocks, len(which), self.shape.heads), args)
        if kernel == "sac_prefetch" and not flags & PLAN_ONLY:  # which only plans
            self.module.launch("sac_replay", self.few(), args)
        self.expect(requests, chosen, out, kernel=kernel, scores=scores, flags=flags)
        return out

    def expect(
        self,
        requests: Sequence[int],
        chosen: Array,
        out: Array,
        *,
        kernel: str = "sac_resolve",
        scores: Any = None,
        flags: int = 0,
        followers: Sequence[int] = (),
    ) -> None:
        """The reference's step, compared with what a kernel did."""
        wanted = np.full(chosen.shape, -1 if kernel == "sac_resolve" else -7, np.int32)
        errors = np.zeros(self.requests + 1, np.uint32)
        for b, r in enumerate(requests):
            if not self.served(requests, b, errors):
                continue
            for h in range(self.shape.heads):
                lane = r * self.shape.heads + h
                score = None if scores is None else np.asarray(scores)[b, h]
                step = self._reference(kernel, lane, r, chosen[b, h], score)
                self._count(kernel, lane, step)
                errors[r] |= step.errors
                if kernel == "sac_resolve":
                    found = step.slots >= 0
                    wanted[b, h, found] = lane * self.shape.slots + step.slots[found]
                if not flags & PLAN_ONLY:
                    self.copy(LEADER, r, h, step.moves)
        np.testing.assert_array_equal(out, wanted)
        for layer in followers:
            self._expect_replay(requests, layer)
        self.check(errors)

    def replay(self, requests: Sequence[int], layer: int) -> None:
        """A layer that shares the leader's index, after the leader's step."""
        which = self.put(requests, np.int32)
        args = self.args(layer, which, FOLLOWER)
        self.module.launch("sac_replay", self.few(), args)
        self._expect_replay(requests, layer)
        self.check()

    def few(self) -> tuple[int, int, int]:
        """A grid of sac_replay: fewer blocks than lanes, as many, or more."""
        return int(self.rng.integers(1, 3 * self.requests * self.shape.heads)), 1, 1

    def _expect_replay(self, requests: Sequence[int], layer: int) -> None:
        for r in requests:
            if not 0 <= r < self.requests or not self.table[r]["flags"] & BOUND:
                continue
            for h, lane in enumerate(self.lanes_of(r)):
                moves = self.moves.get(lane, [])
                self.copy(layer, r, h, moves)
                self.counted["bytes"] += len(moves) * self._unit_bytes()

    def load(self, request: int, first: int = 0, end: int = 1 << 31) -> None:
        """Brings a direct request in, in all layers."""
        which = self.put([request], np.int32)
        units, dead = self.units(request), self.pages.dead(request)
        for layer in range(self.layers):
            args = Load(self.args(layer, which, 0 if layer == LEADER else FOLLOWER), first, end)
            self.module.launch("sac_load", (self.blocks, 1, self.shape.heads), args)
            for h, lane in enumerate(self.lanes_of(request)):
                step = self.lanes[lane].load(first, end, units, dead)
                self.copy(layer, request, h, step.moves)
                self.counted["bytes"] += len(step.moves) * self._unit_bytes()
        self.check()

    def served(self, requests: Sequence[int], b: int, errors: Array) -> bool:
        """Whether row ``b`` of a batch is served; adds to ``errors`` why not."""
        r = requests[b]
        if not 0 <= r < self.requests:
            errors[-1] |= Errors.UNBOUND
            return False
        if not self.table[r]["flags"] & BOUND:
            errors[r] |= Errors.UNBOUND
            for lane in self.lanes_of(r):
                self.moves[lane] = []
            return False
        if r in list(requests)[:b]:
            errors[r] |= Errors.TWICE
            return False
        return True

    def _reference(
        self, kernel: str, lane: int, r: int, entries: Array, scores: Array | None
    ) -> Step:
        it = self.lanes[lane]
        ask = it.resolve if kernel == "sac_resolve" else it.prefetch
        return ask(entries, self.units(r), self.pages.dead(r), scores)

    def _count(self, kernel: str, lane: int, step: Step) -> None:
        self.moves[lane] = step.moves
        which = "misses" if kernel == "sac_resolve" else "prefetched"
        self.counted["hits"] += step.hits
        self.counted[which] += step.misses
        self.counted["bytes"] += step.misses * self._unit_bytes()
        self.counted["evictions"] += step.evictions

    def _unit_bytes(self) -> int:
        return sum(p.unit_bytes(self.shape.block) for p in self.shape.planes)

    def expected(self, plane: int, layer: int, lane: int, slot: int) -> Array:
        """What a slot should hold, to be written to."""
        at = (layer * len(self.lanes) + lane) * self.shape.slots + slot
        return self.slots[plane].expected(at)

    def copy(self, layer: int, r: int, head: int, moves: list[tuple[int, int]]) -> None:
        """Expects that units were copied to slots."""
        lane = r * self.shape.heads + head
        for p in range(len(self.shape.planes)):
            for unit, slot in moves:
                held = self.pages.unit(p, layer, r, head, unit)
                self.expected(p, layer, lane, slot)[:] = held

    def check(self, errors: Array | None = None) -> None:
        """All that kernels may write is as the reference says; takes the errors away."""
        want = np.zeros(self.requests + 1, np.uint32) if errors is None else errors
        np.testing.assert_array_equal(self.errors, want, "errors")
        self.errors[:] = 0
        self.counted["kept"] = self.lanes.kept
        for name, got in zip(COUNTERS, self.counters, strict=False):
            assert int(got) == self.counted[name], f"{name}: {got}, not {self.counted[name]}"
        self.lanes.check()
        for slots in self.slots:
            slots.check()
