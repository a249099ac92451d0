# SPDX-License-Identifier: Apache-2.0
"""What a person would type to get the same with the tools cxl and daxctl."""

from __future__ import annotations

from collections.abc import Sequence

from sacctl.cxl.guard import AUTOPROBE
from sacctl.cxl.regionplan import RegionPlan

__all__ = ["convert", "create", "destroy"]


def create(
    plan: RegionPlan,
    *,
    region: str = "",
    sizes: Sequence[int] = (),
    driver: str = "device_dax",
    autoprobe: str = "1",
) -> list[str]:
    """The lines for one region.

    region: its name as it will probably be. sizes: of the dax devices it is split into, ()
    for one. driver: that they get. autoprobe: what it is now, and is to be again: if it were
    not switched off, kmem would get the memory first. `-t ram` is always said: cxl's default
    is pmem where a window can do both.
    """
    dax = _dax(region or "REGION")
    line = f"cxl create-region -t ram -d {plan.root} -w {plan.ways} -g {plan.granularity}"
    lines = [f"echo 0 > {AUTOPROBE}", f"{line} -s {plan.bytes} -m {' '.join(plan.order)}"]
    if len(sizes) > 1:
        lines.append(f"daxctl reconfigure-device -s {sizes[0]} {dax}.0")
        lines += [f"daxctl create-device -r {dax[3:]} -s {size}" for size in sizes[1:]]
    mode = "system-ram --no-online" if driver == "kmem" else "devdax"
    lines += [
        f"daxctl reconfigure-device -m {mode} {dax}.{index}"
        for index in range(max(1, len(sizes)))
    ]
    return [*lines, f"echo {autoprobe} > {AUTOPROBE}"]


def destroy(region: str, dax: Sequence[str] = ()) -> list[str]:
    """The lines that take a region away, with its memory."""
    lines = [f"daxctl disable-device {name}" for name in reversed(dax)]
    return [*lines, f"cxl disable-region {region}", f"cxl destroy-region {region}"]


def convert(name: str) -> list[str]:
    """The lines that make a dax device of system RAM a devdax."""
    return [f"daxctl offline-memory {name}", f"daxctl reconfigure-device -m devdax {name}"]


def _dax(region: str) -> str:
    number = region.removeprefix("region")
    return f"dax{number}" if number.isdigit() else "daxN"
