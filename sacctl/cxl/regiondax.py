# SPDX-License-Identifier: Apache-2.0
"""The dax devices of a region, and why there are none."""

from __future__ import annotations

import re

from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, RefusedError

__all__ = ["DAX_WAIT", "FIRMWARE_RAM", "dax_of", "dax_ready", "no_dax", "ram_in"]

CXL = "/sys/bus/cxl/devices"
DAX = "/sys/bus/dax/devices"
DAX_WAIT = 5.0  # seconds; a kernel of 2026 takes 0.05
FIRMWARE_RAM = (
    "enable Specific Purpose memory (EFI_MEMORY_SP) in firmware, and do not boot with "
    "efi=nosoftreserve"
)


def dax_of(sysfs: Sysfs, region: str) -> list[str]:
    """Names of the dax devices of a region, the first one first."""
    folder = f"{CXL}/{region}"
    found = [
        name
        for inner in sysfs.names(folder)
        if re.fullmatch(r"dax_region\d+", inner)
        for name in sysfs.names(f"{folder}/{inner}")
        if re.fullmatch(r"dax\d+\.\d+", name)
    ]
    return sorted(found, key=lambda name: int(name.rpartition(".")[2]))


def dax_ready(sysfs: Sysfs, region: str) -> bool:
    """Whether a region has a dax device, complete: its attributes come behind its folder."""
    names = dax_of(sysfs, region)
    return bool(names) and all(sysfs.number(f"{DAX}/{name}/size") for name in names)


def no_dax(sysfs: Sysfs, region: str) -> CtlError:
    """Why a committed region has no dax device."""
    if not sysfs.exists("/sys/bus/cxl/drivers/cxl_dax_region"):
        return CtlError(
            f"{region} is there, but the driver cxl_dax_region, which makes its dax device, is "
            "not loaded",
            object=region,
            hint="modprobe dax_cxl",
        )
    start, size = (sysfs.number(f"{CXL}/{region}/{n}") for n in ("resource", "size"))
    ram = ram_in(sysfs, start, size)
    if ram:
        return RefusedError(
            f"{region} has no dax device: its range is System RAM from boot ({ram[0]})",
            object=region,
            hint=FIRMWARE_RAM,
        )
    return CtlError(
        f"{region} is committed, but no dax device came within {DAX_WAIT:.0f} s",
        object=region,
        hint="dmesg | grep -i -e cxl -e dax",
    )


def ram_in(sysfs: Sysfs, start: int, size: int) -> list[str]:
    """Lines of /proc/iomem: System RAM from boot that overlaps the range. Memory that kmem
    added is called "System RAM (kmem)" there."""
    found = []
    for line in sysfs.get("/proc/iomem").splitlines():
        part = re.fullmatch(r" *([0-9a-f]+)-([0-9a-f]+) : System RAM", line)
        if part and int(part[1], 16) < start + size and int(part[2], 16) >= start:
            found.append(line.strip())
    return found
