# SPDX-License-Identifier: Apache-2.0
"""Takes a pool's regions away once its memory is scrubbed; and the note in its record of what
stays, so that a command after a kill knows what is left."""

from __future__ import annotations

from dataclasses import dataclass

from sacctl.cxl.made import Made
from sacctl.cxl.model import Region, Topology
from sacctl.cxl.regiondestroy import destroy
from sacctl.cxl.sysfs import Sysfs
from sacctl.pool.boot import boot_id
from sacctl.pool.cxl_find import broken_region, find_region
from sacctl.pool.cxl_job import before
from sacctl.pool.cxl_record import CxlPart, RegionPart
from sacctl.pool.cxl_regions import removed_dax
from sacctl.pool.cxl_taken import whose
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import WriteRecord
from sacctl.pool.steps import Step

__all__ = ["Removal"]


@dataclass(frozen=True, slots=True)
class Removal:
    """Of one pool. there: its regions with their dax devices, None where they are not as
    recorded any more. others: regions and dax devices that other pools' records name.
    """

    sysfs: Sysfs
    records: Records
    there: list[Made] | None
    others: frozenset[str]
    force_offline: bool
    allow_leak: bool

    def note(self, topology: Topology, seen: Record, now: Record) -> WriteRecord:
        """The step that says "destroying" in the record, and what must stay when the rest is
        cleared."""
        part = now.cxl
        assert part is not None
        mine: set[str] = set()
        for number, region in enumerate(part.regions):
            found = self.found(topology, region, part)
            if region.made and not part.parent and found is not None:
                mine |= {found.name, *found.targets, *found.dax}
            names = self.there[number].dax if self.there else region.dax
            mine |= set(names if part.parent else names[1:])
        stays = tuple(name for name in before(topology) if name not in mine)
        decoders = tuple(name for name in sorted(mine) if name.startswith("decoder"))
        boot = boot_id(self.sysfs)
        noted = now.with_(cxl=part.with_(before=stays, decoders=decoders, boot=boot))
        return WriteRecord(self.records, seen, lambda: noted, "destroying")

    def found(self, topology: Topology, region: RegionPart, part: CxlPart) -> Region | None:
        """The region, also one whose devices have gone meanwhile. Only by its name in this
        boot: another region of the same devices is somebody else's."""
        if part.boot != boot_id(self.sysfs) or not region.region:
            return None
        if region.region in self.others and not part.parent:
            return None
        return find_region(topology, region, True) or broken_region(topology, region)

    def broken(self, topology: Topology, part: CxlPart) -> list[str]:
        """Names of regions that have lost a device, so that nobody reaches their memory."""
        found = [self.found(topology, region, part) for region in part.regions if region.made]
        return [region.name for region in found if region and not region.committed]

    def steps(self, topology: Topology, part: CxlPart) -> list[Step]:
        """Steps that take the regions away, or what was changed in those that stay."""
        steps: list[Step] = []
        for number, region in reversed(list(enumerate(part.regions))):
            found = self.found(topology, region, part)
            if region.made and not part.parent:
                if found is None:
                    continue
                steps += destroy(
                    self.sysfs,
                    topology,
                    found.name,
                    force_offline=self.force_offline,
                    allow_leak=self.allow_leak,
                    whose=whose(self.records, part.boot),
                )
                continue
            names = list(self.there[number].dax if self.there else ())
            steps += removed_dax(
                self.sysfs,
                topology,
                region.with_(region=found.name if found else ""),
                names if part.parent else names[1:],
                not part.parent,
            )
        return steps
