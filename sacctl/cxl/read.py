# SPDX-License-Identifier: Apache-2.0
"""One reading of what CXL and DAX objects there are.

What is there is described; what cannot be read or understood is left out with a reason. A
device is never described by what was guessed: plans are made over this.
"""

from __future__ import annotations

import re

from sacctl.cxl.model import DaxDevice, Memdev, Region, Skipped, Topology
from sacctl.cxl.read_attrs import CXL, by_number, names
from sacctl.cxl.read_blocks import policy
from sacctl.cxl.read_memdevs import memdevs, unclaimed
from sacctl.cxl.read_ports import Taken, bridges, ports, roots
from sacctl.cxl.read_regions import dax_devices, regions
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import NotFoundError, UsageError

__all__ = ["read", "resolve"]


def read(sysfs: Sysfs) -> Topology:
    """What there is now. Changes nothing and raises nothing for what sysfs holds: an object
    that vanished, may not be read or makes no sense is in ``skipped``."""
    found_memdevs, skipped = memdevs(sysfs)
    found_ports, skipped_ports = ports(sysfs)
    found_regions, skipped_regions = regions(sysfs)
    found_dax, skipped_dax = dax_devices(sysfs)
    found_roots, skipped_roots = roots(sysfs, _taken(found_regions), _by_root(sysfs))
    skipped += [*skipped_ports, *skipped_roots, *skipped_regions, *skipped_dax]
    skipped += unclaimed(sysfs, {memdev.pci for memdev in found_memdevs})
    skipped += [Skipped(dax.name, _foreign(dax)) for dax in found_dax if dax.kind != "cxl"]
    return Topology(
        memdevs=tuple(found_memdevs),
        roots=tuple(found_roots),
        regions=tuple(found_regions),
        dax=tuple(found_dax),
        policy=policy(sysfs),
        skipped=tuple(sorted(skipped, key=lambda one: by_number(one.name))),
        kernel=sysfs.get("/proc/sys/kernel/osrelease"),
        ports=tuple(found_ports),
        bridges=bridges(sysfs),
    )


def _taken(found: list[Region]) -> dict[str, Taken]:
    """What regions take of their windows. A region without its size takes nothing yet."""
    return {region.name: (region.start, region.bytes) for region in found}


def _by_root(sysfs: Sysfs) -> dict[str, list[str]]:
    """Names of regions by the window they are in, also of those that cannot be read."""
    found: dict[str, list[str]] = {}
    for name in names(sysfs, f"{CXL}/devices"):
        if re.fullmatch(r"region\d+", name):
            parts = sysfs.real(f"{CXL}/devices/{name}").split("/")
            if len(parts) > 2:
                found.setdefault(parts[-2], []).append(name)
    return found


def _foreign(dax: DaxDevice) -> str:
    if dax.kind == "hmem":
        return (
            "memory from firmware's tables (hmem) without a CXL region: it has no device to "
            "list and no device health; a pool can adopt it"
        )
    return "a dax device that is not of a CXL region (fsdax or a driver's own)"


def resolve(topology: Topology, name: str) -> Memdev:
    """The device that a user named: mem0, cxl0 (which means mem0), a serial number in
    decimal or 0x, or a PCI address with or without its domain.

    Raises NotFoundError, which names what there is, and UsageError where several devices
    have the name.
    """
    given = name.strip()
    found = [m for m in topology.memdevs if _is(m, given)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"'{given}' is the serial number of {len(found)} devices: "
            + ", ".join(f"{m.name} ({m.pci})" for m in found),
            object=given,
            hint="name it by its PCI address",
        )
    skipped = next((s for s in topology.skipped if s.name in (given, _mem(given))), None)
    if skipped is not None:
        raise NotFoundError(
            f"{skipped.name} cannot be used: {skipped.why}", object=skipped.name
        )
    there = ", ".join(f"{m.name} ({m.identity})" for m in topology.memdevs[:16])
    idle = [s for s in topology.skipped if ":" in s.name or s.name.startswith("mem")]
    but = "".join(f"; {s.name} is none: {s.why}" for s in idle[:4])
    raise NotFoundError(
        f"there is no CXL memory device '{given}'; there is {there or 'none at all'}{but}",
        object=given,
        hint="sacctl device list",
    )


def _mem(name: str) -> str:
    return re.sub(r"\Acxl(\d+)\Z", r"mem\1", name)


def _is(memdev: Memdev, name: str) -> bool:
    lower = name.lower()
    if lower.startswith(("serial:", "pci:")):
        return lower == memdev.identity
    if _mem(lower) == memdev.name or lower == memdev.pci or f"0000:{lower}" == memdev.pci:
        return True
    if re.fullmatch(r"0x[0-9a-f]{1,16}|[0-9]{1,20}", lower):
        return int(lower, 0 if lower.startswith("0x") else 10) == memdev.serial
    return False
