# SPDX-License-Identifier: Apache-2.0
"""Adds data extents to a pool that is served."""

from __future__ import annotations

import os
from collections.abc import Sequence

from libsac.server import Extent
from sacctl.daemon.extents import mark
from sacctl.daemon.opener import Opener
from sacctl.daemon.unserved import Served, extends, not_served
from sacctl.errors import CtlError, UsageError
from sacctl.pool.record import Record

__all__ = ["grow"]


def grow(served: Served, record: Record, fds: Sequence[int], opener: Opener) -> int:
    """Adds the data extents that record has at its end; changes served.record with each.

    fds: of the new extents, or none: they are opened by their paths. Returns how many were
    added. Raises UsageError where record is not the pool's with more at its end, NotFoundError
    for a pool that is not served, CtlError, SacError, OSError.
    """
    pool, old = served.pool, served.record
    if pool is None or old is None or served.state == "lost":
        raise not_served(served)
    known = len(old.data)
    if not extends(record, old):
        raise UsageError(
            f"the record is not that of pool '{served.name}' with extents added at its end",
            object=served.name,
        )
    paths = record.data[known:]
    if fds and len(fds) != len(paths):
        raise UsageError(
            f"pool.extend got {len(fds)} descriptors for {len(paths)} files",
            object=served.name,
        )
    for fd, path in zip(fds, paths, strict=False):
        # Who asked was killed, and another command has cleared away behind it.
        if os.fstat(fd).st_nlink == 0:
            raise CtlError(f"{path} has been removed meanwhile", object=served.name)
    for number, path in enumerate(paths, known):
        fd = fds[number - known] if fds else _open(path)
        try:
            # Before it is a part of the pool: what changes from here on is noticed.
            seen = mark(opener.sysfs, number, path, fd)
            pool.extend(Extent(fd, path))
            served.marks += seen
            # One by one: should a later one fail, those before it are in the pool.
            served.record = old = old.with_(
                data=(*old.data, path), sizes=(*old.sizes, record.sizes[number])
            )
            opener.added(old, number, fd)
        finally:
            if not fds:
                os.close(fd)
    return len(paths)


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
