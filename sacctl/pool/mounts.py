# SPDX-License-Identifier: Apache-2.0
"""File systems that memory can be had from: what is mounted where, and what is free there."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from libsac.sizes import format_size
from sacctl.errors import CtlError, DeniedError
from sacctl.pool.spec import HUGE

__all__ = ["Mount", "free_huge_pages", "huge_mount", "mount_of", "mounts"]

MOUNTS = Path("/proc/self/mounts")
HUGEPAGES = Path("/sys/kernel/mm/hugepages")
MEMORY_TYPES = ("tmpfs", "ramfs", "devtmpfs")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system. page: of a hugetlbfs, bytes; else 0."""

    point: str
    type: str
    page: int

    @property
    def in_memory(self) -> bool:
        return self.type in MEMORY_TYPES


def mounts() -> list[Mount]:
    """All of them, in the order of mounting. Without /proc: none."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        # Blanks and the like are written as octal escapes.
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[1])
        page = _page(fields[3]) if fields[2] == "hugetlbfs" else 0
        found.append(Mount(point, fields[2], page))
    return found


def _page(options: str) -> int:
    match = re.search(r"(?:^|,)pagesize=(\d+)([KMG]?)", options)
    if match is None:
        return 0
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def mount_of(path: str | os.PathLike[str]) -> Mount | None:
    """The mount that path lies on; the last one of the longest name counts."""
    where = os.path.realpath(path)
    best: Mount | None = None
    for mount in mounts():
        root = mount.point.rstrip("/") + "/"
        inside = where + "/" == root or where.startswith(root)
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def huge_mount(huge: str) -> str:
    """The first hugetlbfs of that page size that this process may write to.

    Raises CtlError where none is mounted, DeniedError where none may be written to; the hint
    is the command that makes one.
    """
    page = HUGE[huge]
    fitting = [mount.point for mount in mounts() if mount.page == page]
    for point in fitting:
        if os.access(point, os.W_OK | os.X_OK):
            return point
    make = (
        f"as root: mkdir -p /mnt/huge-{huge} && "
        f"mount -t hugetlbfs -o pagesize={huge},mode=1777 none /mnt/huge-{huge}"
    )
    if fitting:
        raise DeniedError(
            f"the hugetlbfs with pages of {huge} ({', '.join(fitting)}) may not be written to",
            object=fitting[0],
            hint=make,
        )
    free = free_huge_pages(huge)
    pages = "this kernel has none of that size" if free is None else f"{free} are free"
    raise CtlError(
        f"no hugetlbfs with pages of {huge} is mounted (of the pages {pages})",
        hint=make + (f" (after: {more_pages(huge, 512)})" if not free else ""),
    )


def free_huge_pages(huge: str) -> int | None:
    """Huge pages that are free and not promised to a mapping; None: no such page size."""
    folder = HUGEPAGES / f"hugepages-{HUGE[huge] >> 10}kB"
    try:
        free, promised = (
            int((folder / f"{name}_hugepages").read_text()) for name in ("free", "resv")
        )
    except (OSError, ValueError):
        return None
    return max(0, free - promised)


def more_pages(huge: str, pages: int) -> str:
    """The command that gives the kernel so many huge pages more than it has."""
    file = HUGEPAGES / f"hugepages-{HUGE[huge] >> 10}kB" / "nr_hugepages"
    with suppress(OSError, ValueError):
        pages += int(file.read_text())
    return f"echo {pages} > {file} ({format_size(pages * HUGE[huge])})"
