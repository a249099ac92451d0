# SPDX-License-Identifier: Apache-2.0
"""The slots of one plane in GPU memory, and what they should hold."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hotkit.machine import Machine
from hotkit.shape import Shape

Array = NDArray[Any]

GUARD = 256  # bytes around the slots that nothing may write
BYTE = 0xEE  # what all memory holds before a kernel writes it
CHUNK = 64 << 20


class Slots(Protocol):
    """Slots are counted over all layers and lanes."""

    address: int  # of the first slot, as kernels see it

    def held(self, slot: int) -> Array:
        """The bytes of a slot's unit."""

    def expected(self, slot: int) -> Array:
        """What these should be: to be written to."""

    def check(self) -> None:
        """All memory, also between and around the slots, is as expected."""


class NearSlots:
    """All of it is compared with a copy as large."""

    def __init__(self, machine: Machine, shape: Shape, plane: int, slots: int) -> None:
        p = shape.planes[plane]
        self.pitch, self.bytes = p.slot_pitch(shape.block), p.unit_bytes(shape.block)
        self.memory = machine.array(slots * self.pitch + 2 * GUARD, np.uint8)
        self.memory[:] = BYTE
        self.wanted = self.memory.copy()
        self.address = machine.address(self.memory) + GUARD

    def held(self, slot: int) -> Array:
        return self._of(self.memory, slot)

    def expected(self, slot: int) -> Array:
        return self._of(self.wanted, slot)

    def _of(self, memory: Array, slot: int) -> Array:
        at = GUARD + slot * self.pitch
        found: Array = memory[at : at + self.bytes]
        return found

    def check(self) -> None:
        if not np.array_equal(self.memory, self.wanted):
            wrong = np.flatnonzero(self.memory != self.wanted)
            slots = np.unique((wrong - GUARD) // self.pitch)
            raise AssertionError(f"rows differ: {len(slots)} slots, of these {slots[:8]}")


class FarSlots:
    """Where a copy would take gigabytes and its comparison minutes: only slots that should
    have been written are remembered, and the memory is read in chunks."""

    def __init__(self, machine: Machine, shape: Shape, plane: int, slots: int) -> None:
        p = shape.planes[plane]
        self.pitch, self.bytes = p.slot_pitch(shape.block), p.unit_bytes(shape.block)
        # A whole slot before and behind them guards, so that chunks consist of whole slots.
        self.memory = machine.far((slots + 2) * self.pitch, BYTE)
        self.address = self.memory.address + self.pitch
        self.chunk = machine.pool(max(CHUNK // self.pitch, 1) * self.pitch)
        self.wanted: dict[int, Array] = {}
        self.slots = slots

    def held(self, slot: int) -> Array:
        found = np.empty(self.bytes, np.uint8)
        self.memory.read((slot + 1) * self.pitch, found)
        return found

    def expected(self, slot: int) -> Array:
        return self.wanted.setdefault(slot, np.full(self.bytes, BYTE, np.uint8))

    def check(self) -> None:
        each = len(self.chunk) // self.pitch
        remaining = sorted(self.wanted, reverse=True)
        for first in range(-1, self.slots + 1, each):
            count = min(each, self.slots + 1 - first)
            part = self.chunk[: count * self.pitch]
            self.memory.read((first + 1) * self.pitch, part)
            while remaining and remaining[-1] < first + count:
                slot = remaining.pop()
                at = (slot - first) * self.pitch
                held = part[at : at + self.bytes]
                assert np.array_equal(held, self.wanted[slot]), f"rows differ: slot {slot}"
                held[:] = BYTE
            words = part.view(np.uint64) if len(part) % 8 == 0 else part
            same = int.from_bytes(bytes([BYTE] * words.itemsize), "little")
            assert (words == words.dtype.type(same)).all(), (
                f"slots {first} to {first + count - 1}: bytes that nothing should write"
            )
