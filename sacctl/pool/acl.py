# SPDX-License-Identifier: Apache-2.0
"""Lets a daemon of another user open a pool's files anew, which it does for its clients.

An open descriptor is not enough for that: the kernel looks at the file's permissions again.
Nobody else gets any: the file's group, whose bits the mode then shows (0660), has none.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Sequence

from sacctl.errors import CtlError, DeniedError, RefusedError
from sacctl.pool.places import Places
from sacctl.pool.recordsteps import Daemon
from sacctl.pool.steps import Step

__all__ = ["ShareFiles", "access_list", "share"]

_NAME = "system.posix_acl_access"
# As in the kernel's posix_acl_xattr.h.
_VERSION = 2
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_READ_WRITE, _NONE = 6, 0
_NO_ID = 0xFFFFFFFF
_UNKNOWN = (errno.ENOTSUP, errno.ENOSYS)


def access_list(uid: int) -> bytes:
    """An access list: the owner and user uid may read and write, nobody else anything."""
    entries = (
        (_USER_OBJ, _READ_WRITE, _NO_ID),
        (_USER, _READ_WRITE, uid),
        (_GROUP_OBJ, _NONE, _NO_ID),
        (_MASK, _READ_WRITE, _NO_ID),
        (_OTHER, _NONE, _NO_ID),
    )
    return struct.pack("<I", _VERSION) + b"".join(struct.pack("<HHI", *e) for e in entries)


def share(daemon: Daemon, places: Places, pool: str, paths: Sequence[str]) -> list[Step]:
    """The step before these files are handed to the daemon; none where it may open them."""
    uid = daemon.peer.uid
    return [ShareFiles(places, pool, paths, uid)] if _needed(uid, places.uid) else []


class ShareFiles(Step):
    """Lets user uid read and write these files, which must be open. Files of his own, and
    those that he was given before, stay as they are."""

    def __init__(self, places: Places, pool: str, paths: Sequence[str], uid: int) -> None:
        self._places, self._pool, self._paths, self._uid = places, pool, paths, uid
        self._before: list[tuple[int, int, bytes | None]] = []  # fd, mode, access list

    @property
    def what(self) -> str:
        count = len(self._paths)
        files = f"{count} file{'s' * (count != 1)}"
        return f"let the daemon's user {self._uid} open {files} of pool '{self._pool}' (ACL)"

    def apply(self) -> None:
        wanted = access_list(self._uid)
        for path in self._paths:
            fd = self._places.files[path]
            found = os.fstat(fd)
            if not _needed(self._uid, found.st_uid):
                continue
            try:
                have = _read(fd)
                if have == wanted:
                    continue
                self._before.append((fd, stat.S_IMODE(found.st_mode), have))
                os.setxattr(fd, _NAME, wanted)
            except OSError as error:
                raise self._failed(path, found.st_uid, error) from error

    def undo(self) -> None:
        while self._before:
            fd, mode, acl = self._before[-1]
            if acl is not None:
                os.setxattr(fd, _NAME, acl)
            elif _read(fd) is not None:
                # First: a list that goes leaves its mask to the file's group.
                os.fchmod(fd, mode)
                os.removexattr(fd, _NAME)
            self._before.pop()

    def _failed(self, path: str, owner: int, error: OSError) -> CtlError:
        what = f"cannot let the daemon's user {self._uid} open {path}"
        code = error.errno or 0
        if code in _UNKNOWN:
            return RefusedError(
                f"{what}: its file system has no access lists (POSIX ACLs)",
                object=path,
                errno=code,
                hint="put the pool into another folder (--path DIR, without --huge), or run "
                f"the daemon as user {owner}, whose files these are",
            )
        if code in (errno.EPERM, errno.EACCES):
            return DeniedError(
                f"{what}: only their owner may",
                object=path,
                errno=code,
                hint=f"run this as user {owner}, or as root",
            )
        return CtlError(f"{what}: {error.strerror}", object=path, errno=code)


def _needed(uid: int, owner: int) -> bool:
    return uid not in (0, owner)


def _read(fd: int) -> bytes | None:
    try:
        return os.getxattr(fd, _NAME)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return None
        raise
