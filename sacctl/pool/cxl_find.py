# SPDX-License-Identifier: Apache-2.0
"""Finds on the machine what a pool's record speaks of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sacctl.cxl.model import DaxDevice, Memdev, Region, Topology
from sacctl.cxl.read import resolve
from sacctl.errors import NotFoundError
from sacctl.pool.cxl_record import CxlPart, RegionPart

__all__ = [
    "Rest",
    "find_dax",
    "find_region",
    "identities",
    "missing",
    "no_devices",
    "owners",
    "rest",
]


def identities(topology: Topology, names: Sequence[str]) -> tuple[str, ...]:
    """What names these devices over reboots. Raises NotFoundError, UsageError."""
    return tuple(resolve(topology, name).identity for name in names)


def missing(topology: Topology, part: RegionPart) -> list[str]:
    """The devices of a region that are not there."""
    there = {memdev.identity for memdev in topology.memdevs}
    there |= {_address(dax) for dax in topology.dax if dax.kind == "hmem"}
    return [device for device in part.devices if device not in there]


def owners(topology: Topology, region: Region) -> tuple[str, ...]:
    """Identities of a region's devices by position; "" where nothing is attached."""
    found = [topology.owner_of(target) for target in region.targets]
    return tuple("" if memdev is None else memdev.identity for memdev in found)


def find_region(
    topology: Topology, part: RegionPart, boot: bool, others: Collection[str] = ()
) -> Region | None:
    """The committed region that is the recorded one: of these devices in this order, and of
    this size. boot: the record's names are of this boot, so that the name must fit too, for
    devices can have several regions. others: names of regions that it is not.
    """
    found = [
        region
        for region in topology.regions
        if region.committed
        and region.name not in others
        and region.bytes == part.bytes
        and owners(topology, region) == part.devices
    ]
    if boot and part.region:
        found = [region for region in found if region.name == part.region]
    return found[0] if found else None


def broken_region(topology: Topology, part: RegionPart) -> Region | None:
    """What is left of the recorded region, in the boot that its name is of, after one of its
    devices has gone: it stays, and is not committed any more."""
    found = topology.region(part.region) if part.region else None
    if found is None or found.committed:
        return None
    holders = {owner for owner in owners(topology, found) if owner}
    return found if holders <= set(part.devices) else None


def find_dax(topology: Topology, part: RegionPart, region: Region | None) -> list[DaxDevice]:
    """The dax devices of a region, by number; of an hmem device itself and those beside it."""
    if region is not None:
        return [dax for dax in topology.dax if dax.region == region.name]
    first = [
        dax for dax in topology.dax if dax.kind == "hmem" and _address(dax) in part.devices
    ]
    if not first:
        return []
    return [dax for dax in topology.dax if dax.folder == first[0].folder]


def _address(dax: DaxDevice) -> str:
    return "" if dax.start is None else f"hmem:{dax.start:#x}"


@dataclass(frozen=True, slots=True)
class Rest:
    """What a change that was cut off has left: names. decoders: that no region has."""

    regions: tuple[str, ...]
    decoders: tuple[str, ...]
    dax: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.regions or self.decoders or self.dax)

    def __str__(self) -> str:
        return ", ".join((*self.regions, *self.decoders, *self.dax))


def rest(topology: Topology, part: CxlPart, others: Collection[str]) -> Rest:
    """What a change that was cut off has left of what it made; nothing of anybody else's.

    Only right in the boot that the change was made in. A region is ours if the record names
    it, and nobody but the pool's devices is in it. One that the kill kept from being named is
    empty. Memory of a decoder is ours if the record says that it was to be taken. others:
    names of regions and dax devices that other records have.
    """
    devices = {device for region in part.regions for device in region.devices}
    mine = [memdev for memdev in topology.memdevs if memdev.identity in devices]
    known = {*part.before, *others}
    roots = {root.name for root in topology.roots if _reaches(root.targets, mine)}
    named = {region.region for region in part.regions}
    regions = []
    for region in topology.regions if not (part.adopted or part.parent) else ():
        if region.name in known:
            continue
        holders = {owner for owner in owners(topology, region) if owner}
        empty = not holders and not region.committed and not region.bytes
        ours = region.name in named and holders <= devices
        if ours or ("" in named and empty and region.root in roots):
            regions.append(region.name)
    decoders = [
        decoder.name
        for memdev in mine
        for decoder in memdev.decoders
        if decoder.dpa_bytes
        and not decoder.region
        and decoder.name in part.decoders
        and decoder.name not in known
    ]
    dax = [
        dax.name
        for dax in topology.dax
        if dax.region in named and dax.name not in known and (part.adopted or part.parent)
    ]
    return Rest(tuple(regions), tuple(decoders), tuple(dax))


def _reaches(targets: Sequence[str], memdevs: Sequence[Memdev]) -> bool:
    return any(memdev.host_bridge in targets for memdev in memdevs)


def no_devices(name: str, part: RegionPart, gone: Sequence[str]) -> NotFoundError:
    """The error for devices of a pool that are not there."""
    return NotFoundError(
        f"pool '{name}' needs {', '.join(gone)}, which {'is' if len(gone) == 1 else 'are'} not "
        f"there; of its {len(part.devices)} devices {len(part.devices) - len(gone)} are",
        object=gone[0],
        hint="sacctl device list shows what is there, and why a device is left out",
    )
