# SPDX-License-Identifier: Apache-2.0
"""Who has a dax device open or mapped.

The kernel takes a dax device from whoever uses it, without asking. Worse, device_dax bound
again to a device that somebody still has open from before corrupts the kernel. So both are
refused while there is anybody.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import RefusedError
from sacctl.pool.steps import Step

__all__ = ["RefuseUsed", "holders", "program", "refuse_used", "way_out"]

DAEMON = "the daemon"

_PROC = Path("/proc")  # of this machine also where the tree is simulated: users are real


def holders(sysfs: Sysfs, name: str) -> list[str]:
    """Processes that have the dax device open or mapped: "process 123 (python3)",
    "process 12 (the daemon)". Other users' processes are seen by root only."""
    try:
        there = sysfs.at(f"/dev/{name}").stat()
    except OSError:
        return []
    wanted = _key(there)
    found = []
    for process in _PROC.iterdir():
        if process.name.isdigit() and (_open(process, wanted) or _mapped(process, there)):
            found.append(f"process {process.name} ({program(process)})")
    return sorted(found)


def refuse_used(sysfs: Sysfs, name: str) -> None:
    """Raises RefusedError, which names the processes, where there are any."""
    found = holders(sysfs, name)
    if found:
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        raise RefusedError(
            f"{name} is in use by {', '.join(found[:4])}{more}",
            object=name,
            hint=way_out(found),
        )


def program(process: Path) -> str:
    """What a process of /proc runs; "the daemon" for ours. "" where it has just ended."""
    words: list[str] = []
    with suppress(OSError):
        words = (process / "cmdline").read_text(errors="replace").split("\0")
    if any("sacctl" in word for word in words) and "daemon" in words and "run" in words:
        return DAEMON
    with suppress(OSError):
        return (process / "comm").read_text().strip()
    return ""


def way_out(users: Iterable[str]) -> str:
    """What an administrator can do about them, as a hint."""
    daemon = [DAEMON in user for user in users]
    if not any(daemon):
        return "end them, then try again"
    restart = "restart the daemon (systemctl restart sacd)"
    return f"{restart}{'' if all(daemon) else ', and end the others'}; then try again"


class RefuseUsed(Step):
    """Fails where somebody has the dax device open when its turn comes."""

    def __init__(self, sysfs: Sysfs, name: Callable[[], str]) -> None:
        self._sysfs, self._name = sysfs, name

    @property
    def what(self) -> str:
        return f"check that nobody has {self._name()} open"

    def apply(self) -> None:
        refuse_used(self._sysfs, self._name())


def _key(found: os.stat_result) -> tuple[int, ...]:
    if stat.S_ISCHR(found.st_mode):
        return (found.st_rdev,)
    return (found.st_dev, found.st_ino)


def _open(process: Path, wanted: tuple[int, ...]) -> bool:
    with suppress(OSError):
        for fd in (process / "fd").iterdir():
            # The name first: looking at what is open may wait for a dead server.
            with suppress(OSError):
                if _named_dax(str(fd.readlink())) and _key(fd.stat()) == wanted:
                    return True
    return False


def _mapped(process: Path, there: os.stat_result) -> bool:
    device = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}"
    node = [device, str(there.st_ino)]
    with suppress(OSError), (process / "maps").open(errors="replace") as maps:
        for line in maps:
            words = line.rstrip("\n").split(None, 5)
            if words[3:5] == node:
                return True
            if len(words) == 6 and _named_dax(words[5]):
                # A container has a node of its own for the same device.
                with suppress(OSError):
                    if _key((process / "map_files" / words[0]).stat()) == _key(there):
                        return True
    return False


def _named_dax(path: str) -> bool:
    """A dax device that went and was made anew has another node, and maybe the same number:
    who still has the old one does no harm."""
    return "dax" in path and not path.endswith(" (deleted)")
