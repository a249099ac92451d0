# SPDX-License-Identifier: Apache-2.0
"""Takes a pool in system RAM apart: its tmpfs, its memory blocks, its bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sacctl.cxl.adopt import convert, judge
from sacctl.cxl.driver import ForgetId
from sacctl.cxl.made import Made
from sacctl.cxl.model import Topology
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import RefusedError
from sacctl.pool.attached import Unused
from sacctl.pool.cxl_files import open_device
from sacctl.pool.cxl_ram import is_mounted, run
from sacctl.pool.filesteps import OpenFiles, new_name
from sacctl.pool.places import Places
from sacctl.pool.record import Record
from sacctl.pool.recordsteps import Daemon, Withdraw
from sacctl.pool.scrub import zero
from sacctl.pool.steps import Step

__all__ = ["Release", "Unmounted", "released_memory"]


@dataclass(frozen=True, slots=True)
class Release:
    """unmount: the steps from a pool to no tmpfs. convert: then, from kmem to scrubbed
    memory under device_dax, planned over the machine as it is by then."""

    unmount: list[Step]
    convert: Callable[[Topology], list[Step]]


def released_memory(
    sysfs: Sysfs,
    topology: Topology,
    record: Record,
    places: Places,
    daemon: Daemon | None,
    note: Step,
    *,
    leak: bool,
) -> Release:
    """How a pool in system RAM is taken apart. Its pages have been all over its nodes, so all
    of their memory is scrubbed. note: the step that writes the record.

    Raises RefusedError where memory blocks can never go offline, unless leak.
    """
    part = record.cxl
    assert part is not None
    for region in part.regions:
        for name in region.dax:
            if topology.dax_device(name) is None:
                continue
            found = judge(topology, sysfs, name)
            if found.needs == "impossible" and not leak:
                raise RefusedError(found.message, object=name, hint=found.hint)
    steps: list[Step] = []
    if is_mounted(sysfs, part.mount):
        steps.append(OpenFiles(places, record, lock=False))
        if daemon is not None:
            steps.append(Withdraw(daemon, places, record))
        steps += [
            OpenFiles(places, record, lock=True),
            Unused(record.name, lambda: (record.meta, *record.data)),
        ]
    steps += [note, Unmounted(sysfs, record, places)]

    def planned(now: Topology) -> list[Step]:
        found: list[Step] = []
        for region in part.regions:
            names = [name for name in region.dax if now.dax_device(name) is not None]
            if not names or leak:
                continue
            made = Made(region.region, names)
            found += convert(sysfs, now, made, force_offline=True)
            found += [ForgetId(sysfs, _just(name), "kmem") for name in names]
            found += [ScrubDevice(sysfs, name, size) for name, size in zip(
                names, region.parts, strict=False)]  # fmt: skip
        return found

    return Release(steps, planned)


def _just(name: str) -> Callable[[], str]:
    return lambda: name


class ScrubDevice(Step):
    """Opens a dax device and zeroes it."""

    final = True

    def __init__(self, sysfs: Sysfs, name: str, size: int) -> None:
        self._path, self._size = str(sysfs.at(f"/dev/{name}")), size

    @property
    def what(self) -> str:
        return f"scrub {self._path} ({self._size >> 20} MiB)"

    def apply(self) -> None:
        fd = open_device(self._path)
        try:
            zero(fd, self._path, self._size)
        finally:
            os.close(fd)


class Unmounted(Step):
    """Takes the tmpfs away with all that is in it."""

    final = True

    def __init__(self, sysfs: Sysfs, record: Record, places: Places) -> None:
        self._sysfs, self._record, self._places = sysfs, record, places

    @property
    def _mount(self) -> str:
        part = self._record.cxl
        assert part is not None
        return part.mount

    @property
    def what(self) -> str:
        return f"umount {self._mount}"

    def apply(self) -> None:
        record, path = self._record, Path(self._mount)
        for file in (record.meta, *record.data):
            self._places.close_file(file)
        self._places.close_folder(str(path))
        if self._sysfs.simulated:
            for file in (record.meta, new_name(record.meta), *record.data):
                Path(file).unlink(missing_ok=True)
        elif is_mounted(self._sysfs, self._mount):
            run(["umount", self._mount])
        if path.is_dir():
            path.rmdir()
        with suppress(OSError):  # of other pools, if it is not empty
            path.parent.rmdir()
