# SPDX-License-Identifier: Apache-2.0
"""Opens the pool of a record, to serve it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import NotFoundError
from sacctl.pool.boot import boot_id
from sacctl.pool.cxl_record import CxlPart
from sacctl.pool.extend import present
from sacctl.pool.filesteps import open_folders
from sacctl.pool.places import Places
from sacctl.pool.record import Record

if TYPE_CHECKING:
    from libsac.server import SharedPool

__all__ = ["open_files", "open_record"]

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


def open_record(
    record: Record, fds: Sequence[int] | None = None, sysfs: Sysfs | None = None
) -> SharedPool:
    """The pool, open and locked by this process; the record itself is not changed.

    fds: of meta and then the data files, which stay the caller's; None opens the files by
    their paths. Of a record in state "extending" only the extents are taken that its
    superblock counts. sysfs: of the machine that the devices are of; None: this one.

    Raises SacError as ``libsac.server.open_pool`` does; OSError where a file cannot be
    opened; CtlError for a folder that others may write to.
    """
    from libsac.server import Extent, open_pool

    held = present(record)
    own = open_files(held, sysfs) if fds is None else []
    weights = [1, *(region.weight for region in held.cxl.regions)] if held.cxl else []
    weights += [1] * (1 + len(held.data) - len(weights))
    try:
        named = zip(own or fds or (), (held.meta, *held.data), weights, strict=False)
        files = [Extent(*file) for file in named]
        return open_pool(files[0], files[1:])
    finally:
        for fd in own:
            os.close(fd)


def open_files(record: Record, sysfs: Sysfs | None = None) -> list[int]:
    """Opens the files of a pool by their paths: meta, then data. The caller closes them.

    Raises OSError where one cannot be opened; CtlError for a folder that others may write to,
    and for a CXL pool that is not assembled.
    """
    if record.cxl is not None:
        machine = sysfs or Sysfs(os.environ.get("SAC_SYSROOT") or "/")
        _assembled(record, record.cxl, machine)
    with Places(record.uid) as places:
        open_folders(places, record)
        for path in (record.meta, *record.data):
            at, name = places.parent(path)
            try:
                places.files[path] = os.open(name, _FLAGS, dir_fd=at)
            except OSError as error:
                if record.cxl is None or error.errno not in (errno.ENOENT, errno.ENXIO):
                    raise
                raise _absent(record, path, error) from error
        fds = [places.files[path] for path in (record.meta, *record.data)]
        places.files.clear()  # they are the caller's now
        return fds


def _assembled(record: Record, part: CxlPart, sysfs: Sysfs) -> None:
    """Whether the names in the record are of this boot: those of another are strangers'."""
    if part.boot == boot_id(sysfs):
        return
    raise NotFoundError(
        f"pool '{record.name}' is not assembled since the machine started",
        object=record.name,
        hint=f"sudo sacctl pool assemble {record.name}",
    )


def _absent(record: Record, path: str, error: OSError) -> NotFoundError:
    why = "is not there" if error.errno == errno.ENOENT else "is not bound to device_dax"
    return NotFoundError(
        f"{path} of pool '{record.name}' {why}",
        object=path,
        errno=error.errno or 0,
        hint=f"sudo sacctl pool assemble {record.name}, which says what is missing",
    )
