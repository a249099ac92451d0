# SPDX-License-Identifier: Apache-2.0
"""A pool on a simulated machine, as the parts that look at devices see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cxlsim

from sacctl.cxl import daxsteps, guard, regionsteps
from sacctl.cxl.made import Made
from sacctl.cxl.plan import plan_region
from sacctl.cxl.read import read
from sacctl.cxl.sysfs import Sysfs
from sacctl.pool.steps import carry_out

__all__ = ["TRACES", "CxlHouse", "cxl_house", "trace_lines"]

TRACES = Path(__file__).parent.parent / "data" / "cxl-trace"
META = 16 << 20


def trace_lines(kernel: str) -> list[str]:
    """What a real kernel's trace printed: "6.12" or "7.3"."""
    return (TRACES / f"{kernel}.txt").read_text().splitlines()


@dataclass
class CxlHouse:
    """pool: its record as pool.list gives it. data, meta: dax devices."""

    machine: cxlsim.Machine
    sysfs: Sysfs
    region: str
    data: str
    meta: str
    pool: dict[str, Any]


@contextmanager
def cxl_house(folder: Path, topology: str = "2hb4", **options: Any) -> Iterator[CxlHouse]:
    """All devices in one region, split in data and metadata, with device_dax."""
    with cxlsim.Machine(folder, topology, **options) as machine:
        sysfs = machine.sysfs
        found = read(sysfs)
        plan, made, policy = plan_region(found, list(found.memdevs)), Made(), guard.Guard(sysfs)
        sizes = [plan.bytes - META, META]
        bound = daxsteps.bind(sysfs, made, "device_dax", which=(0, 1))
        steps = [*regionsteps.create(sysfs, plan, made), *daxsteps.split(sysfs, made, sizes)]
        carry_out([*policy.begin, *steps, *bound, *policy.end], lambda _: None)
        data, meta = made.dax
        region = {
            "region": made.region,
            "devices": list(plan.identities),
            "dax": [data, meta],
        }
        pool = {
            "name": "kv",
            "uuid": "ab" * 16,
            "incarnation": 1,
            "meta": str(sysfs.at(f"/dev/{meta}")),
            "extents": [{"index": 0, "path": str(sysfs.at(f"/dev/{data}"))}],
            "cxl": {"mode": "devdax", "regions": [region]},
        }
        yield CxlHouse(machine, sysfs, made.region, data, meta, pool)
