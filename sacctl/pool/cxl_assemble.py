# SPDX-License-Identifier: Apache-2.0
"""Makes the devices of a recorded pool again, after a reboot or a device's return."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sacctl.cxl.made import Made
from sacctl.cxl.read import read
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, RefusedError, UsageError
from sacctl.pool.boot import boot_id
from sacctl.pool.create import Created
from sacctl.pool.cxl_content import Anew, Content, Distrust
from sacctl.pool.cxl_files import CheckExtents, FormatExtents, OpenDevices, OpenMeta
from sacctl.pool.cxl_hand import LetGo, hand_over, mark
from sacctl.pool.cxl_job import Job, before, need_root
from sacctl.pool.cxl_present import clear, located, planned_clear, served, standing, whole
from sacctl.pool.cxl_ram import is_mounted, memory_steps
from sacctl.pool.cxl_regions import NoteChange, making
from sacctl.pool.cxl_taken import names_of_others, pools_named, refuse_order, refuse_shared
from sacctl.pool.cxl_wanted import renamed, what_is_wanted
from sacctl.pool.filesteps import OpenFiles
from sacctl.pool.later import Later, planned
from sacctl.pool.places import Places
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import (
    Daemon,
    HandOver,
    TakeRecords,
    WriteRecord,
    records_taken,
)
from sacctl.pool.steps import Say, Step, carry_out
from sacctl.pool.udevrule import active

__all__ = ["Assembled", "assemble"]


@dataclass(slots=True)
class Assembled:
    """What came of it. changed: something had to be made. formatted: its memory had lost its
    content; forced: or had another one, which was given up. checked: its memory was away, so
    only pages with a checksum that holds are kept. served: a daemon has it. pool: the daemon's
    record of it. pages: how many there are now, in all namespaces; None where no daemon says
    so."""

    record: Record
    changed: bool = False
    formatted: bool = False
    served: bool = False
    steps: list[str] = field(default_factory=list)
    pool: dict[str, Any] = field(default_factory=dict)
    checked: bool = False
    pages: int | None = None
    forced: bool = False

    def as_created(self) -> Created:
        """For a creation that found the pool there."""
        return Created(self.record, False, self.served, self.steps, self.pool)


def assemble(
    name: str,
    sysfs: Sysfs,
    records: Records,
    *,
    daemon: Daemon | None = None,
    dry_run: bool = False,
    half_destroyed: bool = False,
    anew: bool = False,
    say: Say = lambda _: None,
) -> Assembled:
    """Makes regions and devices of the pool as they are recorded, looks what pool is on them,
    and hands them to the daemon, if one runs. What is there already stays.

    half_destroyed: also of a pool whose destruction was cut off, so that it can go on.
    anew: memory that holds something else than this pool is formatted, too.

    Memory that holds no pool any more (it lost its power) gets a new one. Raises
    NotFoundError where devices are missing, RefusedError where the memory holds another pool,
    or pieces of pools out of their places, or the record says that it is half made; CtlError,
    BusyError, DeniedError, PartlyError as create(). After an error nothing half made is left.
    """
    if not dry_run:
        need_root(sysfs, f"sacctl pool assemble {name}")
    record = records.get(name)
    part = record.cxl
    if part is None:
        raise CtlError(
            f"pool '{name}' is emulated: there is nothing to assemble",
            object=name,
            hint=f"sacctl pool create {name} with the same options makes its files anew",
        )
    if record.state == "creating" or (record.state == "destroying" and not half_destroyed):
        raise RefusedError(
            f"pool '{name}' was left half "
            f"{'made' if record.state == 'creating' else 'destroyed'}",
            object=name,
            hint=f"sacctl pool destroy {name}",
        )
    if served(daemon, record):
        return Assembled(record, served=True)
    if daemon is None and whole(sysfs, record, part):
        return Assembled(record)
    take = TakeRecords(records, name, record)
    with records_taken(take, say, dry_run=dry_run), Places(record.uid) as places:
        topology = read(sysfs)
        refuse_shared(record, topology, sysfs, records)
        if located(topology, part, boot_id(sysfs)) is None:
            refuse_order(record, topology, sysfs, records, destroy=False)
        if not dry_run:
            clear(sysfs, record, records, say)
        else:
            dead, more = planned_clear(sysfs, record, records)
            if dead:
                let_go: list[Step] = [LetGo(daemon, name)] if daemon and more else []
                steps = planned([take, *dead, *let_go, *more])
                return Assembled(record, True, steps=[*steps, _again(name)])
        return _assemble(
            record, sysfs, records, places, daemon, dry_run, say, half_destroyed, anew
        )


def _assemble(
    record: Record,
    sysfs: Sysfs,
    records: Records,
    places: Places,
    daemon: Daemon | None,
    dry_run: bool,
    say: Say,
    half_destroyed: bool,
    anew: bool,
) -> Assembled:
    part = record.cxl
    assert part is not None
    topology = read(sysfs)
    boot = boot_id(sysfs)
    job = Job(sysfs, record.with_(cxl=part.with_(before=before(topology), boot=boot)))
    there = located(topology, part, boot)
    build: list[Step] = []
    if there is not None:
        job.made = there
    else:
        others = names_of_others(records, record.name, boot)
        try:
            with pools_named(records, boot):
                wanted = what_is_wanted(record, topology, part.boot == boot, others)
        except (UsageError, RefusedError):
            steps = standing(sysfs, topology, record, records)
            if not steps:
                raise
            let_go = [LetGo(daemon, record.name)] if daemon else []
            steps = [*let_go, *steps]
            if dry_run:
                return Assembled(record, True, steps=[*planned(steps), _again(record.name)])
            carry_out(steps, say, again=f"sacctl pool assemble {record.name}")
            topology = read(sysfs)
            job.record = record.with_(cxl=part.with_(before=before(topology), boot=boot))
            wanted = what_is_wanted(record, topology, True, others)
        job.made = [Made(want.region) for want in wanted]
        job.record = renamed(job.record, wanted)
        build = [NoteChange(job, records, record, "assembling"), *making(job, wanted)]
    if part.mount:
        return _memory(job, records, record, places, build, daemon, dry_run, say)
    form = FormatExtents(places, job.now)
    content = Content(places, job.now, records, torn=half_destroyed, anew=anew)
    check = CheckExtents(places, job.now, form.uuid)
    # Opened once more than a pool that was just made, so that it never counts as untouched:
    # behind the superblocks there may still be pages, to be scrubbed when it is destroyed.
    fresh: list[Step] = [Anew(places, job.now, records), form, check, check]
    look: list[Step] = [
        *([LetGo(daemon, record.name)] if daemon else []),
        *build,
        OpenDevices(places, job.now, own=not active(sysfs)),
        OpenMeta(places, record),
        mark(job),
        content,
        *([Distrust(places, job.now)] if build else []),
    ]

    def whole() -> Record:
        now = job.now()
        now_part = now.cxl and now.cxl.with_(before=(), decoders=())
        return now.with_(state="ready", cxl=now_part, uuid=form.uuid() or record.uuid)

    end, hand = ending(job, records, record, places, daemon, whole)
    if dry_run:
        steps = [*look, *end]
        return Assembled(record, bool(build), False, False, planned(steps))
    steps = _carry(look, content, fresh, end, say, record.name)
    return Assembled(
        records.get(record.name),
        bool(build),
        bool(form.uuid()),
        hand is not None,
        planned(steps),
        hand.pool if hand else {},
        checked=bool(build) and not content.empty,
        pages=_pages(daemon, record.name) if daemon and build else None,
        forced=content.forced,
    )


def _again(name: str) -> str:
    """What a plan says of what can be planned only when other steps are done."""
    return f"make the regions of pool '{name}' again as recorded, and open it"


def _pages(daemon: Daemon, name: str) -> int | None:
    """Of a pool that was just handed over; nothing that is worth an error."""
    with suppress(CtlError):
        spaces = daemon.call("pool.show", name=name).get("namespaces", ())
        return sum(int(space["pages"]) for space in spaces)
    return None


def _memory(
    job: Job,
    records: Records,
    record: Record,
    places: Places,
    build: list[Step],
    daemon: Daemon | None,
    dry_run: bool,
    say: Say,
) -> Assembled:
    """A pool in system RAM: what it held went with its tmpfs."""
    part = record.cxl
    assert part is not None
    mounted = not build and is_mounted(job.sysfs, part.mount)
    uuid: Callable[[], str] = lambda: record.uuid  # noqa: E731 -- one of two
    steps = build
    if mounted:
        steps = [OpenFiles(places, record, lock=False)]
    else:
        uuid, files = memory_steps(job, places)
        steps = [*build, *files]

    def whole() -> Record:
        now = job.now()
        now_part = now.cxl and now.cxl.with_(before=(), decoders=())
        return now.with_(state="ready", cxl=now_part, uuid=uuid())

    end, hand = ending(job, records, record, places, daemon, whole)
    steps = [*steps, *end]
    if not dry_run:
        carry_out(steps, say, again=f"sacctl pool assemble {record.name}")
    return Assembled(
        record if dry_run else records.get(record.name),
        bool(build),
        not mounted,
        hand is not None,
        planned(steps),
        hand.pool if hand else {},
    )


def _carry(
    look: list[Step],
    content: Content,
    fresh: list[Step],
    end: list[Step],
    say: Say,
    name: str,
) -> list[Step]:
    """What comes behind the look at the memory depends on what it showed."""

    anew = Later(
        "write a new pool, if the memory lost its content",
        lambda: fresh if content.empty else (),
        say,
    )
    steps = [*look, anew, *end]
    carry_out(steps, say, again=f"sacctl pool assemble {name}")
    return [*look, *(fresh if content.empty else ()), *end]


def ending(
    job: Job,
    records: Records,
    seen: Record,
    places: Places,
    daemon: Daemon | None,
    whole: Callable[[], Record],
) -> tuple[list[Step], HandOver | None]:
    """The record and the hand-over, behind an assembly."""
    steps: list[Step] = [WriteRecord(records, seen, whole, "ready")]
    if daemon is None:
        return steps, None
    share, hand = hand_over(job.sysfs, daemon, places, whole)
    return [*steps, share, hand], hand
