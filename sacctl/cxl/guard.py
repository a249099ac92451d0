# SPDX-License-Identifier: Apache-2.0
"""Keeps the kernel from making system RAM of new memory while a pool is made of it.

From kernel 6.3 on a new dax device of a region goes to the driver kmem, and its memory may be
put online at once, for good. So probing on the DAX bus is switched off while a region is
enabled, and switched back afterwards to what it was. Where a kernel has no such switch, memory
is kept offline instead (auto_online_blocks), so that kmem can be made to let go of it.

What it was is kept in a file in /run while it is switched: a command that was killed leaves
the file, and the next one restores from it what no one else could know.
"""

from __future__ import annotations

import errno
from contextlib import suppress

from sacctl.cxl.meanings import failed
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.writes import echo
from sacctl.files import read_regular, write_whole
from sacctl.pool.steps import Step

__all__ = ["AUTOPROBE", "NOTE", "Guard", "left_behind"]

AUTOPROBE = "/sys/bus/dax/drivers_autoprobe"
AUTO_ONLINE = "/sys/devices/system/memory/auto_online_blocks"
NOTE = "/run/sac-cxl-guard"  # not in /run/sac, which is another user's
_MOST = 4096  # bytes of it
_OFF = {AUTOPROBE: "0", AUTO_ONLINE: "offline"}
_VALUES = {
    AUTOPROBE: ("0", "1"),
    AUTO_ONLINE: ("offline", "online", "online_kernel", "online_movable"),
}


class Guard:
    """begin goes before the first step that enables a region or unbinds a driver, end behind
    the last that binds one. Undoing either puts back what it changed: at any failure the
    setting is in the end what it was before begin.

    Other sacctl commands must be kept out meanwhile (the lock on the folder of records).
    """

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self.begin: list[Step] = [_Hold(self)]
        self.end: list[Step] = [_Release(self)]
        self._before = ""
        self._held = ""

    @property
    def path(self) -> str:
        """The attribute that is switched."""
        for path in (AUTOPROBE, AUTO_ONLINE):
            if self._sysfs.exists(path):
                return path
        return AUTOPROBE

    @property
    def before(self) -> str:
        """What it was, or is."""
        return self._before or _noted(self._sysfs).get(self.path) or self._now()

    def hold(self) -> None:
        path = self.path
        if not self._sysfs.exists(path):
            return  # a kernel without DAX has nothing that could be bound
        self._before = self.before
        self._note(path, self._before)
        self._held = path
        if self._now() != _OFF[path]:
            self._write(path, _OFF[path])

    def release(self) -> None:
        if not self._held:
            return
        if self._now() != self._before:
            self._write(self._held, self._before)
        self._held = ""
        with suppress(FileNotFoundError):
            self._sysfs.at(NOTE).unlink()

    def _now(self) -> str:
        return self._sysfs.get(self._held or self.path).strip()

    def _write(self, path: str, value: str) -> None:
        try:
            self._sysfs.write(path, value)
        except OSError as error:
            raise failed(self._sysfs, "guard", echo(path, value), error) from error

    def _note(self, path: str, value: str) -> None:
        file = self._sysfs.at(NOTE)
        try:
            file.parent.mkdir(0o755, parents=True, exist_ok=True)
            write_whole(file, f"{path} {value}\n".encode(), 0o644)
        except OSError as error:
            # Without the note only a kill would leave the switch off; root can always write it.
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise


class _Hold(Step):
    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    @property
    def what(self) -> str:
        return echo(self._guard.path, _OFF[self._guard.path])

    def apply(self) -> None:
        self._guard.hold()

    def undo(self) -> None:
        self._guard.release()


class _Release(Step):
    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    @property
    def what(self) -> str:
        return echo(self._guard.path, self._guard.before or "1")

    def apply(self) -> None:
        self._guard.release()

    def undo(self) -> None:
        self._guard.hold()


def left_behind(sysfs: Sysfs) -> dict[str, str]:
    """Attributes that a killed command left switched, and what they were before."""
    noted = _noted(sysfs)
    return {path: value for path, value in noted.items() if sysfs.get(path).strip() != value}


def _noted(sysfs: Sysfs) -> dict[str, str]:
    try:
        text = read_regular(sysfs.at(NOTE), _MOST).decode()
    except (OSError, ValueError):
        return {}
    path, _, value = text.strip().partition(" ")
    return {path: value} if value in _VALUES.get(path, ()) else {}
