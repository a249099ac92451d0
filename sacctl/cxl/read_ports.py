# SPDX-License-Identifier: Apache-2.0
"""Host bridges, switches and windows, from sysfs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sacctl.cxl.model import Port, RootDecoder, Skipped
from sacctl.cxl.read_attrs import CXL, Attributes, UnreadableError, names, number_of
from sacctl.cxl.sysfs import Sysfs

__all__ = ["Taken", "bridges", "ports", "roots"]

Range = tuple[int, int]  # first address, bytes
Taken = tuple[int | None, int]  # the same of a region, whose address may be hidden
_MOST_WAYS = 32


def bridges(sysfs: Sysfs) -> tuple[str, ...]:
    """Names of the root's dports, such as "pci0000:0c"."""
    found = []
    for root in _of(sysfs, r"root\d+"):
        at = Attributes(sysfs, f"{CXL}/devices/{root}")
        found += [at.link(n) for n in at.names() if re.fullmatch(r"dport\d+", n)]
    return tuple(name for name in found if name)


def ports(sysfs: Sysfs) -> tuple[list[Port], list[Skipped]]:
    """Ports between the root and the endpoints."""
    made, skipped = [], []
    for name in _of(sysfs, r"port\d+"):
        real = sysfs.real(f"{CXL}/devices/{name}")
        parts = real.split("/")
        if not real or len(parts) < 3 or parts[-1] != name:
            skipped.append(Skipped(name, "it went away while it was being read"))
            continue
        at = Attributes(sysfs, real)
        inside = at.names()
        made.append(
            Port(
                name=name,
                kind="bridge" if re.fullmatch(r"root\d+", parts[-2]) else "switch",
                parent=parts[-2],
                at=at.link("uport"),
                above=at.link("parent_dport"),
                driver=at.link("driver"),
                decoders=sum(bool(re.fullmatch(r"decoder\d+\.\d+", n)) for n in inside),
                committed=number_of(at.optional("decoders_committed")) or 0,
            )
        )
    return made, skipped


def roots(
    sysfs: Sysfs, taken: dict[str, Taken], regions: dict[str, list[str]]
) -> tuple[list[RootDecoder], list[Skipped]]:
    """The windows.

    taken: what each region takes that can be read; regions: names by window.
    """
    made, skipped = [], []
    windows = _iomem(sysfs)
    for root in _of(sysfs, r"root\d+"):
        folder = sysfs.real(f"{CXL}/devices/{root}")
        for name in names(sysfs, folder) if folder else []:
            if re.fullmatch(r"decoder\d+\.\d+", name):
                try:
                    made.append(
                        _root(sysfs, f"{folder}/{name}", taken, regions.get(name, []), windows)
                    )
                except UnreadableError as why:
                    skipped.append(Skipped(name, str(why)))
    return made, skipped


def _root(
    sysfs: Sysfs,
    folder: str,
    taken: dict[str, Taken],
    regions: Sequence[str],
    windows: dict[Range, list[Range]],
) -> RootDecoder:
    at = Attributes(sysfs, folder)
    ways = at.number("interleave_ways")
    start, size = at.address("start"), at.number("size")
    if not 1 <= ways <= _MOST_WAYS:
        raise UnreadableError(f"its attribute interleave_ways is {ways}")
    parent = Attributes(sysfs, folder.rsplit("/", 1)[0])
    targets = []
    for number in at.text("target_list").split(","):
        target = parent.link(f"dport{number.strip()}") if number.strip().isdigit() else ""
        if not target:
            raise UnreadableError(f"its target {number[:16]!r} is no host bridge of the root")
        targets.append(target)
    if len(targets) != ways:
        raise UnreadableError(f"it has {len(targets)} targets and {ways} ways")
    if start is None or (start == 0 and size):
        start = None  # shown as 0, or not at all, to those who are not root
    return RootDecoder(
        name=at.name,
        start=start,
        bytes=size,
        ways=ways,
        granularity=at.number("interleave_granularity"),
        targets=tuple(targets),
        ram=at.optional("cap_ram") == "1",
        locked=at.optional("locked") == "1",
        free_bytes=_free(start, size, [taken.get(r) for r in regions], windows),
        regions=tuple(regions),
    )


def _free(
    start: int | None,
    size: int,
    taken: Sequence[Taken | None],
    windows: dict[Range, list[Range]],
) -> int:
    """The largest hole; all that is left where addresses are hidden; 0 where a region cannot
    be read: it may take any of it."""
    if None in taken:
        return 0
    known = [one for one in taken if one is not None and one[1]]
    placed = {(first, length) for first, length in known if first is not None}
    if start is None or len(placed) != len(known):
        return max(0, size - sum(length for _, length in known))
    # What else lies in the window (memory that firmware mapped without a region) is not
    # given to a region by the kernel either.
    used = sorted(placed | set(windows.get((start, size), [])))
    hole, at = 0, start
    for first, length in used:
        hole = max(hole, first - at)
        at = max(at, first + length)
    return max(hole, start + size - at, 0)


def _iomem(sysfs: Sysfs) -> dict[Range, list[Range]]:
    """What lies directly in each CXL window, by /proc/iomem. Hidden from ordinary users."""
    inside: dict[Range, list[Range]] = {}
    window: Range | None = None
    depth = 0
    for line in sysfs.get("/proc/iomem").splitlines():
        found = re.fullmatch(r"( *)([0-9a-f]{1,16})-([0-9a-f]{1,16}) : (.*)", line)
        if not found:
            continue
        here, first, last = len(found[1]), int(found[2], 16), int(found[3], 16)
        one = (first, last - first + 1)
        if window is not None and here <= depth:
            window = None
        if found[4].startswith("CXL Window") and last > first:
            window, depth = one, here
            inside[one] = []
        elif window is not None and here == depth + 2:
            inside[window].append(one)
    return inside


def _of(sysfs: Sysfs, pattern: str) -> Iterable[str]:
    return [n for n in names(sysfs, f"{CXL}/devices") if re.fullmatch(pattern, n)]
