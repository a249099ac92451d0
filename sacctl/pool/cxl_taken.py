# SPDX-License-Identifier: Apache-2.0
"""Devices that have no memory to give because a region has it: whose it is, and what helps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from sacctl.cxl.adopt import judge
from sacctl.cxl.model import Memdev, Topology
from sacctl.cxl.sizes import UNIT
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, RefusedError
from sacctl.pool.boot import boot_id
from sacctl.pool.cxl_find import find_dax, find_region
from sacctl.pool.cxl_record import CxlPart, RegionPart
from sacctl.pool.record import Record, Records

__all__ = [
    "names_of_others",
    "pool_of",
    "pools_named",
    "refuse_children",
    "refuse_claimed",
    "refuse_order",
    "refuse_shared",
    "refuse_taken",
    "whose",
]

# In words, and whether assembling it may help.
_STATES = {
    "creating": ("half made", False),
    "destroying": ("half destroyed", False),
    "assembling": ("half assembled", True),
}


def _parts(
    records: Records, name: str, *, all_known: bool = False
) -> list[tuple[Record, CxlPart]]:
    """The pools of CXL devices but for that one. Records that cannot be read are left out;
    with all_known they raise RefusedError, for any device may be theirs."""
    found = []
    for other in records.names():
        try:
            record = records.find(other) if other != name else None
        except CtlError as error:
            if not all_known:
                continue
            raise RefusedError(
                f"the record of pool '{other}' cannot be read, so that nobody knows which "
                f"memory is its own: {error.message}",
                object=other,
                hint=error.hint,
            ) from error
        if record is not None and record.cxl is not None:
            found.append((record, record.cxl))
    return found


def names_of_others(records: Records, name: str, boot: str) -> frozenset[str]:
    """Regions and dax devices that other pools' records name in this boot."""
    names: set[str] = set()
    for _, part in _parts(records, name):
        if part.boot == boot:
            for region in part.regions:
                names |= {region.region, *region.dax}
    return frozenset(names - {""})


def pool_of(records: Records, region: str, boot: str) -> str:
    """The pool that has a region of this boot; "" where none has."""
    for record, part in _parts(records, ""):
        if part.boot == boot and region in {r.region for r in part.regions}:
            return part.parent or record.name
    return ""


def whose(records: Records, boot: str) -> Callable[[str], str]:
    """pool_of() of the regions of a boot, for who knows regions only."""
    return lambda region: pool_of(records, region, boot)


@contextmanager
def pools_named(records: Records, boot: str) -> Iterator[None]:
    """Who plans regions knows no pools: where one is in the way (an error's object), the hint
    says whose it is."""
    try:
        yield
    except RefusedError as error:
        pool = pool_of(records, error.object, boot) if error.object else ""
        if not pool:
            raise
        hint = f"{error.hint}; {error.object} is pool '{pool}': sacctl pool destroy {pool}"
        raise RefusedError(
            error.message, object=error.object, errno=error.errno, hint=hint
        ) from error


def refuse_claimed(
    name: str,
    devices: Collection[str],
    topology: Topology,
    sysfs: Sysfs,
    records: Records,
) -> None:
    """Raises RefusedError where one of the devices (identities) belongs to another pool that
    is not whole now: its pages may be in memory that looks free; and where it may be so,
    because a record cannot be read."""
    boot = boot_id(sysfs)
    for record, part in _parts(records, name, all_known=True):
        shared = [d for region in part.regions for d in region.devices if d in devices]
        if not shared or part.parent:
            continue
        there = part.boot == boot and all(_there(topology, region) for region in part.regions)
        if record.state == "ready" and there:
            continue
        word, rest = _STATES.get(record.state, ("not assembled now", True))
        destroy = f"sacctl pool destroy {record.name}"
        raise RefusedError(
            f"{', '.join(shared)} belongs to pool '{record.name}', which is {word}",
            object=shared[0],
            hint=f"sudo sacctl pool assemble {record.name}; or, if nobody needs what it holds, "
            f"{destroy}"
            if rest
            else destroy,
        )


def refuse_order(
    record: Record, topology: Topology, sysfs: Sysfs, records: Records, *, destroy: bool
) -> None:
    """Pools that share devices must come in the order in which they were made, for the kernel
    takes a device's memory from the bottom: only so does each find its own again.

    Raises RefusedError where an earlier one is not there (before an assembly), or a later
    one (before a destruction: it would take this one's place).
    """
    part, boot = record.cxl, boot_id(sysfs)
    if part is None or part.parent or part.adopted:
        return
    devices = {device for region in part.regions for device in region.devices}
    for other, theirs in _parts(records, record.name):
        shared = [d for region in theirs.regions for d in region.devices if d in devices]
        if not shared or theirs.parent or theirs.adopted or other.state == "creating":
            continue
        if other.created == record.created or (other.created > record.created) != destroy:
            continue
        if theirs.boot == boot and all(_there(topology, region) for region in theirs.regions):
            continue
        where = "behind" if destroy else "before"
        raise RefusedError(
            f"pool '{other.name}' lies {where} pool '{record.name}' on {', '.join(shared)} and "
            "is not assembled: one would get the memory of the other",
            object=other.name,
            hint=f"sudo sacctl pool assemble {other.name}",
        )


def refuse_shared(record: Record, topology: Topology, sysfs: Sysfs, records: Records) -> None:
    """Raises RefusedError where another record speaks of the same pool, or of the same dax
    devices while both are there: nobody knows whose they are."""
    part, boot = record.cxl, boot_id(sysfs)
    assert part is not None

    def named(of: CxlPart) -> set[str]:
        here = of.boot == boot and all(_there(topology, region) for region in of.regions)
        return {name for region in of.regions for name in region.dax} if here else set()

    for other, theirs in _parts(records, record.name):
        shared = ", ".join(sorted(named(part) & named(theirs)))
        if not shared and (not record.uuid or other.uuid != record.uuid):
            continue
        raise RefusedError(
            f"the records of pools '{record.name}' and '{other.name}' both have "
            f"{shared or f'pool {record.uuid}'}: one of them is a copy",
            object=record.name,
            hint=f"remove the wrong one of {records.path(record.name)} and "
            f"{records.path(other.name)} by hand",
        )


def _there(topology: Topology, part: RegionPart) -> bool:
    if part.region:
        return find_region(topology, part, True) is not None
    return bool(find_dax(topology, part, None))


def refuse_taken(
    name: str,
    topology: Topology,
    memdevs: Sequence[Memdev],
    sysfs: Sysfs,
    records: Records,
) -> None:
    """Raises RefusedError for the first device whose memory a region has."""
    for memdev in memdevs:
        regions = list(dict.fromkeys(d.region for d in memdev.decoders if d.region))
        if memdev.free_bytes >= UNIT or not regions:
            continue
        region = regions[0]
        pool = pool_of(records, region, boot_id(sysfs))
        if pool:
            raise RefusedError(
                f"{memdev.name} has no memory free: {region} has it, which is pool '{pool}'",
                object=memdev.name,
                hint=f"sacctl pool show {pool}",
            )
        if topology.region(region) is None:
            continue
        found = judge(topology, sysfs, region)
        force = " --force-offline" if found.needs == "force-offline" else ""
        raise RefusedError(
            f"{memdev.name} has no memory free: {region} has it; {found.message}",
            object=memdev.name,
            hint=f"sacctl pool adopt {name} {region}{force}" if found.usable else found.hint,
        )


def _without(pool: str, child: str) -> str:
    """The command that destroys an isolated namespace, whose own name may have dots."""
    name = child.removeprefix(f"{pool}.")
    return f"sudo sacctl namespace destroy {name} --pool {pool}"


def refuse_children(records: Records, name: str) -> None:
    """Raises RefusedError where isolated namespaces have devices in the pool's room, or may
    have, because a record of such a name cannot be read."""
    found = _parts(records, name)
    if any(other.startswith(f"{name}.") for other in records.names()):
        found = _parts(records, name, all_known=True)
    children = [record.name for record, part in found if part.parent == name]
    if children:
        raise RefusedError(
            f"pool '{name}' has isolated namespaces in its room: {', '.join(children)}",
            object=name,
            hint=_without(name, children[0]),
        )
