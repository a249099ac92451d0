# SPDX-License-Identifier: Apache-2.0
"""Opens the pool of a record, to serve it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sacctl.pool.extend import present
from sacctl.pool.filesteps import open_folders
from sacctl.pool.places import Places
from sacctl.pool.record import Record

if TYPE_CHECKING:
    from libsac.server import SharedPool

__all__ = ["open_record"]

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


def open_record(record: Record, fds: Sequence[int] | None = None) -> SharedPool:
    """The pool, open and locked by this process; the record itself is not changed.

    fds: of meta and then the data files, which stay the caller's; None opens the files by
    their paths. Of a record in state "extending" only the extents are taken that its
    superblock counts.

    Raises SacError as ``libsac.server.open_pool`` does; OSError where a file cannot be
    opened; CtlError for a folder that others may write to.
    """
    from libsac.server import Extent, open_pool

    held = present(record)
    paths = (held.meta, *held.data)
    if fds is not None:
        files = [Extent(*file) for file in zip(fds, paths, strict=False)]
        return open_pool(files[0], files[1:])
    with Places(record.uid) as places:
        open_folders(places, held)
        for path in paths:
            at, name = places.parent(path)
            places.files[path] = os.open(name, _FLAGS, dir_fd=at)
        files = [Extent(places.files[path], path) for path in paths]
        return open_pool(files[0], files[1:])
