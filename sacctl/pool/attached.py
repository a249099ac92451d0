# SPDX-License-Identifier: Apache-2.0
"""Who has a pool's memory mapped or open.

Unbinding a DAX device kills with SIGBUS who touches its memory then; and binding device_dax
to it again while somebody still has it open corrupts the kernel's own counts (6.12, 7.3).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from sacctl.cxl.users import program, way_out
from sacctl.errors import RefusedError
from sacctl.pool.steps import Step

__all__ = ["Unused", "mappers", "refuse_mapped"]

PROC = Path("/proc")


def mappers(paths: Iterable[str]) -> list[tuple[int, str]]:
    """Process and program of everybody who has one of these files mapped or open; our daemon
    is called "the daemon".

    Of other users' processes only root sees it. This process is left out.
    """
    wanted = set(paths)
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if _mapped(entry, wanted) or _open(entry, wanted):
                found.append((int(entry.name), program(entry)))
    return sorted(found)


def _mapped(process: Path, wanted: set[str]) -> bool:
    text = (process / "maps").read_text(errors="surrogateescape")
    return any(line.split(None, 5)[5] in wanted for line in text.splitlines() if "/" in line)


def _open(process: Path, wanted: set[str]) -> bool:
    for fd in (process / "fd").iterdir():
        with suppress(OSError):
            if str(fd.readlink()) in wanted:
                return True
    return False


class Unused(Step):
    """Fails where somebody has the memory mapped or open when its turn comes."""

    def __init__(self, name: str, paths: Callable[[], Iterable[str]], of: str = "") -> None:
        """of: whose memory it is, where it is not the pool's that is called name."""
        self._name, self._paths, self._of = name, paths, of or f"pool '{name}'"

    @property
    def what(self) -> str:
        return f"check that nobody has the memory of {self._of} mapped or open"

    def apply(self) -> None:
        refuse_mapped(self._name, self._paths())


def refuse_mapped(name: str, paths: Iterable[str]) -> None:
    """Raises RefusedError naming the processes, where there are any."""
    users = mappers(paths)
    if not users:
        return
    who = ", ".join(f"{program} ({pid})" for pid, program in users[:8])
    raise RefusedError(
        f"pool '{name}' is in use: its memory is mapped or open in {who}; taking it away "
        "would kill them with SIGBUS",
        object=name,
        hint=way_out(program for _, program in users),
    )
