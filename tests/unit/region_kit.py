# SPDX-License-Identifier: Apache-2.0
"""A simulated machine and the usual steps on it, for tests of regions."""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cxlsim import Machine

from sacctl.cxl import daxsteps, guard, plan, regionsteps
from sacctl.cxl.made import Made
from sacctl.cxl.model import EndpointDecoder, Memdev, Policy, RootDecoder, Topology
from sacctl.cxl.plan import RegionPlan
from sacctl.cxl.read import read
from sacctl.pool.steps import Step, carry_out

META = 16 << 20
UNIT = 256 << 20
CXL = "/sys/bus/cxl/devices"
DAX = "/sys/bus/dax"


def quiet(_: str) -> None:
    """Says nothing."""


class House:
    """A machine with CXL devices."""

    def __init__(self, folder: Path, topology: str = "2hb2", **options: Any) -> None:
        # A machine is a thousand small files, written again and again: not on a disk.
        memory = Path("/dev/shm")
        where = tempfile.mkdtemp(prefix="sac-test-", dir=memory if memory.is_dir() else folder)
        self._gone = weakref.finalize(self, shutil.rmtree, where, ignore_errors=True)
        self.machine = Machine(where, topology, seed=1, **options)
        self.sysfs = self.machine.sysfs

    def close(self) -> None:
        self.machine.close()
        self._gone()

    def topology(self) -> Topology:
        return read(self.sysfs)

    def memdevs(self, *serials: int) -> list[Memdev]:
        """By serial, in the order given; all without one."""
        there = self.topology().memdevs
        if not serials:
            return list(there)
        return [next(m for m in there if m.serial == serial) for serial in serials]

    def plan(self, *serials: int, **asked: Any) -> RegionPlan:
        return plan.plan_region(self.topology(), self.memdevs(*serials), **asked)

    def steps(
        self, made: Made, planned: RegionPlan, driver: str = "device_dax", *, split: bool = True
    ) -> list[Step]:
        """All from nothing to dax devices with a driver."""
        held = guard.Guard(self.sysfs)
        parts: Sequence[int] = (planned.bytes - META, META) if split else ()
        return [
            *held.begin,
            *regionsteps.create(self.sysfs, planned, made),
            *(daxsteps.split(self.sysfs, made, parts) if split else ()),
            *daxsteps.bind(self.sysfs, made, driver, range(len(parts) or 1)),
            *held.end,
        ]

    def create(self, *serials: int, **asked: Any) -> Made:
        made = Made()
        carry_out(self.steps(made, self.plan(*serials, **asked)), quiet)
        return made

    def destroy(self, region: str, **allowed: Any) -> None:
        carry_out(regionsteps.destroy(self.sysfs, self.topology(), region, **allowed), quiet)

    def driver(self, dax: str) -> str:
        return self.sysfs.target(f"{DAX}/devices/{dax}/driver")

    def written(self, since: int = 0) -> list[tuple[str, str]]:
        """Writes that the kernel took: (last parts of the path, value)."""
        return [
            ("/".join(path.split("/")[-2:]), value.strip())
            for path, value, code in self.machine.writes[since:]
            if not code
        ]


def differences(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[Any, Any]]:
    return {
        path: (before.get(path), after.get(path))
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
    }


def count_writes(house: House, do: Callable[[], object]) -> int:
    before = len(house.machine.writes)
    do()
    return len(house.machine.writes) - before


def moved(memdev: Memdev, **changes: Any) -> Memdev:
    """A device with other values, for plans over machines that there is no simulation of."""
    return replace(memdev, **changes)


def device(
    number: int, bridge: str = "pci0000:0c", dports: Sequence[str] = (), **changes: Any
) -> Memdev:
    """A device by hand: mem3 below a bridge's root port 3, of 1 GiB, with four decoders."""
    ports = [f"port{int(re.sub(r'.*:', '', bridge), 16)}"]
    ports += [f"switch-{port}" for port in dports[:-1]]
    made = Memdev(
        name=f"mem{number}",
        serial=0x100 + number,
        pci=f"0000:{0xD0 + number:02x}:00.0",
        vendor=0x8086,
        device=0xD93,
        firmware="",
        numa_node=-1,
        ram_bytes=1 << 30,
        pmem_bytes=0,
        driver="cxl_mem",
        host_bridge=bridge,
        ports=tuple(ports),
        dports=tuple(dports) or (f"0000:0c:{number:02x}.0",),
        endpoint=f"endpoint{number + 10}",
        decoders=tuple(
            EndpointDecoder(f"decoder{number + 10}.{i}", "none", None, 0, "", False)
            for i in range(4)
        ),
        link=None,
    )
    return replace(made, **changes)


def one_window(bridge: str = "pci0000:0c", **changes: object) -> RootDecoder:
    made = RootDecoder(
        name="decoder0.0",
        start=0x1000000000,
        bytes=4 << 30,
        ways=1,
        granularity=256,
        targets=(bridge,),
        ram=True,
        locked=False,
        free_bytes=4 << 30,
        regions=(),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def topology(window: RootDecoder, devices: list[Memdev]) -> Topology:
    policy = Policy("offline", True, (), 128 << 20)
    return Topology(tuple(devices), (window,), (), (), policy, (), "6.12.0")
