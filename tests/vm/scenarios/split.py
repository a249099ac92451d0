# SPDX-License-Identifier: Apache-2.0
"""A region's dax device split in two by the kernel's files: which bytes lie where, and what
stays when they are one again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vm.guest import cxl
from vm.guest.kit import equal, host

TOPOLOGIES = ("1hb1", "2hb2")
SMALL = 16 * cxl.MIB


@contextmanager
def divided() -> Iterator[tuple[str, str]]:
    """A region of all devices whose dax device is divided in a large and a small one, both
    under device_dax; their names. Both are gone afterwards."""
    order = list(cxl.devices().values())
    region = cxl.create("decoder0.2" if len(order) == 2 else "decoder0.0", order)
    try:
        first = cxl.dax_of(region)
        cxl.unbind(first)
        home = home_of(region)
        size = cxl.number(cxl.DAX / "devices" / first / "size")
        cxl.must(cxl.DAX / "devices" / first / "size", size - SMALL)
        equal(cxl.number(home / "dax_region/available_size"), SMALL, "room after shrinking")
        cxl.must(home / "dax_region/create", 1)
        second = cxl.read(home / "dax_region/seed")
        second = second or next(n.name for n in home.glob("dax*.1"))
        cxl.must(cxl.DAX / "devices" / second / "size", SMALL)
        for name in (first, second):
            cxl.bind(name)
        yield first, second
    finally:
        cxl.destroy(region)


def home_of(region: str) -> Path:
    return next((cxl.BUS / region).resolve().glob("dax_region*"))


def test_split_and_joined() -> None:
    order = list(cxl.devices().values())
    with divided() as (first, second):
        small = cxl.number(cxl.DAX / "devices" / first / "size")
        look(first, second, small, order)
        home = (cxl.DAX / "devices" / first).resolve().parent
        whole_again(home, first, second, small + SMALL)
        with cxl.Mapped(first) as data:
            equal(bytes(data[small : small + 8]), b"metadata", "joined again")


def look(first: str, second: str, small: int, order: list[cxl.Device]) -> None:
    with cxl.Mapped(first) as data, cxl.Mapped(second) as meta:
        data[:8] = b"the data"
        data[-8:] = b"data end"
        meta[:8] = b"metadata"
    equal(host.peek(order[0].index, 0, 8), b"the data", "the first bytes")
    # The small one takes the addresses behind the large one.
    behind = small // len(order)
    equal(host.peek(order[0].index, behind, 8), b"metadata", "the first bytes of the second")
    last = order[-1].index
    equal(host.peek(last, behind - 8, 8), b"data end", "the last bytes of the first")


def whole_again(home: Path, first: str, second: str, size: int) -> None:
    for name in (second, first):
        cxl.unbind(name)
        cxl.must(cxl.DAX / "drivers/device_dax/remove_id", name)
    cxl.must(cxl.DAX / "devices" / second / "size", 0)
    cxl.must(home / "dax_region/delete", second)
    cxl.must(cxl.DAX / "devices" / first / "size", size)
    cxl.bind(first)
