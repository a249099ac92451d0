# SPDX-License-Identifier: Apache-2.0
"""Folders and files of a pool under change, held open by file descriptors.

All is done below a folder's descriptor and no symbolic link is followed, so that the owner
of a folder cannot lead root, who makes a pool for him, to another place.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sacctl.errors import BusyError, CtlError, DeniedError, RefusedError, from_os

__all__ = ["LOCK_WAIT", "Places", "folder_of", "ours", "patiently"]

LOCK_WAIT = 5.0  # seconds: a daemon that was told to let go needs a moment
_OURS = re.compile(r"meta(?:\.new)?|data\.\d{1,2}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def folder_of(path: str) -> str:
    """The folder that a file or folder lies in."""
    return str(Path(path).parent)


def ours(file: str) -> bool:
    """Whether a pool has a file of that name."""
    return _OURS.fullmatch(file) is not None


class Places:
    """Descriptors of folders and files, by path. A context manager that closes them.

    uid: who is to own what is made.
    """

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.folders: dict[str, int] = {}
        self.files: dict[str, int] = {}

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (*self.files.values(), *self.folders.values()):
            with suppress(OSError):
                os.close(fd)
        self.files.clear()
        self.folders.clear()

    def own(self, fd: int) -> None:
        """Gives what was just made to its owner."""
        if self.uid != os.geteuid():
            os.fchown(fd, self.uid, -1)

    def parent(self, path: str) -> tuple[int | None, str]:
        """Where to begin, and the path from there, to reach path: for dir_fd arguments."""
        fd = self.folders.get(folder_of(path))
        return (None, path) if fd is None else (fd, Path(path).name)

    def open_folder(self, path: str) -> int:
        """Opens a folder that is there; nobody else may be able to write to it.

        Raises OSError, RefusedError, DeniedError.
        """
        fd = self.folders.get(path)
        if fd is not None:
            return fd
        at, name = self.parent(path)
        try:
            fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise RefusedError(
                    f"{path} is not a folder, or a symbolic link to one",
                    object=path,
                    hint="remove it, or give another folder with --path",
                ) from error
            raise
        try:
            self._check(path, os.fstat(fd))
        except CtlError:
            os.close(fd)
            raise
        self.folders[path] = fd
        return fd

    def _check(self, path: str, found: os.stat_result) -> None:
        if found.st_uid not in (self.uid, os.geteuid(), 0):
            raise DeniedError(
                f"{path} belongs to user {found.st_uid}: whoever owns a pool's folder could "
                "put other files in place",
                object=path,
                hint="give a folder of your own with --path",
            )
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise RefusedError(
                f"{path} has mode {stat.S_IMODE(found.st_mode):04o}: others could put files "
                "of their own in place of the pool's",
                object=path,
                hint=f"chmod 0700 {path}, or give another folder with --path",
            )

    def close_folder(self, path: str) -> None:
        fd = self.folders.pop(path, None)
        if fd is not None:
            os.close(fd)

    def exists(self, path: str) -> bool:
        at, name = self.parent(path)
        try:
            os.stat(name, dir_fd=at, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def open_file(self, path: str) -> int | None:
        """Opens a file of the pool to read and write; None where it is not there.

        Raises DeniedError, CtlError.
        """
        if path in self.files:
            return self.files[path]
        at, name = self.parent(path)
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, dir_fd=at)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise from_os(error, f"cannot open the pool's file {path}") from error
        self.files[path] = fd
        return fd

    def close_file(self, path: str) -> None:
        fd = self.files.pop(path, None)
        if fd is not None:
            os.close(fd)

    def lock(self, path: str, wait: float = 0.0) -> None:
        """Locks an open file as a pool's owner does. Raises BusyError after wait seconds."""
        fd = self.files[path]
        patiently(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB), path, wait)

    def remove_file(self, path: str) -> None:
        """None there is no error. Raises OSError."""
        at, name = self.parent(path)
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(name, dir_fd=at)

    def sync(self, path: str) -> None:
        """Makes the names in a folder durable."""
        fd = self.folders.get(path)
        if fd is not None:
            os.fsync(fd)


def patiently(lock: Callable[[], None], path: str, wait: float) -> None:
    end = time.monotonic() + wait
    while True:
        try:
            return lock()
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            if time.monotonic() >= end:
                raise BusyError(
                    f"{path} is in use: {_holder(path)}",
                    object=path,
                    hint="end what uses it (a daemon, or libsac.embedded), then try again",
                ) from error
        time.sleep(0.02)


def _holder(path: str) -> str:
    """Who has it locked, from /proc/locks."""
    try:
        found = Path(path).stat()
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if len(fields) > 5 and fields[1] == "FLOCK":
                major, minor, inode = fields[5].split(":")
                device = os.makedev(int(major, 16), int(minor, 16))
                if int(inode) == found.st_ino and device == found.st_dev:
                    return f"process {fields[4]} has it locked"
    except (OSError, ValueError):
        pass
    return "another process has it locked"
