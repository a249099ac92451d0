# SPDX-License-Identifier: Apache-2.0
"""Steps from devices to a pool's dax devices, and from what is left of them to nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sacctl.cxl import adopt, daxsteps, regionsteps
from sacctl.cxl.bandwidth import estimate
from sacctl.cxl.driver import ForgetId, Unbind
from sacctl.cxl.guard import AUTO_ONLINE, NOTE, Guard, left_behind
from sacctl.cxl.made import Made
from sacctl.cxl.model import DaxDevice, Topology
from sacctl.cxl.read import read
from sacctl.cxl.regiondestroy import DeleteDax, destroy, free_dpa
from sacctl.cxl.regionplan import RegionPlan
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.writes import Write
from sacctl.errors import CtlError, NotFoundError, RefusedError
from sacctl.pool.attached import Unused
from sacctl.pool.boot import boot_id
from sacctl.pool.cxl_find import Rest, rest
from sacctl.pool.cxl_job import Job
from sacctl.pool.cxl_record import CxlPart, RegionPart
from sacctl.pool.cxl_room import in_room
from sacctl.pool.cxl_taken import names_of_others
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import WriteRecord
from sacctl.pool.steps import Step

__all__ = ["Named", "NoteChange", "Wanted", "clearing", "making", "removed_dax", "weights"]

MOST_WEIGHT = 64


@dataclass(frozen=True, slots=True)
class Wanted:
    """A region of a pool and what there is of it. plan: it is to be made; None: it is there,
    named region ("" of hmem), with these dax devices."""

    plan: RegionPlan | None
    region: str
    part: RegionPart
    devices: tuple[DaxDevice, ...] = ()


def weights(topology: Topology, plans: Sequence[RegionPlan]) -> list[int]:
    """Pages that each region gets beside the others: by bandwidth as far as links say, else
    by their devices."""
    speeds = [estimate(topology, [plan]).bytes_per_second for plan in plans]
    if not all(speeds):
        speeds = [plan.ways for plan in plans]
    least = min(speeds)
    return [min(MOST_WEIGHT, max(1, round(speed / least))) for speed in speeds]


def making(job: Job, wanted: Sequence[Wanted]) -> list[Step]:
    """Steps to the dax devices of all regions, bound as the pool's mode needs them. job.made
    gets their names. Raises RefusedError for a region that is divided in another way."""
    part = job.record.cxl
    assert part is not None
    guard = Guard(job.sysfs)
    steps: list[Step] = [Restored(job.sysfs), *guard.begin]
    driver = "kmem" if part.mount else "device_dax"
    for number, (made, want) in enumerate(zip(job.made, wanted, strict=True)):
        if part.parent:
            return _room(job, made, want)
        if want.plan is None:
            steps += [*_unused(job, want, driver), *_there(job.sysfs, made, want, driver)]
            continue
        new, *more = regionsteps.create(job.sysfs, want.plan, made)
        # Named in the record at once: what is not named there is nobody's to clear.
        steps += [new, Named(job), *more]
        made.expected = _after(made.expected, number)
        if not part.mount:
            steps += daxsteps.split(job.sysfs, made, want.part.parts)
            which = range(len(want.part.parts))
            steps += daxsteps.bind(job.sysfs, made, driver, which)
    steps += guard.end
    if part.mount:
        # Otherwise the kernel may put the memory online by itself, in a zone for good.
        offline = KeepOffline(job.sysfs)
        steps += offline.begin
        for made, want in zip(job.made, wanted, strict=True):
            if want.plan is not None:
                steps += daxsteps.bind(job.sysfs, made, driver)
        steps += offline.end
    return steps


class Named(Step):
    """Writes the name of the region that was just made into the record."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def what(self) -> str:
        return f"name the region in the record of pool '{self._job.record.name}'"

    def apply(self) -> None:
        self._job.noted()


class KeepOffline(Guard):
    """The guard's other switch: new memory stays offline."""

    @property
    def path(self) -> str:
        return AUTO_ONLINE


def _room(job: Job, made: Made, want: Wanted) -> list[Step]:
    """Steps for a pool in the room of another one's region."""
    topology = read(job.sysfs)
    region = topology.region(want.region)
    if region is None:
        raise NotFoundError(f"there is no {want.region}", object=want.region)
    return in_room(job.sysfs, topology, made, region, want.part, job.record.name)


def _unused(job: Job, want: Wanted, driver: str) -> list[Step]:
    """Nobody may use the dax devices that are to be bound or divided; those that stay as they
    are may be in use."""
    parts = want.part.parts
    mine = want.devices
    if tuple(dax.bytes for dax in mine[: len(parts)]) == parts:
        mine = tuple(dax for dax in mine[: len(parts)] if dax.driver != driver)
    paths = [job.path(dax.name) for dax in mine]
    return [Unused(job.record.name, lambda: paths)] if paths else []


def _after(expected: str, number: int) -> str:
    """The name the kernel will give when so many regions have been made before."""
    match = re.fullmatch(r"region(\d+)", expected)
    return f"region{int(match[1]) + number}" if match else ""


def _there(sysfs: Sysfs, made: Made, want: Wanted, driver: str) -> list[Step]:
    """Steps for a region that is there already: divided as recorded, or not at all."""
    sizes, parts = [dax.bytes for dax in want.devices], list(want.part.parts)
    which = range(len(parts))
    made.region = want.region
    if sizes[: len(parts)] == parts:
        made.dax[:] = [dax.name for dax in want.devices[: len(parts)]]
        wrong = [i for i in which if want.devices[i].driver != driver]
        return daxsteps.bind(sysfs, made, driver, wrong, unbind=True)
    if len(want.devices) != 1 or sizes[0] < sum(parts):
        shown = ", ".join(f"{dax.name} of {dax.bytes >> 20} MiB" for dax in want.devices)
        raise RefusedError(
            f"{want.region or 'the memory'} is divided into {shown or 'nothing'}, and the pool "
            f"has {' and '.join(f'{size >> 20} MiB' for size in parts)} there",
            object=want.region,
            hint="sacctl device topology; remove the dax devices that are in the way",
        )
    made.dax[:] = [want.devices[0].name]
    return [
        *adopt.release(sysfs, read(sysfs), made),
        *daxsteps.split(sysfs, made, parts),
        *daxsteps.bind(sysfs, made, driver, which),
    ]


class Restored(Step):
    """Puts back what a command that was killed has left switched."""

    what = "put back what a killed command has left switched, if any did"

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs

    def apply(self) -> None:
        for path, value in left_behind(self._sysfs).items():
            Write(self._sysfs, "guard", path, value).apply()
        self._sysfs.at(NOTE).unlink(missing_ok=True)


class NoteChange(WriteRecord):
    """Says in the record what is about to be made. Undone, the record stays as long as
    something of it is left that could not be taken back, for the next command to clear."""

    def __init__(self, job: Job, records: Records, before: Record | None, state: str) -> None:
        super().__init__(records, before, job.now, state)
        self._job = job

    def apply(self) -> None:
        super().apply()
        self._job.noted = super().apply

    def undo(self) -> None:
        part, sysfs = self._job.now().cxl, self._job.sysfs
        assert part is not None
        others = names_of_others(self._records, self._job.record.name, boot_id(sysfs))
        left = rest(read(sysfs), part, others) if self._written else None
        if left:
            name = self._job.record.name
            raise CtlError(
                f"the record stays, for what is left: {left}",
                object=name,
                hint=f"sacctl pool destroy {name}",
            )
        super().undo()


def clearing(
    sysfs: Sysfs,
    topology: Topology,
    left: Rest,
    part: CxlPart,
    *,
    allow_leak: bool = False,
) -> list[Step]:
    """Steps that take away what a change that was cut off has left, and put back what it had
    switched. Raises RefusedError where memory is in use."""
    guard = Guard(sysfs)
    steps: list[Step] = [Restored(sysfs), *guard.begin, *guard.end]
    for name in reversed(left.regions):
        steps += destroy(sysfs, topology, name, force_offline=True, allow_leak=allow_leak)
    for dax in topology.dax:
        if dax.region in left.regions:
            # A driver may still know the name, which a later device may get.
            steps += [ForgetId(sysfs, _just(dax.name), d) for d in ("device_dax", "kmem")]
    order = sorted(left.decoders, key=lambda name: -int(name.rpartition(".")[2]))
    steps += free_dpa(sysfs, order)
    if part.adopted or part.parent:
        steps += removed_dax(sysfs, topology, part.regions[0], left.dax, part.adopted)
    return steps


def removed_dax(
    sysfs: Sysfs, topology: Topology, region: RegionPart, names: Sequence[str], merge: bool
) -> list[Step]:
    """Steps that remove these dax devices of a region that stays; merge: its first one gets
    back what it had before it was divided."""
    steps: list[Step] = []
    for name in reversed(names):
        steps += [*_released(sysfs, name)]
        size = sysfs.number(f"{daxsteps.DEVICES}/{name}/size")
        at = f"{daxsteps.DEVICES}/{name}/size"
        steps += [Write(sysfs, "dax-size", at, "0", str(size)), DeleteDax(sysfs, name)]
    first = topology.dax_device(region.dax[0]) if merge and region.dax else None
    if first is None or not region.whole or first.name in names:
        return steps
    if first.bytes == region.whole and first.driver:
        # Never divided; or nothing was done to it yet, and kmem has it still: memory that
        # somebody uses is not taken from him to give back what was not taken.
        return steps
    at = f"{daxsteps.DEVICES}/{first.name}/size"
    made = Made(region.region, [first.name])
    node = str(sysfs.at(f"/dev/{first.name}"))
    return [
        *steps,
        Unused(first.name, lambda: (node,), of=first.name),
        *_released(sysfs, first.name),
        Write(sysfs, "dax-size", at, str(region.whole), str(first.bytes)),
        *daxsteps.bind(sysfs, made, "device_dax"),
    ]


def _released(sysfs: Sysfs, name: str) -> list[Step]:
    return [Unbind(sysfs, _just(name)), ForgetId(sysfs, _just(name), "device_dax")]


def _just(name: str) -> Callable[[], str]:
    return lambda: name
