# SPDX-License-Identifier: Apache-2.0
"""What stands against a pool's files, looked at before the first is made: room in the file
system, memory of the machine and of the control group, huge pages, limit on file sizes."""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from libsac.sizes import format_size
from sacctl.errors import CtlError, from_os
from sacctl.pool.mounts import Mount, free_huge_pages, more_pages, mount_of
from sacctl.pool.spec import HUGE

__all__ = ["Need", "check"]

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Need:
    """Files that are to come: their folder (perhaps not there yet) and sizes in bytes.

    room: bytes that they will fill; less than the sizes' sum where files stay sparse.
    huge: page size of the hugetlbfs they lie on, or "".
    """

    folder: str
    sizes: tuple[int, ...]
    room: int
    huge: str = ""


def check(name: str, needs: list[Need]) -> None:
    """Raises CtlError with both numbers at the first limit that a pool would hit."""
    memory = 0
    for need in needs:
        _file_size(name, need)
        mount = mount_of(_existing(need.folder))
        if need.huge:
            _huge_pages(name, need)
            continue
        _file_system(name, need, mount)
        if mount is not None and mount.in_memory:
            memory += need.room
    if memory:
        _memory(name, memory)


def _existing(folder: str) -> str:
    """The folder, or the nearest one above that is there."""
    path = Path(folder)
    while not path.exists() and path != path.parent:
        path = path.parent
    return str(path)


def _file_size(name: str, need: Need) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    largest = max(need.sizes)
    if limit != resource.RLIM_INFINITY and largest > limit:
        raise CtlError(
            f"pool '{name}' needs a file of {_mib(largest)}, the limit on file sizes "
            f"(RLIMIT_FSIZE) is {_mib(limit)}",
            object=name,
            errno=errno.EFBIG,
            hint="ulimit -f unlimited (root may raise it), or smaller extents",
        )


def _file_system(name: str, need: Need, mount: Mount | None) -> None:
    where = _existing(need.folder)
    try:
        fs = os.statvfs(where)
    except OSError as error:
        raise from_os(error, f"cannot ask for free space in {where}") from error
    free = fs.f_bavail * fs.f_frsize
    if need.room <= free:
        return
    point = mount.point if mount else where
    total = fs.f_blocks * fs.f_frsize + need.room - free + (1 << 20)
    more = (
        f"mount -o remount,size={total >> 20}M {point}"
        if mount and mount.in_memory
        else "free some room, or give another folder with --path"
    )
    raise _too_large(name, need.room, free, f"the file system {point}", more)


def _memory(name: str, room: int) -> None:
    free = _available()
    if free is not None and room > free:
        raise _too_large(
            name, room, free, "this machine's memory (MemAvailable)", "end what uses memory"
        )
    for where, left in _control_groups():
        if room > left:
            raise _too_large(
                name, room, left, f"the control group {where}", "raise its memory limit"
            )


def _huge_pages(name: str, need: Need) -> None:
    pages = sum(-(-size // HUGE[need.huge]) for size in need.sizes)
    free = free_huge_pages(need.huge) or 0
    if pages > free:
        raise CtlError(
            f"pool '{name}' needs {pages} pages of {need.huge}, {free} are free",
            object=name,
            errno=errno.ENOSPC,
            hint=f"as root: {more_pages(need.huge, pages - free)}, or a smaller pool",
        )


def _available() -> int | None:
    """Memory that can be had without hurting others: free, reclaimable, and swap."""
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    try:
        return sum(
            int(values.get(key, "0").split()[0]) << 10 for key in ("MemAvailable", "SwapFree")
        )
    except (ValueError, IndexError):
        return None


def _control_groups() -> list[tuple[str, int]]:
    """The control groups above this process that limit memory, and what each has left."""
    try:
        lines = CGROUP.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, used = CGROUP_ROOT, "memory.max", "memory.current"
            if (root / "unified").is_dir():
                root /= "unified"
        elif "memory" in controllers.split(","):
            root = CGROUP_ROOT / "memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = Path(os.path.normpath(str(root) + "/" + path))
        while group.is_relative_to(root):
            left = _left(group, limit, used)
            if left is not None:
                found.append((str(group), left))
            group = group.parent
    return found


def _left(group: Path, limit: str, used: str) -> int | None:
    try:
        most = (group / limit).read_text().strip()
        if most == "max" or int(most) >= 1 << 60:
            return None
        now = int((group / used).read_text())
        stats = dict(s.split() for s in (group / "memory.stat").read_text().splitlines())
        # Page cache that nobody uses goes when memory is asked for.
        reclaimable = int(stats.get("inactive_file", "0"))
    except (OSError, ValueError):
        return None
    return max(0, int(most) - now + reclaimable)


def _too_large(name: str, need: int, have: int, where: str, more: str) -> CtlError:
    return CtlError(
        f"pool '{name}' needs {_mib(need)}, {where} has {_mib(have)} left",
        object=name,
        errno=errno.ENOSPC,
        hint=f"{more}, or make the pool smaller",
    )


def _mib(size: int) -> str:
    return f"{size >> 20} MiB" if size < 1 << 60 else format_size(size)
