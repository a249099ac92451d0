# SPDX-License-Identifier: Apache-2.0
"""Makes a pool of CXL devices: looks, plans, carries out, checks; or takes all of it back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from libsac.sizes import format_size
from sacctl import paths
from sacctl.cxl.made import Made
from sacctl.cxl.model import Memdev
from sacctl.cxl.plan import PoolPlan, plan_pool
from sacctl.cxl.read import read, resolve
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, NotFoundError, UsageError
from sacctl.pool.boot import boot_id
from sacctl.pool.create import Created
from sacctl.pool.cxl_assemble import assemble
from sacctl.pool.cxl_destroy import destroy
from sacctl.pool.cxl_files import (
    CheckExtents,
    FormatExtents,
    OpenDevices,
    meta_file,
    named_meta,
)
from sacctl.pool.cxl_hand import hand_over, mark
from sacctl.pool.cxl_job import Job, before, need_root
from sacctl.pool.cxl_ram import memory_steps, usable
from sacctl.pool.cxl_record import CxlPart, RegionPart
from sacctl.pool.cxl_regions import NoteChange, Wanted, making, weights
from sacctl.pool.cxl_spec import CxlSpec, divide
from sacctl.pool.cxl_taken import pools_named, refuse_claimed, refuse_taken
from sacctl.pool.cxl_wipe import Clear
from sacctl.pool.later import Later, planned
from sacctl.pool.names import check_new_name
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

__all__ = ["CxlCreated", "create", "finish"]

_KEEP = "keep the pool that is on the devices; where there is none:"


@dataclass(frozen=True, slots=True)
class CxlCreated:
    """What came of it. plan: of the regions, None where the pool was there already."""

    made: Created
    plan: PoolPlan | None


def create(
    spec: CxlSpec,
    sysfs: Sysfs,
    records: Records,
    *,
    daemon: Daemon | None = None,
    owner: int = 0,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> CxlCreated:
    """Makes the pool, or finds that it is there already (perhaps to be assembled).

    Args:
        daemon: the running daemon's Link; it gets the devices at once. None: none runs.
        owner: user id that devices and files are to belong to.
        dry_run: changes nothing.
        say: is told each step as it begins.

    Raises CtlError: another pool has the name (differences are named), nothing left for data;
    UsageError for a rule of the kernel; DeniedError without root; RefusedError, BusyError;
    PartlyError where a failure could not be undone: then the record stays, in state
    "creating", and destroy() clears what is left. After any other error all is as before.
    """
    command = f"sacctl pool create {spec.name}"
    if not dry_run:
        need_root(sysfs, f"{command} --devices ...")
    seen = records.find(spec.name)
    if seen is not None and (seen.cxl is None or seen.state in ("ready", "assembling")):
        differences = spec.differences(seen)
        if differences:
            raise CtlError(
                f"there is a pool '{spec.name}' already, and it differs: "
                f"{'; '.join(differences)}",
                object=spec.name,
                hint=f"another name, or sacctl pool destroy {spec.name} first",
            )
        there = assemble(spec.name, sysfs, records, daemon=daemon, dry_run=dry_run, say=say)
        return CxlCreated(there.as_created(), None)
    if seen is not None:
        if dry_run:
            raise CtlError(
                f"pool '{spec.name}' was left half made or half destroyed, which comes first",
                object=spec.name,
                hint=f"sacctl pool destroy {spec.name}",
            )
        destroy(spec.name, sysfs, records, daemon=daemon, say=say)
    else:
        check_new_name(spec.name)
    take = TakeRecords(records, spec.name, None)
    with records_taken(take, say, dry_run=dry_run), Places(owner) as places:
        job, plan, build = _plan(spec, sysfs, records, owner)
        made = finish(job, records, take, places, build, daemon, dry_run=dry_run, say=say)
    return CxlCreated(made, plan)


def _plan(
    spec: CxlSpec, sysfs: Sysfs, records: Records, owner: int
) -> tuple[Job, PoolPlan, list[Step]]:
    """The new pool's job, the plan of its regions and the steps to their devices. Holds as
    long as the records are locked."""
    topology = read(sysfs)
    if spec.mode == "system-ram" and not sysfs.exists("/sys/bus/dax/drivers/kmem"):
        raise NotFoundError(
            "--mode system-ram needs the driver kmem, which is not loaded",
            object=spec.name,
            hint="modprobe kmem",
        )
    memdevs = [resolve(topology, device) for device in spec.devices]
    refuse_claimed(spec.name, spec.devices, topology, sysfs, records)
    refuse_taken(spec.name, topology, memdevs, sysfs, records)
    with pools_named(records, boot_id(sysfs)):
        plan = plan_pool(topology, memdevs, bytes=spec.bytes, granularity=spec.granularity)
    _all_used(plan, memdevs)
    identity = {memdev.name: memdev.identity for memdev in memdevs}
    split = spec.mode == "devdax"
    parts = divide(spec.name, [region.bytes for region in plan.regions], spec.room, split)
    regions = tuple(
        RegionPart(
            devices=tuple(identity[name] for name in region.order),
            ways=region.ways,
            granularity=region.granularity,
            bytes=region.bytes,
            parts=part,
            weight=weight,
        )
        for region, part, weight in zip(
            plan.regions, parts, weights(topology, plan.regions), strict=True
        )
    )
    mount = "" if split else str(sysfs.at(str(paths.ram_dir(spec.name))))
    part = CxlPart(
        regions, spec.mode, boot=boot_id(sysfs), room=spec.room, mount=mount,
        before=before(topology),
        decoders=tuple(name for region in plan.regions for name in region.decoders),
    )  # fmt: skip
    job = Job(sysfs, blank(sysfs, spec.name, part, owner), [Made() for _ in regions])
    wanted = [Wanted(p, "", r) for p, r in zip(plan.regions, regions, strict=True)]
    return job, plan, making(job, wanted)


def _all_used(plan: PoolPlan, memdevs: Sequence[Memdev]) -> None:
    used = {name for region in plan.regions for name in region.order}
    idle = [memdev.name for memdev in memdevs if memdev.name not in used]
    if idle:
        raise UsageError(
            f"a pool of {format_size(plan.bytes)} does not need {', '.join(idle)}",
            object=idle[0],
            hint="leave it out of --devices, or give more --size",
        )


def blank(sysfs: Sysfs, name: str, part: CxlPart, owner: int) -> Record:
    """The record of a pool that is to be made. Its paths stand for what is not there yet."""
    sizes = tuple(region.parts[0] for region in part.regions)
    data: tuple[str, ...]
    if part.mount:
        meta, data = f"{part.mount}/meta", (f"{part.mount}/data.0",)
        sizes = (usable(sum(sizes)),)
    else:
        meta = str(sysfs.at(f"/dev/{name}.meta"))
        data = tuple(str(sysfs.at(f"/dev/{name}.data.{i}")) for i in range(len(part.regions)))
    return Record(
        name=name,
        uuid="",
        # As fine as it goes: it says in which order pools lie on the same devices.
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        meta=meta,
        data=data,
        sizes=sizes,
        uid=owner,
        kind="cxl",
        state="creating",
        cxl=part,
    )


def finish(
    job: Job,
    records: Records,
    take: TakeRecords,
    places: Places,
    build: list[Step],
    daemon: Daemon | None,
    *,
    dry_run: bool,
    say: Say,
    more: Callable[[], list[Step]] = list,
    keep: Callable[[], str] = str,
) -> Created:
    """The steps around ``build``, which makes the devices: the record before, and behind it
    the pool on them, the record again, and the daemon.

    take: has the records locked. more: steps behind all these. keep: gives the uuid of a pool
    that is on the devices already, and is not written over; "" where there is none.
    """
    record = job.record
    name = record.name
    steps: list[Step] = [NoteChange(job, records, None, "creating"), *build]
    if record.cxl is not None and record.cxl.mount:
        uuid, files = memory_steps(job, places)
        steps += files
    else:
        form = FormatExtents(places, job.now)

        def uuid() -> str:
            return keep() or form.uuid()

        steps += [
            WriteRecord(records, record, job.now, "creating"),
            OpenDevices(places, job.now, own=not active(job.sysfs)),
            mark(job),
            *([Clear(places, job.now)] if record.cxl and record.cxl.parent else []),
            *meta_file(places, record),
            form
            if keep is str
            else Later(_KEEP, lambda: () if keep() else (form,), say, [form.what]),
            *named_meta(places, record),
            CheckExtents(places, job.now, uuid),
        ]

    def done() -> Record:
        now = job.now()
        part = now.cxl and now.cxl.with_(before=(), decoders=())
        return now.with_(uuid=uuid(), state="ready", cxl=part)

    steps.append(WriteRecord(records, record, done, "ready"))
    hand: HandOver | None = None
    if daemon is not None:
        share, hand = hand_over(job.sysfs, daemon, places, done)
        steps += [share, hand]
    steps += more()
    if not dry_run:
        carry_out(steps, say, again=f"sacctl pool destroy {name}")
    return Created(
        record=record if dry_run else records.get(name),
        created=True,
        served=hand is not None,
        steps=planned([take, *steps]),
        pool=hand.pool if hand else {},
    )
