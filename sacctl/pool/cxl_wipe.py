# SPDX-License-Identifier: Apache-2.0
"""Wipes what a pool of CXL devices may have left in its memory."""

from __future__ import annotations

import os
from collections.abc import Callable

from sacctl.pool.cxl_files import devices_of, has_meta_file, open_device
from sacctl.pool.places import Places
from sacctl.pool.record import Record
from sacctl.pool.scrub import ScrubExtent, Untouched, zero
from sacctl.pool.spec import SLAB
from sacctl.pool.steps import Step

__all__ = ["Clear", "WipeHead", "wiped"]


class CloseDevices(Step):
    """Lets go of the devices before their drivers do."""

    what = "close the devices"

    def __init__(self, places: Places) -> None:
        self._places = places

    def apply(self) -> None:
        for path in list(self._places.files):
            self._places.close_file(path)


class Clear(Step):
    """Zeroes the open devices of a pool that is about to be made for a tenant of its own, who
    gets descriptors of them: what was there before belongs to somebody else."""

    def __init__(self, places: Places, record: Callable[[], Record]) -> None:
        self._places, self._record = places, record

    @property
    def what(self) -> str:
        return f"zero the memory of pool '{self._record().name}'"

    def apply(self) -> None:
        record = self._record()
        for path, size in zip(devices_of(record), _sizes(record), strict=True):
            zero(self._places.files[path], path, size)


def _fd(places: Places, path: str) -> Callable[[], int]:
    return lambda: places.files[path]


class WipeHead(Step):
    """Zeroes the beginning of a device that a pool was about to be written on, so that
    nobody finds a pool there that no record knows."""

    final = True

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def what(self) -> str:
        return f"zero the first 2 MiB of {self._path}"

    def apply(self) -> None:
        fd = open_device(self._path)
        try:
            zero(fd, self._path, SLAB)
        finally:
            os.close(fd)


def wiped(places: Places, record: Record) -> list[Step]:
    """Steps that zero what a pool may have left in its memory."""
    look = Untouched(_fd(places, record.meta), record.uuid)

    def used(size: int, path: str) -> Callable[[], int]:
        return lambda: SLAB if look.yes and path in record.data else size

    return [
        look,
        *(
            ScrubExtent(_fd(places, path), path, size, used=used(size, path))
            for path, size in zip(devices_of(record), _sizes(record), strict=True)
        ),
        CloseDevices(places),
    ]


def _sizes(record: Record) -> list[int]:
    """Of devices_of(record)."""
    part = record.cxl
    assert part is not None
    data = [region.parts[0] for region in part.regions]
    return data if has_meta_file(record) else [part.regions[0].parts[1], *data]
