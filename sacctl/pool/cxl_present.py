# SPDX-License-Identifier: Apache-2.0
"""What is there of a recorded pool, and what stands in the way of making it again."""

from __future__ import annotations

from sacctl.cxl.made import Made
from sacctl.cxl.model import Topology
from sacctl.cxl.read import read
from sacctl.cxl.regiondestroy import destroy
from sacctl.cxl.room import without
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import NotFoundError, RefusedError, UsageError
from sacctl.pool.boot import boot_id
from sacctl.pool.cxl_find import (
    broken_region,
    find_dax,
    find_region,
    missing,
    no_devices,
    rest,
)
from sacctl.pool.cxl_ram import is_mounted
from sacctl.pool.cxl_record import CxlPart, RegionPart
from sacctl.pool.cxl_regions import clearing
from sacctl.pool.cxl_taken import names_of_others, whose
from sacctl.pool.cxl_wanted import what_is_wanted
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import Daemon
from sacctl.pool.steps import Say, Step, carry_out

__all__ = [
    "clear",
    "clear_steps",
    "clear_whole",
    "located",
    "planned_clear",
    "served",
    "standing",
    "whole",
]


def located(topology: Topology, part: CxlPart, boot: str) -> list[Made] | None:
    """The regions with their dax devices, if all of them are there as recorded: divided the
    same and bound to device_dax."""
    found = []
    for region in part.regions:
        made = _located(topology, region, part, part.boot == boot)
        if made is None:
            return None
        found.append(made)
    return found


def _located(
    topology: Topology, part: RegionPart, pool: CxlPart, same_boot: bool
) -> Made | None:
    if not same_boot and (pool.parent or part.made):
        return None  # what was made went with the boot; what is there is somebody else's
    region = find_region(topology, part, same_boot)
    devices = find_dax(topology, part, region)
    if same_boot and part.dax:
        devices = [dax for dax in devices if dax.name in part.dax]
    if region is None and not devices:
        return None
    mine = devices[: len(part.parts)]
    if tuple(dax.bytes for dax in mine) != part.parts:
        return None
    if any(dax.driver != ("kmem" if pool.mount else "device_dax") for dax in mine):
        return None
    return Made(region.name if region else "", [dax.name for dax in mine])


def served(daemon: Daemon | None, record: Record) -> bool:
    """Whether the daemon serves all of this pool: not while a device of it is lost."""
    if daemon is None:
        return False
    try:
        shown = daemon.call("pool.show", name=record.name)["pool"]
    except NotFoundError:
        return False
    lost = any(extent.get("lost") for extent in shown.get("extents", ()))
    return bool(shown["state"] == "serving" and shown["uuid"] == record.uuid and not lost)


def whole(sysfs: Sysfs, record: Record, part: CxlPart) -> bool:
    """Whether it was assembled in this boot, and all is still there."""
    if record.state != "ready" or part.boot != boot_id(sysfs):
        return False
    there = located(read(sysfs), part, part.boot) is not None
    return there and (not part.mount or is_mounted(sysfs, part.mount))


def clear(sysfs: Sysfs, record: Record, records: Records, say: Say) -> None:
    """What an assembly that was cut off in this boot has left goes first, and regions that
    had lost their devices. Raises NotFoundError while devices are missing: then all stays."""
    carry_out(
        clear_steps(sysfs, record, records), say, again=f"sacctl pool assemble {record.name}"
    )


def clear_steps(sysfs: Sysfs, record: Record, records: Records) -> list[Step]:
    """The steps of clear(). Raises NotFoundError."""
    part = record.cxl
    assert part is not None
    topology = read(sysfs)
    for region in part.regions:
        gone = missing(topology, region)
        if gone:
            raise no_devices(record.name, region, gone)
    return clear_whole(sysfs, topology, record, records)


def planned_clear(
    sysfs: Sysfs, record: Record, records: Records
) -> tuple[list[Step], list[Step]]:
    """For a plan: the steps of clear(), and those of standing() that will be needed behind
    them. Raises NotFoundError."""
    part = record.cxl
    assert part is not None
    dead = clear_steps(sysfs, record, records)
    if not dead:
        return [], []
    topology = read(sysfs)
    broken = [broken_region(topology, region) for region in part.regions]
    others = names_of_others(records, record.name, part.boot)
    names = {region.name for region in broken if region is not None} - others
    then = without(topology, names)
    try:
        what_is_wanted(record, then, part.boot == boot_id(sysfs), others)
    except (UsageError, RefusedError):
        return dead, standing(sysfs, topology, record, records)
    return dead, []


def clear_whole(
    sysfs: Sysfs, topology: Topology, record: Record, records: Records
) -> list[Step]:
    """Steps that take away what stands where regions are to be made again: those whose devices
    are all there, and that the pool has made itself."""
    part = record.cxl
    assert part is not None
    if part.boot != boot_id(sysfs):
        return []
    others = names_of_others(records, record.name, part.boot)
    if record.state == "assembling":
        left = rest(topology, part, others)
        return clearing(sysfs, topology, left, part) if left else []
    steps: list[Step] = []
    for region in reversed(part.regions):
        broken = broken_region(topology, region)
        if broken is None or broken.name in others or missing(topology, region):
            continue
        if region.made and not part.parent:
            steps += destroy(sysfs, topology, broken.name, whose=whose(records, part.boot))
    return steps


def standing(sysfs: Sysfs, topology: Topology, record: Record, records: Records) -> list[Step]:
    """Steps that take away the regions of the pool that are whole: decoders are programmed in
    the order of addresses, so one below them cannot be made again while they stand. What their
    memory holds stays. None where that is not the pool's to do. The steps refuse while
    anybody has a dax device open."""
    part = record.cxl
    assert part is not None
    if part.adopted or part.parent or part.mount or part.boot != boot_id(sysfs):
        return []
    steps: list[Step] = []
    for region in reversed(part.regions):
        found = find_region(topology, region, True)
        if found is None:
            continue
        names = {dax.name for dax in find_dax(topology, region, found)}
        if not region.made or not names <= set(region.dax):
            return []  # somebody else has a part of it
        steps += destroy(sysfs, topology, found.name, whose=whose(records, part.boot))
    return steps
