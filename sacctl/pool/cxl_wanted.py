# SPDX-License-Identifier: Apache-2.0
"""What is to be made of a recorded pool: regions that are there, and plans of those that are
not."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sacctl.cxl.model import Topology
from sacctl.cxl.read import resolve
from sacctl.cxl.regionplan import RegionPlan, plan_region
from sacctl.errors import NotFoundError, RefusedError
from sacctl.pool.cxl_find import find_dax, find_region, missing, no_devices
from sacctl.pool.cxl_record import RegionPart
from sacctl.pool.cxl_regions import Wanted
from sacctl.pool.cxl_room import room_region
from sacctl.pool.record import Record

__all__ = ["renamed", "what_is_wanted"]


def renamed(record: Record, wanted: Sequence[Wanted]) -> Record:
    """The record without names of what is yet to be made, and with the decoders for it."""
    part = record.cxl
    assert part is not None
    regions = tuple(
        region.with_(region=want.region, dax=tuple(d.name for d in want.devices)[:2])
        for region, want in zip(part.regions, wanted, strict=True)
    )
    decoders = tuple(d for want in wanted if want.plan for d in want.plan.decoders)
    return record.with_(cxl=part.with_(regions=regions, decoders=decoders))


def what_is_wanted(
    record: Record, topology: Topology, same_boot: bool, others: Collection[str]
) -> list[Wanted]:
    """What each region of a pool needs to be there again. others: names of regions that other
    pools have. Raises NotFoundError, UsageError, RefusedError."""
    part = record.cxl
    assert part is not None
    found = []
    for region in part.regions:
        gone = missing(topology, region)
        if gone:
            raise no_devices(record.name, region, gone)
        if part.parent:
            room = room_region(topology, region, part.parent, same_boot)
            found.append(Wanted(None, room.name, region))
            continue
        there = find_region(topology, region, same_boot, others)
        if there is None and not region.made:
            there = find_region(topology, region, False, others)
        if there is not None and region.made and not same_boot:
            raise RefusedError(
                f"{there.name} is there on the devices of pool '{record.name}', and the pool "
                "did not make it",
                object=there.name,
                hint=f"if nobody needs it: cxl destroy-region -f {there.name}; then again",
            )
        devices = find_dax(topology, region, there)
        if there is not None or devices:
            found.append(Wanted(None, there.name if there else "", region, tuple(devices)))
            continue
        if not region.made:
            raise NotFoundError(
                f"pool '{record.name}': the region of {', '.join(region.devices)} that it "
                "adopted is not there",
                object=record.name,
                hint="firmware, or whoever made it, must make it again: sacctl device topology",
            )
        found.append(Wanted(_plan(topology, region), "", region, ()))
    return found


def _plan(topology: Topology, region: RegionPart) -> RegionPlan:
    """The region in the order recorded, so that the memory's content is where it was."""
    memdevs = [resolve(topology, device) for device in region.devices]
    return plan_region(
        topology,
        memdevs,
        bytes=region.bytes,
        granularity=region.granularity,
        as_given=True,
    )
