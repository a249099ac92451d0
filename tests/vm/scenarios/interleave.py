# SPDX-License-Identifier: Apache-2.0
"""A region made by the kernel's files alone: its interleave, seen in the devices."""

from __future__ import annotations

import struct

from vm.guest import cxl
from vm.guest.kit import equal, host, topology

TOPOLOGIES = ("1hb2", "2hb4", "4hb4", "sw4")

# By topology: the window, the devices by position, the granularities to try.
_CASES: dict[str, list[tuple[str, tuple[int, ...], int]]] = {
    "1hb2": [
        ("decoder0.0", (0, 1), 256),
        ("decoder0.0", (1, 0), 4096),
        ("decoder0.0", (1,), 256),
    ],
    "2hb4": [("decoder0.2", (0, 2, 1, 3), 256), ("decoder0.1", (2, 3), 1024)],
    "4hb4": [("decoder0.0", (0, 1, 2, 3), 256)],
    "sw4": [("decoder0.0", (0, 1, 2, 3), 256), ("decoder0.0", (3, 1), 16384)],
}


def test_interleave() -> None:
    for window, order, granularity in _CASES[topology()]:
        found = cxl.devices()
        region = cxl.create(window, [found[i] for i in order], granularity)
        dax = cxl.dax_of(region)
        prove(dax, order, granularity)
        cxl.destroy(region)


def prove(dax: str, order: tuple[int, ...], granularity: int) -> None:
    """Writes words through the mapping and finds each in the right device's memory, and
    one more the other way."""
    ways = len(order)
    with cxl.Mapped(dax) as memory:
        end = len(memory)
        places = [n * granularity for n in range(2 * ways + 1)]
        places += [n * granularity + 8 for n in range(ways)]
        places += [end // 2 + n * granularity for n in range(ways)]
        places += [end - n * granularity - 8 for n in range(ways)]
        for place in places:
            struct.pack_into("<Q", memory, place, 0x5AC0_0000_0000_0000 | place)
        for place in places:
            piece = place // granularity
            device = order[piece % ways]
            offset = piece // ways * granularity + place % granularity
            (word,) = struct.unpack("<Q", host.peek(device, offset, 8))
            equal(
                hex(word), hex(0x5AC0_0000_0000_0000 | place), f"device {device} at {offset:#x}"
            )
        host.poke(order[-1], 0x4000, b"from outside")
        there = 0x4000 // granularity * granularity * ways + (ways - 1) * granularity
        there += 0x4000 % granularity
        equal(bytes(memory[there : there + 12]), b"from outside", "what the host wrote")
