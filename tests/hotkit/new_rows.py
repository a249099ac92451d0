# SPDX-License-Identifier: Apache-2.0
"""Rows of new tokens, appended on a machine and in the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotkit.shape import FOLLOWER, Append, Source
from hotkit.world import LEADER, World
from libsac.hotbuffer.reference import Errors

Array = NDArray[Any]


class NewRows:
    """``count`` random rows a request of ``requests``, in one layer.

    of[plane]: uint8 (requests, count, heads, row bytes or more). first: the number of each
    request's first one, -1: none; or None: they are the last ones it has.
    """

    def __init__(
        self,
        world: World,
        layer: int,
        requests: Sequence[int],
        count: int,
        first: Sequence[int] | None = None,
    ) -> None:
        self.world, self.layer, self.requests = world, layer, requests
        self.count, self.first = count, first
        self.of: list[Array] = []
        for p in world.shape.planes:
            size = (len(requests), count, world.shape.heads, -(-p.row_pitch() // 16) * 16)
            self.of.append(world.put(world.rng.integers(0, 256, size), np.uint8))

    def launch(self) -> None:
        world = self.world
        which = world.put(self.requests, np.int32)
        begin = None if self.first is None else world.put(self.first, np.int32)
        flags = 0 if self.layer == LEADER else FOLLOWER
        args = Append(world.args(self.layer, which, flags), world.address(begin))
        args.count = self.count
        for i, rows in enumerate(self.of):
            strides = (int(n) for n in rows.strides[:3])
            args.sources[i] = Source(world.address(rows), *strides)
        world.module.launch("sac_append", (1, len(which), world.shape.heads), args)

    def expect(self, b: int) -> Errors:
        """That rows of one-row units of request number ``b`` of the batch were written."""
        world, r = self.world, self.requests[b]
        rows = int(world.table[r]["rows"])
        begin, end = int(world.table[r]["open"]), min(rows, world.units(r))
        first = None if self.first is None else self.first[b]
        errors = Errors.NONE
        if first == -1:
            return errors
        numbers = np.arange(self.count) + (rows - self.count if first is None else first)
        if first is None:
            numbers[numbers < 0] = -1
        elif first < -1:
            numbers[:], errors = -1, Errors.RANGE
        dead = world.pages.dead(r)
        for h, lane in enumerate(world.lanes_of(r)):
            if self.layer == LEADER:
                step = world.lanes[lane].append(numbers, end, dead, begin)
                errors |= step.errors
                world.counted["evictions"] += step.evictions
            at = world.lanes[lane].find(np.where(numbers < 0, -2, numbers))
            for i, unit in enumerate(int(n) for n in numbers):
                if max(begin, 0) <= unit < end and unit not in dead:
                    self._expect_row(b, i, h, unit, int(at[i]))
        return errors

    def _expect_row(self, b: int, i: int, head: int, unit: int, slot: int) -> None:
        world, r = self.world, self.requests[b]
        world.counted["appended"] += len(self.of)
        for p, plane in enumerate(world.shape.planes):
            row = self.of[p][b, i, head, : plane.row]
            world.pages.unit(p, self.layer, r, head, unit)[: plane.row] = row
            if slot >= 0:
                lane = world.lanes_of(r)[head]
                world.expected(p, self.layer, lane, slot)[: plane.row] = row


def append(
    world: World, requests: Sequence[int], count: int, first: Sequence[int] | None = None
) -> None:
    """New rows of one-row units, in all layers."""
    errors = np.zeros(world.requests + 1, np.uint32)
    for layer in range(world.layers):
        new = NewRows(world, layer, requests, count, first)
        new.launch()
        for b, r in enumerate(requests):
            if world.served(requests, b, errors):
                errors[r] |= new.expect(b)
    world.check(errors)
