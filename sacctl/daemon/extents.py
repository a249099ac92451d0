# SPDX-License-Identifier: Apache-2.0
"""The dax devices behind the extents of a pool: which they are, and whether they are still
the ones that were opened.

A device that went and came back has the same name and number, and its open files and
mappings are dead all the same. What tells is the kernel's own object: each new one gets
another inode in sysfs, the driver's link of a device as well.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sacctl.cxl.sysfs import Sysfs
from sacctl.pool.record import Record

__all__ = ["META", "Mark", "dax_name", "gone", "mark", "marks", "pages_gone"]

META = -1  # the number of the metadata extent
DRIVER = "device_dax"
DEVICES = "/sys/bus/dax/devices"
_DAX = re.compile(r"dax\d+\.\d+")


@dataclass(frozen=True, slots=True)
class Mark:
    """A dax device as it was when its extent was opened.

    Attributes:
        extent: number of the data extent, META for the metadata. dax: "dax0.0".
        key: of the kernel's objects: other ones mean that the open file is dead.
    """

    extent: int
    dax: str
    key: tuple[int, ...]


def dax_name(sysfs: Sysfs, path: str, fd: int | None = None) -> str:
    """The dax device that a path, or the open file, is; "" where it is none."""
    if fd is not None and not sysfs.simulated:
        found = os.fstat(fd)
        if not stat.S_ISCHR(found.st_mode):
            return ""
        number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
        name = sysfs.target(f"/sys/dev/char/{number}")
        return name if _DAX.fullmatch(name) else ""
    where = Path(path)
    if where.parent != sysfs.at("/dev") or not _DAX.fullmatch(where.name):
        return ""
    return where.name


def marks(sysfs: Sysfs, record: Record, fds: Sequence[int] = ()) -> tuple[Mark, ...]:
    """Of the pool's extents that are dax devices. fds: of meta and data, where they are open.

    Raises OSError for an fd that is not open.
    """
    found: tuple[Mark, ...] = ()
    for extent, path in enumerate((record.meta, *record.data), META):
        fd = fds[extent - META] if extent - META < len(fds) else None
        found += mark(sysfs, extent, path, fd)
    return found


def mark(sysfs: Sysfs, extent: int, path: str, fd: int | None = None) -> tuple[Mark, ...]:
    """Of one extent; none where it is no dax device. Raises OSError for an fd that is not
    open."""
    name = dax_name(sysfs, path, fd)
    return (Mark(extent, name, _key(sysfs, name)),) if name else ()


def gone(sysfs: Sysfs, mark: Mark) -> str:
    """Why the extent is dead, as a clause; "" while its device is the one that was opened."""
    device = f"{DEVICES}/{mark.dax}"
    if not sysfs.real(device):
        return f"{mark.dax} has gone"
    driver = sysfs.target(f"{device}/driver")
    if driver != DRIVER:
        return f"{mark.dax} {f'was given to {driver}' if driver else 'has no driver any more'}"
    if _key(sysfs, mark.dax) != mark.key:
        return f"{mark.dax} went and came back"
    return ""


def pages_gone(number: int) -> str:
    """For the log: "1 page is gone", "10 pages are gone"."""
    return "1 page is gone" if number == 1 else f"{number} pages are gone"


def _key(sysfs: Sysfs, dax: str) -> tuple[int, ...]:
    device = f"{DEVICES}/{dax}"
    try:
        # The folder itself, and the link in it: not the driver that it leads to.
        return (sysfs.at(device).stat().st_ino, sysfs.at(f"{device}/driver").lstat().st_ino)
    except OSError:
        return ()
