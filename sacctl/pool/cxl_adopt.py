# SPDX-License-Identifier: Apache-2.0
"""Makes a pool of a region or dax device that is there already."""

from __future__ import annotations

from sacctl.cxl import adopt as rules
from sacctl.cxl import daxsteps
from sacctl.cxl.made import Made
from sacctl.cxl.model import DaxDevice, Topology
from sacctl.cxl.read import read
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, RefusedError
from sacctl.pool.boot import boot_id
from sacctl.pool.create import Created
from sacctl.pool.cxl_assemble import assemble
from sacctl.pool.cxl_create import blank, finish
from sacctl.pool.cxl_destroy import destroy
from sacctl.pool.cxl_find import owners
from sacctl.pool.cxl_job import Job, before, meta_folders, need_root
from sacctl.pool.cxl_record import CxlPart, RegionPart
from sacctl.pool.cxl_spec import divide
from sacctl.pool.cxl_taken import refuse_claimed
from sacctl.pool.cxl_taking import Taking
from sacctl.pool.names import check_new_name
from sacctl.pool.places import Places
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import Daemon, TakeRecords, records_taken
from sacctl.pool.steps import Say

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
    formatted. What an adoption that was cut off has left is cleared first. force_offline:
    memory that is online in zone Movable is taken offline for it.

    Raises RefusedError for what cannot be adopted, with the reason and what helps;
    otherwise as cxl_create.create.
    """
    if not dry_run:
        need_root(sysfs, f"sacctl pool adopt {name} {target}")
    topology = read(sysfs)
    seen = records.find(name)
    if seen is not None:
        half = seen.state in ("creating", "destroying")
        same = _same(topology, seen, target)
        if same and not half:
            there = assemble(name, sysfs, records, daemon=daemon, dry_run=dry_run, say=say)
            return there.as_created()
        if not same or dry_run:
            what = "was left half made or half destroyed" if half else "is there already"
            of = "" if same else f", and it is not of {target}"
            raise CtlError(
                f"pool '{name}' {what}{of}",
                object=name,
                hint=f"{'' if same else 'another name, or '}sacctl pool destroy {name} first",
            )
        destroy(name, sysfs, records, daemon=daemon, say=say)
    else:
        check_new_name(name)
    take = TakeRecords(records, name, None)
    with records_taken(take, say, dry_run=dry_run), Places(owner) as places:
        topology = read(sysfs)
        found = rules.judge(topology, sysfs, target)
        if not found.usable or (found.needs == "force-offline" and not force_offline):
            raise RefusedError(found.message, object=target, hint=found.hint)
        _free(records, found.region, target, boot_id(sysfs))
        made = Made(found.region, list(found.dax))
        record = _record(sysfs, name, topology, made, owner)
        devices = record.cxl.regions[0].devices if record.cxl else ()
        refuse_claimed(name, devices, topology, sysfs, records)
        job = Job(sysfs, record, [made])
        taking = Taking(job, topology, say)
        steps = taking.steps(found.needs, force_offline)
        return finish(
            job,
            records,
            take,
            places,
            steps,
            daemon,
            dry_run=dry_run,
            say=say,
            keep=taking.uuid,
        )


def _same(topology: Topology, seen: Record, target: str) -> bool:
    """Whether the record is of an adopted pool of that region or dax device."""
    part = seen.cxl
    if part is None or not part.adopted:
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
