# SPDX-License-Identifier: Apache-2.0
"""The room that a pool leaves in its first region, and dax devices made of it."""

from __future__ import annotations

from libsac.sizes import format_size
from sacctl.cxl import daxsteps
from sacctl.cxl.guard import Guard
from sacctl.cxl.made import Made
from sacctl.cxl.model import DaxDevice, Region, Topology
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, NotFoundError, RefusedError
from sacctl.pool.cxl_find import find_region
from sacctl.pool.cxl_record import RegionPart
from sacctl.pool.steps import Step

__all__ = ["in_room", "room_left", "room_region"]


def room_region(topology: Topology, part: RegionPart, parent: str, boot: bool) -> Region:
    """The region that the room is in. Raises NotFoundError where it is not there."""
    region = find_region(topology, part, boot) or find_region(topology, part, False)
    if region is None or not region.dax:
        raise NotFoundError(
            f"the region of pool '{parent}' is not there",
            object=parent,
            hint=f"sudo sacctl pool assemble {parent}",
        )
    return region


def room_left(topology: Topology, region: Region) -> int:
    """Bytes of a region that no dax device has."""
    found = [d for d in topology.dax if d.region == region.name]
    return max((dax.available_bytes for dax in found), default=0)


def in_room(
    sysfs: Sysfs, topology: Topology, made: Made, region: Region, part: RegionPart, name: str
) -> list[Step]:
    """Steps that make dax devices of the part's sizes beside those of the region, and bind
    them. made gets their names. Raises RefusedError where there is less room."""
    left, need = room_left(topology, region), sum(part.parts)
    if left < need:
        raise RefusedError(
            f"pool '{name}' needs {format_size(need)}, and {region.name} has "
            f"{format_size(left)} of room left",
            object=name,
            hint="a smaller --quota, or destroy another isolated namespace; the room is set "
            "by pool create --isolated-room",
        )
    made.region = region.name
    first = _first(topology, region)
    anchor = Made(region.name, [first.name])
    guard = Guard(sysfs)
    steps: list[Step] = [*guard.begin]
    which = range(1, len(part.parts) + 1)
    for index, size in zip(which, part.parts, strict=True):

        def named(index: int = index) -> str:
            return anchor.dax_name(index)

        steps.append(daxsteps.CreateDax(sysfs, anchor, index))
        steps.append(daxsteps.Resize(sysfs, named, size))
    steps.append(TakeNames(sysfs, anchor, made, part.parts))
    steps += daxsteps.bind(sysfs, anchor, "device_dax", tuple(which))
    return [*steps, *guard.end]


def _first(topology: Topology, region: Region) -> DaxDevice:
    found = [d for d in topology.dax if d.region == region.name]
    if not found:
        raise CtlError(f"{region.name} has no dax device", object=region.name)
    return found[0]


class TakeNames(Step):
    """The new devices' names, once their sizes were read back."""

    def __init__(self, sysfs: Sysfs, anchor: Made, made: Made, sizes: tuple[int, ...]) -> None:
        self._sysfs, self._anchor, self._made, self._sizes = sysfs, anchor, made, sizes

    @property
    def what(self) -> str:
        names = [self._anchor.dax_name(i + 1) for i in range(len(self._sizes))]
        return f"read the sizes of {', '.join(names)} back"

    def apply(self) -> None:
        names = self._anchor.dax[1:]
        for name, size in zip(names, self._sizes, strict=True):
            found = self._sysfs.number(f"{daxsteps.DEVICES}/{name}/size")
            if found != size:
                raise CtlError(
                    f"{name} has {format_size(found)}, not {format_size(size)} as it was told",
                    object=name,
                    hint="dmesg | grep -i dax; does another program change it?",
                )
        self._made.dax[:] = names

    def undo(self) -> None:
        self._made.dax.clear()
