# SPDX-License-Identifier: Apache-2.0
"""Why no CXL memory device is there: where was looked, and what was found."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sacctl.cxl.model import Topology
from sacctl.cxl.read_attrs import CXL, names
from sacctl.cxl.sysfs import Sysfs

__all__ = ["Looked", "looked_for"]

_NODES = "/sys/devices/system/node"
_ACPI = "/sys/bus/acpi/devices"


@dataclass(frozen=True, slots=True)
class Looked:
    """Attributes: where: a path; found: what is there, a sentence without its full stop;
    hint: the next command or step, or ""."""

    where: str
    found: str
    hint: str = ""


def looked_for(sysfs: Sysfs, topology: Topology) -> tuple[Looked, ...]:
    """Where a memory device would have been, from the platform down to the driver, and
    what was there instead."""
    found = [_platform(sysfs), *_functions(sysfs, topology), _drivers(sysfs)]
    found += _nodes(sysfs, topology)
    found += _hidden(sysfs, topology)
    return tuple(one for one in found if one is not None)


def _platform(sysfs: Sysfs) -> Looked | None:
    root = [n for n in names(sysfs, _ACPI) if n.startswith("ACPI0017")]
    bridges = [n for n in names(sysfs, _ACPI) if n.startswith("ACPI0016")]
    if not root:
        return Looked(
            f"{_ACPI}/ACPI0017*",
            "the firmware describes no CXL (no ACPI0017): this machine has none, or it is "
            "off in the firmware's setup",
            "sacctl pool create NAME --emulate SIZE works without CXL",
        )
    bound = any(
        sysfs.target(f"/sys/bus/platform/devices/{n}/driver") == "cxl_acpi" for n in root
    )
    said = f"the firmware describes CXL, with {len(bridges)} host bridges"
    if bound:
        return Looked(f"{_ACPI}/ACPI0017*", f"{said}, and cxl_acpi has it")
    return Looked(
        f"{_ACPI}/ACPI0017*", f"{said}, and the driver cxl_acpi does not have it",
        "modprobe cxl_acpi",
    )  # fmt: skip


def _functions(sysfs: Sysfs, topology: Topology) -> list[Looked]:
    where = "/sys/bus/pci/devices (class 0x0502)"
    waiting = [s for s in topology.skipped if ":" in s.name]
    if waiting:
        shown = ", ".join(s.name for s in waiting[:8])
        said = f"{len(waiting)} CXL memory devices without their driver: {shown}"
        hint = "modprobe cxl_pci" if "modprobe" in waiting[0].why else "dmesg | grep cxl"
        return [Looked(where, said, hint)]
    return [
        Looked(where, "no CXL memory device on PCI: none is plugged in, or it trained as PCIe")
    ]


def _drivers(sysfs: Sysfs) -> Looked | None:
    where = f"{CXL}/drivers"
    there = set(names(sysfs, where))
    if not there:
        all_of_them = "modprobe -a cxl_acpi cxl_pci cxl_mem cxl_port"
        return Looked(where, "no CXL driver is loaded", all_of_them)
    missing = [n for n in ("cxl_mem", "cxl_port") if n not in there]
    if not missing:
        return Looked(f"{CXL}/devices", "no mem* in it")
    return Looked(
        where, f"{' and '.join(missing)} is missing", f"modprobe -a {' '.join(missing)}"
    )


def _nodes(sysfs: Sysfs, topology: Topology) -> list[Looked]:
    """Nodes with memory and no CPU: CXL memory that firmware gave to the system."""
    ours = {dax.target_node for dax in topology.dax}
    found = []
    for name in names(sysfs, _NODES):
        number = re.fullmatch(r"node(\d{1,9})", name)
        if not number or int(number[1]) in ours:
            continue
        if sysfs.get(f"{_NODES}/{name}/cpulist").strip():
            continue
        total = re.search(r"MemTotal:\s+(\d{1,18}) kB", sysfs.get(f"{_NODES}/{name}/meminfo"))
        blocks = [n for n in names(sysfs, f"{_NODES}/{name}") if re.fullmatch(r"memory\d+", n)]
        if not (total and int(total[1])) and not blocks:
            continue
        size = f"{int(total[1]) >> 10} MiB" if total else f"{len(blocks)} blocks"
        found.append(
            Looked(
                f"{_NODES}/{name}",
                f"{size} of memory and no CPU: it may be CXL memory that the firmware gave "
                "to the system as System RAM at boot",
                "enable Specific Purpose memory (EFI_MEMORY_SP) in the firmware's setup, and "
                "do not boot with efi=nosoftreserve",
            )
        )
    return found


def _hidden(sysfs: Sysfs, topology: Topology) -> list[Looked]:
    """Memory set apart by firmware that no driver has made a dax device of. The lines went
    away with kernel 7.0: none says nothing."""
    if topology.dax or "Soft Reserved" not in sysfs.get("/proc/iomem"):
        return []
    return [
        Looked(
            "/proc/iomem",
            "the firmware set memory apart (Soft Reserved), and no dax device is made of it",
            "modprobe dax_hmem",
        )
    ]
