# SPDX-License-Identifier: Apache-2.0
"""Steps on the DAX devices of a pool, once the kernel has made them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable

from sacctl.errors import BusyError, CtlError, RefusedError
from sacctl.pool import cxl_marks, native
from sacctl.pool.cxl_spec import meta_bytes
from sacctl.pool.filesteps import MakeFile, MakeFolder, Rename, new_name, open_folders
from sacctl.pool.places import LOCK_WAIT, Places
from sacctl.pool.record import Record
from sacctl.pool.scrub import zero
from sacctl.pool.spec import SLAB
from sacctl.pool.steps import Step

__all__ = [
    "CheckExtents",
    "FormatExtents",
    "LockDevices",
    "OpenDevices",
    "OpenMeta",
    "devices_of",
    "has_meta_file",
    "meta_file",
    "named_meta",
]

NODE_WAIT = 5.0  # seconds until udev has made and labelled a device's node
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC

Now = Callable[[], Record]  # the record as it is when a step begins


def has_meta_file(record: Record) -> bool:
    """Whether the metadata lies in a file, because no device could be split for it."""
    return record.cxl is not None and len(record.cxl.regions[0].parts) < 2


def devices_of(record: Record) -> tuple[str, ...]:
    """Paths of the pool's DAX devices: metadata first, where it is on one."""
    return record.data if has_meta_file(record) else (record.meta, *record.data)


class OpenDevices(Step):
    """Opens the pool's DAX devices, waiting for their nodes, and locks them as a pool's owner
    does. With own they are given to the pool's user. Nothing is left of it after undo()."""

    def __init__(self, places: Places, record: Now, *, own: bool, lock: bool = True) -> None:
        self._places, self._record, self._own, self._lock = places, record, own, lock
        self._before: list[tuple[str, int]] = []

    @property
    def what(self) -> str:
        return f"open the dax devices of pool '{self._record().name}'"

    def apply(self) -> None:
        places = self._places
        for path in devices_of(self._record()):
            fd = places.files.get(path, -1)
            if fd < 0:
                places.files[path] = fd = open_device(path)
            if self._lock:
                places.lock(path, LOCK_WAIT)
            owner = os.fstat(fd).st_uid
            if self._own and os.geteuid() == 0 and owner != places.uid:
                self._before.append((path, owner))
                os.fchown(fd, places.uid, -1)

    def undo(self) -> None:
        for path, owner in self._before:
            if path in self._places.files:
                os.fchown(self._places.files[path], owner, -1)
        self._before.clear()
        for path in devices_of(self._record()):
            self._places.close_file(path)


class LockDevices(Step):
    """Locks devices and metadata file that are open, as a pool's owner does. May wait for a
    daemon that is just letting go."""

    def __init__(self, places: Places, record: Now) -> None:
        self._places, self._record = places, record
        self._locked: list[str] = []

    @property
    def what(self) -> str:
        return f"lock the memory of pool '{self._record().name}'"

    def apply(self) -> None:
        record = self._record()
        for path in dict.fromkeys((record.meta, *record.data)):
            if path in self._places.files:
                self._places.lock(path, LOCK_WAIT)
                self._locked.append(path)

    def undo(self) -> None:
        for path in self._locked:
            if path in self._places.files:
                fcntl.flock(self._places.files[path], fcntl.LOCK_UN)
        self._locked.clear()


def open_device(path: str) -> int:
    """Opens a DAX device to read and write, waiting for its node. Raises CtlError, OSError."""
    end = time.monotonic() + NODE_WAIT
    while True:
        try:
            return os.open(path, _FLAGS)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise CtlError(
                    f"cannot open {path}: it is not bound to device_dax",
                    object=path,
                    errno=error.errno,
                    hint="sacctl device list shows what has it",
                ) from error
            if error.errno == errno.EBUSY:
                raise BusyError(f"{path} is in use", object=path, errno=error.errno) from error
            if error.errno != errno.ENOENT or time.monotonic() >= end:
                raise
        time.sleep(0.02)


class OpenMeta(Step):
    """Opens and locks the metadata file of a pool that has one; one that has gone is made
    anew, empty."""

    def __init__(self, places: Places, record: Record) -> None:
        self._places, self._record = places, record
        self._size = meta_bytes(sum(record.sizes))

    @property
    def what(self) -> str:
        if not has_meta_file(self._record):
            return "take the metadata from its device"
        return f"open {self._record.meta}"

    def apply(self) -> None:
        record, places = self._record, self._places
        if not has_meta_file(record):
            return
        open_folders(places, record)
        if places.open_file(record.meta) is None:
            MakeFile(places, record.meta, self._size).apply()
        else:
            places.lock(record.meta, LOCK_WAIT)

    def undo(self) -> None:
        if has_meta_file(self._record):
            self._places.close_file(self._record.meta)


class FormatExtents(Step):
    """Writes superblocks and tables over the open devices. What they held before is not
    believed: the metadata is zeroed, and the core scrubs data before it gives it out.

    opened says afterwards what pool it is.
    """

    def __init__(self, places: Places, record: Now) -> None:
        self._places, self._record = places, record
        self._written: list[str] = []
        self.opened: native.Opened | None = None

    def uuid(self) -> str:
        """Of the pool that was made; "" before."""
        return self.opened.uuid if self.opened else ""

    @property
    def what(self) -> str:
        count = len(self._record().data)
        return f"write the superblocks of a pool with {count} extent{'s' * (count != 1)}"

    def apply(self) -> None:
        record, files = self._record(), self._places.files
        self._written = list(devices_of(record))
        for path in devices_of(record):
            info = os.fstat(files[path])
            if stat.S_ISREG(info.st_mode):  # a simulated machine's
                zero(files[path], path, info.st_size)
        meta = new_name(record.meta)
        if meta not in files:  # a device, or a file to be written anew
            meta = record.meta
            info = os.fstat(files[meta])
            if has_meta_file(record):
                zero(files[meta], meta, info.st_size)
        self.opened = native.format_pool(
            (files[meta], record.meta), [(files[path], path) for path in record.data]
        )
        assert record.cxl is not None
        for path, region in zip(record.data, record.cxl.regions, strict=True):
            cxl_marks.write(files[path], region, self.opened.uuid)

    def undo(self) -> None:
        """The superblocks go: nobody must find a pool there that no record knows."""
        for path in self._written:
            if path in self._places.files:
                zero(self._places.files[path], path, SLAB)
        self._written.clear()
        self.opened = None


def meta_file(places: Places, record: Record) -> list[Step]:
    """Steps that make a metadata file, under the name it has until there is a pool; none
    where the metadata is on a device."""
    if not has_meta_file(record):
        return []
    size = meta_bytes(sum(record.sizes))
    folders = [MakeFolder(places, folder) for folder in record.folders]
    return [*folders, MakeFile(places, new_name(record.meta), size)]


def named_meta(places: Places, record: Record) -> list[Step]:
    """The step that gives the file its name, now that there is a pool."""
    if not has_meta_file(record):
        return []
    return [Rename(places, new_name(record.meta), record.meta)]


class CheckExtents(Step):
    """Opens the pool as its next owner will, and compares it with what is expected."""

    def __init__(self, places: Places, record: Now, uuid: Callable[[], str]) -> None:
        self._places, self._record, self._uuid = places, record, uuid

    @property
    def what(self) -> str:
        return "open the pool and check it"

    def apply(self) -> None:
        record, files = self._record(), self._places.files
        found = native.inspect_pool(
            (files[record.meta], record.meta), [(files[path], path) for path in record.data]
        )
        if (found.uuid, found.extents) != (self._uuid(), len(record.data)):
            raise RefusedError(
                f"pool '{record.name}' does not read back as it was written: its devices hold "
                f"pool {found.uuid}",
                object=record.name,
                hint="look at the devices: sacctl health, dmesg",
            )
