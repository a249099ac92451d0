# SPDX-License-Identifier: Apache-2.0
"""Gives a CXL pool's devices to who may use them: udev's rules, and the running daemon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, NotFoundError
from sacctl.pool.acl import ShareFiles
from sacctl.pool.cxl_files import devices_of
from sacctl.pool.cxl_job import Job
from sacctl.pool.places import Places
from sacctl.pool.record import Record
from sacctl.pool.recordsteps import Daemon, HandOver, Withdraw
from sacctl.pool.steps import Step
from sacctl.pool.udevrule import ForgetDevices, MarkDevices, active, expect

__all__ = ["LetGo", "Unlisted", "WithdrawLost", "awaited", "forget", "hand_over", "mark"]

Now = Callable[[], Record]


def mark(job: Job) -> MarkDevices:
    """udev lets the daemon's group open the devices, where it runs with our rules."""
    return MarkDevices(
        job.sysfs, job.record.name, lambda: _devices(job.now()), lambda: _dax(job)
    )


def forget(sysfs: Sysfs, record: Record, stay: Sequence[str] = ()) -> ForgetDevices:
    """The way back; stay: dax devices that do not go."""
    return ForgetDevices(sysfs, record.name, lambda: tuple(stay))


def awaited(sysfs: Sysfs, record: Record) -> None:
    """udev has the pool assembled when its devices come, should they be missing now."""
    if record.cxl is not None:
        expect(sysfs, record.name, _devices(record))


def _devices(record: Record) -> Sequence[str]:
    assert record.cxl is not None
    every = [device for region in record.cxl.regions for device in region.devices]
    return [device for device in every if not device.startswith("hmem:")]


def _dax(job: Job) -> Sequence[str]:
    part = job.now().cxl
    assert part is not None
    return [name for region in part.regions for name in region.dax]


def hand_over(
    sysfs: Sysfs, daemon: Daemon, places: Places, record: Now
) -> tuple[Step, HandOver]:
    """Steps that give the open devices and files to the daemon."""
    return ShareNow(sysfs, daemon, places, record), HandOver(daemon, places, record)


class ShareNow(Step):
    """As ShareFiles, of files whose names are not known before. Devices that udev's rules
    have given to the daemon's group stay as they are."""

    def __init__(self, sysfs: Sysfs, daemon: Daemon, places: Places, record: Now) -> None:
        self._sysfs, self._daemon, self._places = sysfs, daemon, places
        self._record = record
        self._share: ShareFiles | None = None

    @property
    def what(self) -> str:
        user = self._daemon.peer.uid
        return f"let the daemon's user {user} open pool '{self._record().name}'"

    def apply(self) -> None:
        record, uid = self._record(), self._daemon.peer.uid
        paths = [record.meta, *record.data]
        if active(self._sysfs):
            paths = [path for path in paths if path not in devices_of(record)]
        if uid in (0, self._places.uid) or not paths:
            return
        self._share = ShareFiles(self._places, record.name, paths, uid)
        self._share.apply()

    def undo(self) -> None:
        if self._share is not None:
            self._share.undo()
            self._share = None


class LetGo(Step):
    """The daemon closes what it still has of a pool that lost a part of its memory: it has it
    locked, and a dax device that is open is not to be bound again. Not taken back: the pool
    stays lost until it is assembled."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        self._daemon, self._name = daemon, name

    @property
    def what(self) -> str:
        return f"have the daemon close what is left of pool '{self._name}'"

    def apply(self) -> None:
        with suppress(NotFoundError):
            self._daemon.call("pool.remove", name=self._name, lost=True)


class WithdrawLost(Withdraw):
    """Of a pool whose devices are not there: the daemon cannot be given it back."""

    def undo(self) -> None:
        self._done = False


class Unlisted(Step):
    """The daemon may have seen the record while this was at work, and listed the pool as one
    that is half destroyed."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        self._daemon, self._name = daemon, name

    @property
    def what(self) -> str:
        return f"have the daemon forget pool '{self._name}', if it looked meanwhile"

    def apply(self) -> None:
        with suppress(CtlError):
            self._daemon.call("pool.remove", name=self._name)
