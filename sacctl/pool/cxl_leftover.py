# SPDX-License-Identifier: Apache-2.0
"""What goes when a CXL pool's memory is gone: what a change that was cut off has left, its
metadata file, its record. Nothing of it held pages."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from sacctl.cxl.model import DaxDevice, Topology
from sacctl.cxl.sysfs import Sysfs
from sacctl.pool.boot import boot_id
from sacctl.pool.cxl_files import has_meta_file
from sacctl.pool.cxl_find import rest
from sacctl.pool.cxl_hand import Unlisted, forget
from sacctl.pool.cxl_ramfree import Unmounted
from sacctl.pool.cxl_record import CxlPart
from sacctl.pool.cxl_regions import clearing
from sacctl.pool.cxl_wipe import WipeHead
from sacctl.pool.filesteps import RemoveFile, RemoveFolder, new_name
from sacctl.pool.places import Places
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import Daemon, RemoveRecord
from sacctl.pool.steps import Step

__all__ = ["last_steps", "leftover"]


def leftover(
    sysfs: Sysfs,
    topology: Topology,
    record: Record,
    part: CxlPart,
    places: Places,
    others: Collection[str],
    allow_leak: bool,
) -> list[Step]:
    """Steps that take away what a change that was cut off has left. others: names that other
    pools' records have."""
    steps: list[Step] = []
    if part.mount:
        steps.append(Unmounted(sysfs, record, places))
    if part.boot != boot_id(sysfs):
        return steps  # the rest went with the boot
    left = rest(topology, part, others)
    if part.adopted and not record.uuid:
        # The device stays, and the pool that was being written on it must not.
        data = [dax for dax in topology.dax if _begun_on(record, dax)]
        steps += [WipeHead(str(sysfs.at(f"/dev/{dax.name}"))) for dax in data]
    return [*steps, *clearing(sysfs, topology, left, part, allow_leak=allow_leak)]


def last_steps(
    sysfs: Sysfs, records: Records, record: Record, places: Places, daemon: Daemon | None
) -> list[Step]:
    """Steps behind all others of a destruction: nothing of the pool is known then."""
    part, steps, stay = record.cxl, list[Step](), list[str]()
    if part is not None and has_meta_file(record) and not part.mount:
        steps += [RemoveFile(places, path) for path in (record.meta, new_name(record.meta))]
    steps += [RemoveFolder(places, path) for path in reversed(record.folders)]
    if part is not None and part.adopted:
        stay = [name for region in part.regions for name in region.dax[:1]]
    steps += [forget(sysfs, record, stay), RemoveRecord(records, record.name)]
    return steps if daemon is None else [*steps, Unlisted(daemon, record.name)]


def _begun_on(record: Record, dax: DaxDevice) -> bool:
    """Whether the record names the device, as it does just before it is written on."""
    names = {Path(path).name for path in record.data}
    return dax.driver == "device_dax" and dax.name in names
