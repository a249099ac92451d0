# SPDX-License-Identifier: Apache-2.0
"""Regions and DAX devices, from sysfs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from sacctl.cxl.model import DaxDevice, Region, Skipped
from sacctl.cxl.read_attrs import CXL, DAX, Attributes, UnreadableError, names, number_of
from sacctl.cxl.sysfs import Sysfs

__all__ = ["dax_devices", "regions"]

T = TypeVar("T")

_MOST_WAYS = 16


def regions(sysfs: Sysfs) -> tuple[list[Region], list[Skipped]]:
    """All regions, made by anyone, committed or not."""
    return _each(sysfs, f"{CXL}/devices", r"region\d+", _region)


def _each(
    sysfs: Sysfs, folder: str, pattern: str, make: Callable[[Sysfs, str, str], T]
) -> tuple[list[T], list[Skipped]]:
    """What make() reads of each device of such a name; those that cannot be read, with why."""
    made, skipped = [], []
    for name in names(sysfs, folder):
        if not re.fullmatch(pattern, name):
            continue
        real = sysfs.real(f"{folder}/{name}")
        try:
            if not real:
                raise UnreadableError("it went away while it was being read")
            made.append(make(sysfs, name, real))
        except UnreadableError as why:
            skipped.append(Skipped(name, str(why)))
    return made, skipped


def _region(sysfs: Sysfs, name: str, real: str) -> Region:
    at = Attributes(sysfs, real)
    ways = at.number("interleave_ways")
    if ways > _MOST_WAYS:
        raise UnreadableError(f"its attribute interleave_ways is {ways}")
    targets = []
    for position in range(ways):
        target = at.text(f"target{position}")
        if not re.fullmatch(r"(decoder\d+\.\d+)?", target):
            raise UnreadableError(f"its attribute target{position} is {target[:24]!r}")
        targets.append(target)
    size = at.number("size")
    inside = names(sysfs, f"{real}/dax_{name}")
    return Region(
        name=name,
        root=real.split("/")[-2],
        start=at.address("resource") if size else None,
        bytes=size,
        ways=ways,
        granularity=at.number("interleave_granularity"),
        targets=tuple(targets),
        committed=at.flag("commit"),
        mode=at.optional("mode"),
        driver=at.link("driver"),
        dax=tuple(n for n in inside if re.fullmatch(r"dax\d+\.\d+", n)),
    )


def dax_devices(sysfs: Sysfs) -> tuple[list[DaxDevice], list[Skipped]]:
    """All devices of the DAX bus, of regions and others."""
    return _each(sysfs, f"{DAX}/devices", r"dax\d+\.\d+", _dax)


def _dax(sysfs: Sysfs, name: str, real: str) -> DaxDevice:
    at = Attributes(sysfs, real)
    parts = real.split("/")
    region = next((p for p in reversed(parts[:-1]) if re.fullmatch(r"region\d+", p)), "")
    hmem = any(re.fullmatch(r"hmem\.\d+", part) for part in parts)
    folder = "/".join([*parts[:-1], "dax_region"])
    around = Attributes(sysfs, folder)
    has_folder = bool(around.names())
    size = at.number("size")
    return DaxDevice(
        name=name,
        kind="cxl" if region else "hmem" if hmem else "other",
        bytes=size,
        align=number_of(at.optional("align")) or 0,
        start=_start(at, size),
        target_node=at.signed("target_node"),
        driver=at.link("driver"),
        region=region,
        path=real,
        folder=folder if has_folder else "",
        region_bytes=number_of(around.optional("size")) or 0,
        available_bytes=number_of(around.optional("available_size")) or 0,
    )


def _start(at: Attributes, size: int) -> int | None:
    """The kernel shows 0 to those who may not know it, and for a device without memory."""
    return (at.address("resource") or None) if size else None
