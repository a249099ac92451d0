# SPDX-License-Identifier: Apache-2.0
"""Where bad memory lies in the pools: from a device's event to extent and offset.

The kernel alone knows how a platform spreads addresses over devices, so its host address is
taken. Where it tells none (an old kernel), a region of one device maps one to one; of an
interleaved one the place cannot be known, and that is said, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacctl.cxl.events import Event
from sacctl.cxl.model import Region, Topology
from sacctl.cxl.sysfs import Sysfs

__all__ = ["META", "Found", "Place", "Spot", "locate", "places"]

META = -1  # the number of the metadata extent
PAGE = 4096  # what page_offset of a dax device's mapping counts
_DAX = re.compile(r"dax\d+\.\d+")


@dataclass(frozen=True, slots=True)
class Place:
    """Host addresses that belong to an extent of a pool: bytes from start are those from
    offset of the extent."""

    pool: str
    extent: int
    dax: str
    start: int
    bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Spot:
    """Bytes of an extent that are bad. extent META: of the metadata."""

    pool: str
    extent: int
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Found:
    """Where an event's memory is used.

    Attributes:
        spots: in the pools; none where no pool has it, or it cannot be told.
        pools: that have the memory, or may have it.
        why: a clause for a person where the place cannot be told; else "".
    """

    spots: tuple[Spot, ...] = ()
    pools: tuple[str, ...] = ()
    why: str = ""


def places(sysfs: Sysfs, pools: Iterable[Mapping[str, Any]]) -> list[Place]:
    """The host addresses of these pools (records of ``pool.list``). Needs root: others may
    not read addresses, and get nothing. Raises nothing."""
    found: list[Place] = []
    for pool in pools:
        paths = [(META, pool["meta"]), *((e["index"], e["path"]) for e in pool["extents"])]
        for extent, path in paths:
            folder, _, name = str(path).rpartition("/")
            if folder == str(sysfs.at("/dev")) and _DAX.fullmatch(name):
                found += _ranges(sysfs, str(pool["name"]), int(extent), name)
    return found


def _ranges(sysfs: Sysfs, pool: str, extent: int, dax: str) -> list[Place]:
    folder = f"/sys/bus/dax/devices/{dax}"
    found = []
    for name in sysfs.names(folder):
        if not re.fullmatch(r"mapping\d+", name):
            continue
        start = sysfs.number(f"{folder}/{name}/start", -1)
        end = sysfs.number(f"{folder}/{name}/end", -1)
        page = sysfs.number(f"{folder}/{name}/page_offset", -1)
        if start > 0 and end > start and page >= 0:
            size = end - start + 1
            found.append(Place(pool, extent, dax, start, size, page * PAGE))
    if found:
        return found
    # Kernels before 5.10 have one range a device, and no mapping folders.
    start, size = sysfs.number(f"{folder}/resource", 0), sysfs.number(f"{folder}/size", 0)
    return [Place(pool, extent, dax, start, size, 0)] if start and size else []


def locate(event: Event, topology: Topology, known: Sequence[Place]) -> Found:
    """Where the event's memory lies in the pools. Nothing is raised or changed."""
    region = _region(event, topology)
    start = event.hpa
    if start is None and region is not None and region.ways == 1:
        start = _one_to_one(event, topology, region)
    if start is None:
        if region is None:
            return Found(why="" if event.dpa is not None else "the kernel told no address")
        inside = [p for p in known if _overlap(p, *_whole(region)) is not None]
        pools = tuple(sorted({p.pool for p in inside}))
        return Found(
            pools=pools,
            why=f"the kernel told no host address, and {region.name} is spread over "
            f"{region.ways} devices: which bytes it is cannot be known",
        )
    first, size = _span(start, event.bytes, region)
    spots = []
    for place in known:
        part = _overlap(place, first, size)
        if part is not None:
            spots.append(Spot(place.pool, place.extent, *part))
    spots.sort(key=lambda s: (s.pool, s.extent, s.offset))
    return Found(tuple(spots), tuple(sorted({s.pool for s in spots})))


def _region(event: Event, topology: Topology) -> Region | None:
    named = topology.region(event.region) if event.region else None
    if named is not None:
        return named
    if event.hpa is not None:
        for region in topology.regions:
            start, size = _whole(region)
            if size and start <= event.hpa < start + size:
                return region
    device = topology.memdev(event.memdev)
    if device is None or event.dpa is None:
        return None
    for decoder in device.decoders:
        start = -1 if decoder.dpa_start is None else decoder.dpa_start
        if 0 <= start <= event.dpa < start + decoder.dpa_bytes:
            return topology.region(decoder.region)
    return None


def _one_to_one(event: Event, topology: Topology, region: Region) -> int | None:
    """The host address in a region of one device."""
    device = topology.memdev(event.memdev)
    if device is None or event.dpa is None or region.start is None:
        return None
    for decoder in device.decoders:
        if decoder.region == region.name and decoder.dpa_start is not None:
            return region.start + event.dpa - decoder.dpa_start
    return None


def _span(start: int, size: int, region: Region | None) -> tuple[int, int]:
    """Host addresses that hold the device's bytes, or more of them.

    A device's bytes that go on in the next granule lie one stripe further. In which place of
    the stripe is the platform's matter, so whole stripes are taken.
    """
    if region is None or region.start is None or region.ways <= 1 or not region.granularity:
        return start, size
    within = (start - region.start) % region.granularity
    if within + size <= region.granularity:
        return start, size
    stripe = region.ways * region.granularity
    granules = -(-(within + size) // region.granularity)
    first = region.start + (start - region.start) // stripe * stripe
    end = min(first + granules * stripe, region.start + region.bytes)
    return first, end - first


def _whole(region: Region) -> tuple[int, int]:
    return (0, 0) if region.start is None else (region.start, region.bytes)


def _overlap(place: Place, start: int, size: int) -> tuple[int, int] | None:
    """Offset in the extent and bytes of what both have; None where it is nothing."""
    first, end = max(start, place.start), min(start + size, place.start + place.bytes)
    if first >= end:
        return None
    return place.offset + first - place.start, end - first
