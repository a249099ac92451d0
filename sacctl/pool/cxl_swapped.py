# SPDX-License-Identifier: Apache-2.0
"""Finds the pieces of superblocks that stand where they do not belong, because devices, or
what they hold, were swapped. Memory that lost its power shows none."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from sacctl.pool import cxl_marks, superblock
from sacctl.pool.cxl_files import has_meta_file
from sacctl.pool.cxl_record import RegionPart
from sacctl.pool.record import Record

__all__ = ["Swapped", "looked_at", "moved", "out_of_place"]


@dataclass(frozen=True, slots=True)
class Swapped:
    """A piece out of its place.

    uuid: of the pool that it is of, "" where that cannot be told. device: that seems to have it
    (identity). path: of the dax device that shows it. what: a sentence, with {pool} in it.
    """

    path: str
    uuid: str
    device: str
    what: str


def looked_at(record: Record, files: Mapping[str, int]) -> list[Swapped]:
    """The pieces out of place on a pool's open dax devices. Raises OSError where memory
    cannot be read."""
    part, found = record.cxl, []
    assert part is not None
    places = [(path, region, 0) for path, region in zip(record.data, part.regions, strict=True)]
    if not has_meta_file(record):
        # Data comes first in the region, so that the metadata begins behind it.
        places.append((record.meta, part.regions[0], part.regions[0].parts[0]))
    for path, region, start in places:
        if path not in files:
            continue
        if path in record.data:  # which say it best, so that they come first
            found += moved(files[path], path, record.uuid, region)
        found += _turned(files[path], path, region, start)
        if superblock.identify(files[path]) is None:
            meta = path == record.meta
            found += out_of_place(files[path], path, region, start)
            found += _rest(files[path], path, record, region, start) if meta else []
    return found


def _stripe(region: RegionPart) -> int:
    """Of a region, until its first device has its turn again."""
    return max(superblock.PIECE, region.ways * region.granularity)


def out_of_place(fd: int, path: str, region: RegionPart, start: int = 0) -> list[Swapped]:
    """Beginnings of superblocks beside the two places where an extent has one. start: bytes
    of the region before this dax device. Raises OSError."""
    memory = superblock.head(fd, 2 * superblock.BYTES + _stripe(region))
    right = (0, superblock.BYTES)
    return [
        Swapped(
            path,
            uuid,
            _device(region, start + at),
            f"the beginning of {{pool}} stands {at} bytes behind the beginning of {path}",
        )
        for at, uuid in superblock.pieces(memory)
        if at not in right
    ]


def _turned(fd: int, path: str, region: RegionPart, start: int) -> list[Swapped]:
    """Whole copies of the superblock, each in the other one's place: two devices were swapped
    of a region that gives each of them 4096 bytes in turn."""
    return [
        Swapped(
            path,
            uuid,
            _device(region, start + at),
            f"the first and the second copy of {{pool}}'s superblock on {path} are exchanged",
        )
        for at, uuid in superblock.turned(superblock.head(fd))
    ]


def moved(fd: int, path: str, uuid: str, region: RegionPart) -> list[Swapped]:
    """Marks of devices (cxl_marks) that stand where another one's belongs, or are another
    pool's. None can be an old one: who makes a pool writes its own over them. Raises OSError.
    """
    found = []
    for number, mark in enumerate(cxl_marks.read(fd, region)):
        if mark is None or mark == cxl_marks.Mark(uuid, number):
            continue
        here = _device(region, cxl_marks.AT + number * region.granularity)
        before = _device(region, cxl_marks.AT + mark.number * region.granularity)
        whose = before if mark.uuid == uuid else "another device"
        what = f"{here} holds what {whose} held of {{pool}}"
        found.append(Swapped(path, mark.uuid, here, what))
    return found


def _rest(fd: int, path: str, record: Record, region: RegionPart, start: int) -> list[Swapped]:
    """Of the metadata: the pool's table of extents stands in its place, and what should be
    before it is another thing, not nothing: another pool's device is there instead."""
    memory, size = superblock.head(fd), struct.pack("<Q", record.sizes[0])
    what = f"{path} has the second piece of {{pool}}'s superblock, and something else before it"
    for copy in (0, superblock.BYTES):
        table = memory[copy + superblock.ENTRIES :].startswith(size)
        before = memory[copy : copy + superblock.PIECE]
        if table and before.strip(b"\0") and not before.startswith(superblock.MAGIC):
            return [Swapped(path, "", _device(region, start + copy), what)]
    return []


def _device(region: RegionPart, at: int) -> str:
    """Which has the byte of the region, where the platform does not mix addresses further."""
    if not region.granularity:
        return region.devices[0]
    return region.devices[at // region.granularity % region.ways]
