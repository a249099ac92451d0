# SPDX-License-Identifier: Apache-2.0
"""What kernels remember about lanes, beside the reference's lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotkit.machine import Machine
from hotkit.shape import Shape
from libsac.hotbuffer.policies import Clock, Random
from libsac.hotbuffer.reference import Lane

Array = NDArray[Any]
USED = 0x8000


class Lanes:
    """The arrays of one layer, and ``reference``: a lane each. ``kept``: units in all lanes."""

    def __init__(self, machine: Machine, shape: Shape, lanes: int) -> None:
        self.shape, array = shape, machine.array
        self.slot_token = array((lanes, shape.slots_pitch), np.int32)
        self.order = array((lanes, 2, shape.slots_pitch), np.uint16)
        self.state = array((lanes, 4), np.uint32)
        self.plan = array((lanes, shape.plan_bytes // 4), np.uint32)
        self.slot_token[:], self.order[:], self.state[:] = 123, 456, 789
        self.reference = [Lane(shape.slots, shape.policy) for _ in range(lanes)]

    def __len__(self) -> int:
        return len(self.reference)

    def __getitem__(self, lane: int) -> Lane:
        return self.reference[lane]

    @property
    def kept(self) -> int:
        return sum(int((lane.slot_token >= 0).sum()) for lane in self.reference)

    def renew(self, lane: int) -> None:
        direct = self.reference[lane].direct
        self.reference[lane] = Lane(self.shape.slots, self.shape.policy, direct=direct)

    def check(self) -> None:
        """The arrays say what the reference does, and no unit has two slots."""
        slots = self.shape.slots
        for i, lane in enumerate(self.reference):
            np.testing.assert_array_equal(self.slot_token[i, :slots], lane.slot_token)
            held = lane.slot_token[lane.slot_token >= 0]
            assert len(np.unique(held)) == len(held), "a unit has two slots"
            turn, counter = int(self.state[i, 0]), int(self.state[i, 1])
            assert turn & 0xFFFF == 0, "arrivals are left"
            self._check_order(lane, self.order[i, turn >> 16, :slots], counter)

    def _check_order(self, lane: Lane, words: Array, counter: int) -> None:
        policy = lane.policy
        if isinstance(policy, Random):
            np.testing.assert_array_equal(words, policy.used * USED)
            assert counter == policy.steps
        elif isinstance(policy, Clock):
            np.testing.assert_array_equal(words, policy.used * USED + policy.referenced)
            assert counter == policy.hand
        else:
            order = policy.order  # type: ignore[attr-defined]
            np.testing.assert_array_equal(words & 0x7FFF, order)
            np.testing.assert_array_equal(words >= USED, policy.used[order])
