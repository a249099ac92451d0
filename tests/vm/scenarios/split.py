# SPDX-License-Identifier: Apache-2.0
"""A region's dax device split in two by the kernel's files: which bytes lie where, and what
stays when they are one again."""

from __future__ import annotations

from pathlib import Path

from vm.guest import cxl
from vm.guest.kit import equal, host

TOPOLOGIES = ("1hb1", "2hb2")
SMALL = 16 * cxl.MIB


def test_split_and_joined() -> None:
    found = cxl.devices()
    order = list(found.values())
    ways = len(order)
    region = cxl.create("decoder0.2" if ways == 2 else "decoder0.0", order)
    first = cxl.dax_of(region)
    cxl.unbind(first)
    home = (cxl.BUS / region).resolve()
    home = next(home.glob("dax_region*"))
    size = cxl.number(cxl.DAX / "devices" / first / "size")
    cxl.must(cxl.DAX / "devices" / first / "size", size - SMALL)
    equal(cxl.number(home / "dax_region/available_size"), SMALL, "room after shrinking")
    cxl.must(home / "dax_region/create", 1)
    second = cxl.read(home / "dax_region/seed")
    second = second or next(n.name for n in home.glob("dax*.1"))
    cxl.must(cxl.DAX / "devices" / second / "size", SMALL)
    for name in (first, second):
        cxl.bind(name)
    with cxl.Mapped(first) as data, cxl.Mapped(second) as meta:
        data[:8] = b"the data"
        data[-8:] = b"data end"
        meta[:8] = b"metadata"
    equal(host.peek(order[0].index, 0, 8), b"the data", "the first bytes")
    # The small one takes the addresses behind the large one.
    behind = (size - SMALL) // ways
    equal(host.peek(order[0].index, behind, 8), b"metadata", "the first bytes of the second")
    last = order[-1].index
    equal(host.peek(last, behind - 8, 8), b"data end", "the last bytes of the first")
    whole_again(home, first, second, size)
    with cxl.Mapped(first) as data:
        equal(bytes(data[size - SMALL : size - SMALL + 8]), b"metadata", "joined again")
    cxl.destroy(region)


def whole_again(home: Path, first: str, second: str, size: int) -> None:
    for name in (second, first):
        cxl.unbind(name)
        cxl.must(cxl.DAX / "drivers/device_dax/remove_id", name)
    cxl.must(cxl.DAX / "devices" / second / "size", 0)
    cxl.must(home / "dax_region/delete", second)
    cxl.must(cxl.DAX / "devices" / first / "size", size)
    cxl.bind(first)
