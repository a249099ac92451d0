# SPDX-License-Identifier: Apache-2.0
"""Devices, windows, regions and dax devices made into records, for JSON and for tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sacctl.cxl import adopt
from sacctl.cxl.device_records import (
    DaxRecord,
    DeviceRecord,
    LinkRecord,
    PortRecord,
    RegionRecord,
    SkippedRecord,
    WindowRecord,
)
from sacctl.cxl.model import (
    Block,
    DaxDevice,
    Link,
    Memdev,
    Port,
    Region,
    RootDecoder,
    Skipped,
    Topology,
)
from sacctl.cxl.read_blocks import blocks_of
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.tools import Reading, Readings
from sacctl.cxl.verdict import PoolUse, health_word, judge, regions_of
from sacctl.errors import CtlError

__all__ = ["View"]


class View:
    """One reading, made into records. Reads memory blocks, and what can be adopted, anew.

    Attributes:
        pools: that have a device by their records, by Memdev.identity.
        readings: of the program cxl.
        names: vendor and product by PCI address.
    """

    def __init__(
        self,
        sysfs: Sysfs,
        topology: Topology,
        pools: Mapping[str, Sequence[PoolUse]],
        readings: Readings,
        names: Mapping[str, tuple[str, str]],
    ) -> None:
        self._sysfs = sysfs
        self.topology = topology
        self.pools = pools
        self.readings = readings
        self.names = names
        self.blocks: dict[str, Sequence[Block]] = {
            dax.name: blocks_of(sysfs, topology, dax.name)
            for dax in topology.dax
            if dax.driver == "kmem"
        }

    def judgement(self, name: str) -> adopt.Judgement | None:
        """Whether a pool can have a region or a dax device; None where it left meanwhile."""
        try:
            return adopt.judge(self.topology, self._sysfs, name)
        except (CtlError, OSError):
            return None

    def skipped(self) -> list[SkippedRecord]:
        """What was seen and is no device, each with its reason and what to do."""
        return [self._skipped(one) for one in self.topology.skipped]

    def _skipped(self, one: Skipped) -> SkippedRecord:
        why = one.why
        hint = why.rpartition("(")[2].removesuffix(")") if "(modprobe " in why else ""
        if "cxl_pci has not taken it" in why:
            hint = f"echo {one.name} > /sys/bus/pci/drivers/cxl_pci/bind; dmesg | grep cxl"
        elif "dmesg says why" in why:
            hint = f"dmesg | grep -e cxl -e {one.name}"
        dax = self.topology.dax_device(one.name)
        if dax is None or dax.kind != "hmem":
            return {"name": one.name, "why": why, "hint": hint}
        pools = [] if dax.start is None else self.pools.get(f"hmem:{dax.start:#x}", ())
        if pools:
            named = ", ".join(use.pool for use in pools)
            why, hint = f"in use by pool {named}: {adopt.FOREIGN}", ""
        elif (found := self.judgement(one.name)) is not None:
            force = " --force-offline" if found.needs == "force-offline" else ""
            why = found.message
            hint = f"sacctl pool adopt NAME {one.name}{force}" if found.usable else found.hint
        return {"name": one.name, "why": why, "hint": hint}

    def dax_of(self, memdev: Memdev) -> list[DaxDevice]:
        """Dax devices of those regions."""
        regions = {region.name for region in regions_of(self.topology, memdev)}
        return [dax for dax in self.topology.dax if dax.region in regions]

    def device(self, memdev: Memdev, *, full: bool = False) -> DeviceRecord:
        """A device; full: with the keys of `device show`."""
        pools = self.pools.get(memdev.identity, ())
        held = regions_of(self.topology, memdev)
        found = None if pools or not held else self.judgement(held[0].name)
        verdict = judge(self.topology, memdev, pools, self.blocks, found)
        reading = self.readings.of(memdev.pci)
        vendor_name, product_name = self.names.get(memdev.pci, ("", ""))
        dax = self.dax_of(memdev)
        record: DeviceRecord = {
            "name": memdev.name,
            "serial": f"{memdev.serial:#x}",
            "identity": memdev.identity,
            "pci": memdev.pci,
            "vendor": f"{memdev.vendor:#06x}",
            "device": f"{memdev.device:#06x}",
            "vendor_name": vendor_name,
            "product_name": product_name,
            "ram_bytes": memdev.ram_bytes,
            "pmem_bytes": memdev.pmem_bytes,
            "used_bytes": memdev.used_bytes,
            "free_bytes": memdev.free_bytes,
            "numa_node": memdev.numa_node,
            "target_nodes": sorted({d.target_node for d in dax if d.target_node >= 0}),
            "link": _link(memdev.link),
            "host_bridge": memdev.host_bridge,
            "ports": list(memdev.ports),
            "dports": list(memdev.dports),
            "switches": [
                port.at
                for port in self.topology.ports
                if port.kind == "switch" and port.name in memdev.ports
            ],
            "endpoint": memdev.endpoint,
            "driver": memdev.driver,
            "health": health_word(memdev, reading),
            "pools": [use.pool for use in pools],
            "regions": [region.name for region in regions_of(self.topology, memdev)],
            "dax": [device.name for device in dax],
            "verdict": verdict.word,
            "why": verdict.text,
            "hint": verdict.hint,
        }
        if full:
            _fill(record, memdev, reading)
        return record

    def devices(self) -> list[DeviceRecord]:
        return [self.device(memdev) for memdev in self.topology.memdevs]

    def region(self, region: Region) -> RegionRecord:
        owners = (self.topology.owner_of(target) for target in region.targets)
        return {
            "name": region.name,
            "window": region.root,
            "start": region.start,
            "bytes": region.bytes,
            "ways": region.ways,
            "granularity": region.granularity,
            "targets": list(region.targets),
            "devices": [owner.name if owner else "" for owner in owners],
            "committed": region.committed,
            "mode": region.mode,
            "driver": region.driver,
            "dax": list(region.dax),
        }

    def dax(self, device: DaxDevice) -> DaxRecord:
        blocks = self.blocks.get(device.name, ())
        online = [block for block in blocks if block.state != "offline"]
        return {
            "name": device.name,
            "kind": device.kind,
            "bytes": device.bytes,
            "align": device.align,
            "start": device.start,
            "target_node": device.target_node,
            "driver": device.driver,
            "region": device.region,
            "path": device.path,
            "region_bytes": device.region_bytes,
            "available_bytes": device.available_bytes,
            "blocks": {
                "total": len(blocks),
                "online": len(online),
                "zones": sorted({block.zones for block in online if block.zones}),
            },
        }

    def window(self, root: RootDecoder) -> WindowRecord:
        return {
            "name": root.name,
            "start": root.start,
            "bytes": root.bytes,
            "free_bytes": root.free_bytes,
            "ways": root.ways,
            "granularity": root.granularity,
            "targets": list(root.targets),
            "ram": root.ram,
            "locked": root.locked,
            "regions": list(root.regions),
        }

    def port(self, port: Port) -> PortRecord:
        return {
            "name": port.name,
            "kind": port.kind,
            "parent": port.parent,
            "at": port.at,
            "above": port.above,
            "driver": port.driver,
            "decoders": port.decoders,
            "committed": port.committed,
        }


def _link(link: Link | None) -> LinkRecord | None:
    if link is None:
        return None
    return {
        "speed": link.speed,
        "width": link.width,
        "max_speed": link.max_speed,
        "max_width": link.max_width,
        "degraded": link.degraded,
    }


def _fill(record: DeviceRecord, memdev: Memdev, reading: Reading | None) -> None:
    """The keys of `device show`."""
    record["decoders"] = [
        {
            "name": decoder.name,
            "mode": decoder.mode,
            "dpa_start": decoder.dpa_start,
            "dpa_bytes": decoder.dpa_bytes,
            "region": decoder.region,
            "locked": decoder.locked,
        }
        for decoder in memdev.decoders
    ]
    record["decoders_committed"] = memdev.committed
    record["firmware"] = memdev.firmware
    record["security"] = memdev.security
    record["aer"] = dict(memdev.aer)
    record["path"] = memdev.path
    if reading is None:
        return
    if reading.temperature is not None:
        record["temperature"] = reading.temperature
    if reading.life_used is not None:
        record["life_used_percent"] = reading.life_used
    if reading.status:
        record["conditions"] = list(reading.status)
    if reading.errors:
        record["errors"] = dict(reading.errors)
    if reading.alerts:
        record["alerts"] = dict(reading.alerts)
    if reading.poison is not None:
        record["poison"] = [
            {"dpa": poison.dpa, "bytes": poison.bytes, "source": poison.source}
            for poison in reading.poison
        ]
