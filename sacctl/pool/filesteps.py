# SPDX-License-Identifier: Apache-2.0
"""Steps on a pool's folders and files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from libsac.sizes import format_size
from sacctl.errors import CtlError
from sacctl.pool import native
from sacctl.pool.places import LOCK_WAIT, Places, folder_of
from sacctl.pool.record import Record
from sacctl.pool.steps import Step

__all__ = [
    "CheckPool",
    "FormatPool",
    "MakeFile",
    "MakeFolder",
    "OpenFiles",
    "RemoveFile",
    "RemoveFolder",
    "Rename",
    "new_name",
    "open_folders",
]


def new_name(meta: str) -> str:
    """Of the metadata file while there is no pool yet, or no more."""
    return meta + ".new"


def open_folders(places: Places, record: Record) -> None:
    """Opens the folders of a record's files that are there. Raises CtlError, OSError."""
    parents = [folder_of(path) for path in (record.meta, *record.data)]
    for folder in dict.fromkeys([*record.folders, *parents]):
        if places.exists(folder):
            places.open_folder(folder)


class MakeFolder(Step):
    """Mode 0700. One that is there is taken, if nobody else may write to it."""

    def __init__(self, places: Places, path: str) -> None:
        self._places, self._path, self._made = places, path, False

    @property
    def what(self) -> str:
        return f"make the folder {self._path} (0700)"

    def apply(self) -> None:
        at, name = self._places.parent(self._path)
        try:
            os.mkdir(name, 0o700, dir_fd=at)
            self._made = True
        except FileExistsError:
            pass
        fd = self._places.open_folder(self._path)
        if self._made:
            os.fchmod(fd, 0o700)
            self._places.own(fd)

    def undo(self) -> None:
        self._places.close_folder(self._path)
        if self._made:
            _rmdir(self._places, self._path)
            self._made = False


class MakeFile(Step):
    """A file of zeros, sparse, mode 0600, that was not there; locked as by a pool's owner."""

    def __init__(self, places: Places, path: str, size: int) -> None:
        self._places, self._path, self._size, self._made = places, path, size, False

    @property
    def what(self) -> str:
        return f"make the file {self._path} of {format_size(self._size)} (0600)"

    def apply(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        at, name = self._places.parent(self._path)
        fd = os.open(name, flags, 0o600, dir_fd=at)
        self._made = True
        self._places.files[self._path] = fd
        self._places.lock(self._path)
        os.fchmod(fd, 0o600)
        self._places.own(fd)
        os.ftruncate(fd, self._size)

    def undo(self) -> None:
        self._places.close_file(self._path)
        if self._made:
            self._places.remove_file(self._path)
            self._made = False


class FormatPool(Step):
    """Writes superblocks and tables. opened says afterwards what pool it is."""

    def __init__(self, places: Places, record: Record) -> None:
        self._places, self._record = places, record
        self.opened: native.Opened | None = None

    @property
    def what(self) -> str:
        count = len(self._record.data)
        return f"write the superblocks of a pool with {count} extent{'s' * (count != 1)}"

    def apply(self) -> None:
        record, files = self._record, self._places.files
        self.opened = native.format_pool(
            (files[new_name(record.meta)], record.meta),
            [(files[path], path) for path in record.data],
        )


class Rename(Step):
    """Of a file within its folder, synced. Nothing there is no error."""

    def __init__(self, places: Places, old: str, new: str) -> None:
        self._places, self._old, self._new, self._done = places, old, new, False

    @property
    def what(self) -> str:
        return f"rename {self._old} to {Path(self._new).name}"

    def apply(self) -> None:
        self._done = self._move(self._old, self._new)

    def undo(self) -> None:
        if self._done:
            self._move(self._new, self._old)
            self._done = False

    def _move(self, old: str, new: str) -> bool:
        places = self._places
        if not places.exists(old):
            return False
        at, name = places.parent(old)
        to, target = places.parent(new)
        os.rename(name, target, src_dir_fd=at, dst_dir_fd=to)
        if old in places.files:
            places.files[new] = places.files.pop(old)
        places.sync(folder_of(new))
        return True


class CheckPool(Step):
    """Opens the pool as its next owner will, and compares it with what was to be made."""

    def __init__(self, places: Places, record: Record, made: FormatPool) -> None:
        self._places, self._record, self._made = places, record, made

    @property
    def what(self) -> str:
        return "open the pool and check it"

    def apply(self) -> None:
        record, files = self._record, self._places.files
        found = native.inspect_pool(
            (files[record.meta], record.meta), [(files[path], path) for path in record.data]
        )
        wanted = self._made.opened
        if wanted is None or (found.uuid, found.extents) != (wanted.uuid, len(record.data)):
            raise CtlError(
                f"pool '{record.name}' does not read back as it was written",
                object=record.name,
                hint="look at the memory or disk it lies on (dmesg)",
            )


class OpenFiles(Step):
    """Opens what is there of a pool's files. With lock: as their owner, so that nobody else
    has the pool open; may wait for a daemon that is just letting go."""

    def __init__(self, places: Places, record: Record, *, lock: bool) -> None:
        self._places, self._record, self._lock = places, record, lock

    @property
    def what(self) -> str:
        return f"{'lock' if self._lock else 'open'} the files of pool '{self._record.name}'"

    def apply(self) -> None:
        record = self._record
        open_folders(self._places, record)
        for path in (record.meta, new_name(record.meta), *record.data):
            if self._places.open_file(path) is not None and self._lock:
                self._places.lock(path, LOCK_WAIT)


class RemoveFile(Step):
    """None there is no error."""

    final = True

    def __init__(self, places: Places, path: str) -> None:
        self._places, self._path = places, path

    @property
    def what(self) -> str:
        return f"remove {self._path}"

    def apply(self) -> None:
        self._places.remove_file(self._path)
        self._places.close_file(self._path)


class RemoveFolder(Step):
    """One that is not empty stays: something else is in it."""

    final = True

    def __init__(self, places: Places, path: str) -> None:
        self._places, self._path = places, path

    @property
    def what(self) -> str:
        return f"remove the folder {self._path} if it is empty"

    def apply(self) -> None:
        self._places.close_folder(self._path)
        _rmdir(self._places, self._path)


def _rmdir(places: Places, path: str) -> None:
    at, name = places.parent(path)
    try:
        os.rmdir(name, dir_fd=at)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise
