# SPDX-License-Identifier: Apache-2.0
"""Makes a pool of a region or dax device that is there already."""

from __future__ import annotations

import os

from sacctl.cxl import adopt as rules
from sacctl.cxl import daxsteps
from sacctl.cxl.driver import ForgetId, Unbind
from sacctl.cxl.guard import Guard
from sacctl.cxl.made import Made
from sacctl.cxl.model import DaxDevice, Topology
from sacctl.cxl.read import read
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, RefusedError
from sacctl.pool import superblock
from sacctl.pool.attached import Unused
from sacctl.pool.boot import boot_id
from sacctl.pool.create import Created
from sacctl.pool.cxl_assemble import assemble
from sacctl.pool.cxl_content import refuse_foreign
from sacctl.pool.cxl_create import blank, finish
from sacctl.pool.cxl_files import open_device
from sacctl.pool.cxl_find import owners
from sacctl.pool.cxl_job import Job, before, meta_folders, need_root
from sacctl.pool.cxl_record import CxlPart, RegionPart
from sacctl.pool.cxl_spec import divide
from sacctl.pool.cxl_taken import refuse_claimed
from sacctl.pool.later import Later
from sacctl.pool.places import Places
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import Daemon
from sacctl.pool.steps import Say, Step

__all__ = ["adopt"]


def adopt(
    name: str,
    target: str,
    sysfs: Sysfs,
    records: Records,
    *,
    daemon: Daemon | None = None,
    owner: int = 0,
    force_offline: bool = False,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> Created:
    """Makes a pool of the region or dax device ``target``, which stays when the pool goes.

    What a pool of ours holds there is kept, and opened under this name; other memory is
    formatted. force_offline: memory that is online in zone Movable is taken offline for it.

    Raises RefusedError for what cannot be adopted, with the reason and what helps;
    otherwise as cxl_create.create.
    """
    if not dry_run:
        need_root(sysfs, f"sacctl pool adopt {name} {target}")
    topology = read(sysfs)
    seen = records.find(name)
    if seen is not None:
        if _same(topology, seen, target):
            there = assemble(name, sysfs, records, daemon=daemon, dry_run=dry_run, say=say)
            return there.as_created()
        raise CtlError(
            f"there is a pool '{name}' already, and it is not of {target}",
            object=name,
            hint=f"another name, or sacctl pool destroy {name} first",
        )
    found = rules.judge(topology, sysfs, target)
    if not found.usable or (found.needs == "force-offline" and not force_offline):
        raise RefusedError(found.message, object=target, hint=found.hint)
    _free(records, found.region, target, boot_id(sysfs))
    made = Made(found.region, list(found.dax))
    with Places(owner) as places:
        record = _record(sysfs, name, topology, made, owner)
        devices = record.cxl.regions[0].devices if record.cxl else ()
        refuse_claimed(name, devices, topology, sysfs, records)
        job = Job(sysfs, record, [made])
        taking = _Taking(job, topology, say)
        steps = taking.steps(found.needs, force_offline)
        return finish(
            job, records, places, steps, daemon, dry_run=dry_run, say=say, keep=taking.uuid
        )


def _same(topology: Topology, seen: Record, target: str) -> bool:
    """Whether the record is of an adopted pool of that region or dax device."""
    part = seen.cxl
    if part is None or not part.adopted or seen.state not in ("ready", "assembling"):
        return False
    region = topology.region(target)
    dax = topology.dax_device(target)
    if region is not None:
        return owners(topology, region) == part.regions[0].devices
    return dax is not None and _devices(topology, dax) == part.regions[0].devices


def _devices(topology: Topology, dax: DaxDevice) -> tuple[str, ...]:
    region = topology.region(dax.region)
    if region is not None:
        return owners(topology, region)
    return () if dax.start is None else (f"hmem:{dax.start:#x}",)


def _free(records: Records, region: str, target: str, boot: str) -> None:
    """Raises RefusedError where a pool has it."""
    for other in records.names():
        try:
            record = records.find(other)
        except CtlError:
            continue
        if record is None or record.cxl is None or record.cxl.boot != boot:
            continue
        for part in record.cxl.regions:
            if target in part.dax or (region and region == part.region):
                raise RefusedError(
                    f"{target} is part of pool '{other}'",
                    object=target,
                    hint=f"sacctl pool show {other}",
                )


def _record(sysfs: Sysfs, name: str, topology: Topology, made: Made, owner: int) -> Record:
    """The record of the pool that is to be. A region that is disabled has no dax device yet:
    it will have one of all its memory."""
    region = topology.region(made.region)
    several = [dax for n in made.dax if (dax := topology.dax_device(n))]
    if len(several) > 2:
        raise RefusedError(
            f"{made.region} is divided into {', '.join(made.dax)}",
            object=made.region,
            hint=f"name one of them: sacctl pool adopt {name} {made.dax[0]}",
        )
    first = several[0] if several else None
    if region is None and (first is None or first.start is None):
        raise RefusedError(f"the address of {', '.join(made.dax)} is not known", object=name)
    size = first.bytes if first else (region.bytes if region else 0)
    split = first is None or (
        first.align <= daxsteps.ALIGN and sysfs.exists(f"{first.folder}/create")
    )
    if len(several) == 2:
        # Divided already: either ours, which the memory will tell, or it is refused.
        parts: tuple[int, ...] = tuple(dax.bytes for dax in several)
    else:
        parts = divide(name, [size], 0, split)[0]
    devices = owners(topology, region) if region else (f"hmem:{first.start:#x}",)  # type: ignore[union-attr]
    if "" in devices:
        raise RefusedError(
            f"devices of {made.region} are not known: they may have gone",
            object=made.region,
            hint="sacctl device list",
        )
    part = CxlPart(
        regions=(
            RegionPart(
                devices=devices,
                ways=len(devices),
                granularity=region.granularity if region else 0,
                bytes=region.bytes if region else max(size, first.region_bytes if first else 0),
                made=False,
                region=made.region,
                dax=tuple(made.dax),
                parts=parts,
                whole=size if len(several) < 2 else sum(parts),
            ),
        ),
        adopted=True,
        boot=boot_id(sysfs),
        before=before(topology),
    )
    record = blank(sysfs, name, part, owner)
    if len(parts) > 1:
        return record
    folders = meta_folders(sysfs, name)
    return record.with_(meta=f"{folders[-1]}/meta", folders=folders)


class _Taking:
    """Looks what the memory holds, and divides it where it holds nothing of ours."""

    def __init__(self, job: Job, topology: Topology, say: Say) -> None:
        self._job, self._topology, self._say = job, topology, say
        self._kept = ""

    def uuid(self) -> str:
        """Of the pool that is there already; "" where none is."""
        return self._kept

    def steps(self, needs: str, force_offline: bool) -> list[Step]:
        job = self._job
        made = job.made[0]
        paths = [job.path(name) for name in made.dax]
        steps: list[Step] = [Unused(job.record.name, lambda: paths)]
        if needs != "nothing":
            steps += rules.convert(job.sysfs, self._topology, made, force_offline=force_offline)
        part = job.record.cxl
        assert part is not None
        parts = part.regions[0].parts
        steps.append(Later("look whether a pool is on it", self._look, self._say))
        if len(parts) > 1 and len(made.dax) < 2:
            sizes = " and ".join(f"{size >> 20} MiB" for size in parts)
            what = f"divide {made.dax_name()} into {sizes}"
            # What is known now; a region that is disabled has no dax device yet.
            shown = [step.what for step in self._divide()] if made.dax else []
            steps.append(Later(what, self._divide, self._say, shown))
        return steps

    def _look(self) -> list[Step]:
        made, job = self._job.made[0], self._job
        found, torn = {}, []
        for name in made.dax:
            path = job.path(name)
            fd = open_device(path)
            try:
                found[name] = superblock.identify(fd)
                if found[name] is None and superblock.marked(fd):
                    torn.append(name)
            finally:
                os.close(fd)
        if torn:
            raise RefusedError(
                f"{torn[0]} holds a superblock that is damaged, or of another version",
                object=torn[0],
                hint="open it with the sacctl that made it; or, if nobody needs what it holds, "
                "zero the device's first 2 MiB",
            )
        kinds = {name: block.kind for name, block in found.items() if block}
        meta = next((n for n, kind in kinds.items() if kind == superblock.META), "")
        data = next((n for n, kind in kinds.items() if kind == superblock.DATA), "")
        if not kinds:
            if len(made.dax) > 1:
                raise RefusedError(
                    f"{made.region} is divided into {', '.join(made.dax)}, and no pool is on "
                    "them",
                    object=made.region,
                    hint=f"name one of them: sacctl pool adopt NAME {made.dax[0]}",
                )
            return []
        block = found[meta or data]
        assert block is not None
        if not (meta and data) or len(block.extents) != 1:
            raise RefusedError(
                f"{meta or data} holds a part of pool {block.uuid}, and the rest of it is not "
                f"on {', '.join(made.dax)}",
                object=meta or data,
                hint="assemble that pool from its record; or, if nobody needs it, zero the "
                "device's first 2 MiB",
            )
        refuse_foreign(job.record.name, block.uuid, found)
        self._kept = block.uuid
        made.dax[:] = [data, meta]
        part = job.record.cxl
        assert part is not None
        sizes = {n: d.bytes for n in made.dax if (d := self._topology.dax_device(n))}
        region = part.regions[0].with_(parts=(sizes[data], sizes[meta]))
        job.record = job.record.with_(
            cxl=part.with_(regions=(region,)), sizes=(sizes[data],), uuid=block.uuid
        )
        return []

    def _divide(self) -> list[Step]:
        job, made = self._job, self._job.made[0]
        part = job.record.cxl
        assert part is not None
        guard = Guard(job.sysfs)
        name = made.need_dax()
        return [
            *guard.begin,
            Unbind(job.sysfs, lambda: name, expected="device_dax"),
            ForgetId(job.sysfs, lambda: name, "device_dax"),
            *daxsteps.split(job.sysfs, made, part.regions[0].parts),
            *daxsteps.bind(job.sysfs, made, "device_dax", (0, 1)),
            *guard.end,
        ]
