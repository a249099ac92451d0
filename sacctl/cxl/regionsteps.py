# SPDX-License-Identifier: Apache-2.0
"""Makes a region: the kernel's writes in their order, each with its way back.

The order is the kernel's: name, granularity, ways, the devices' memory, size, targets,
commit, driver. Undone in reverse it is the order in which the kernel takes it back. The same
decoder is never written into a target twice: some kernels do not survive it.
"""

from __future__ import annotations

import errno
import re

from sacctl.cxl.made import Made
from sacctl.cxl.meanings import failed
from sacctl.cxl.regiondax import DAX_WAIT, dax_of, dax_ready, no_dax
from sacctl.cxl.regiondestroy import destroy, free_dpa
from sacctl.cxl.regionplan import RegionPlan
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.targets import Attach, allocate
from sacctl.cxl.writes import Write, echo, wait_for
from sacctl.errors import CtlError, UsageError
from sacctl.pool.steps import Step

__all__ = ["create", "destroy", "expect", "free_dpa"]

CXL = "/sys/bus/cxl/devices"
REGION_DRIVER = "/sys/bus/cxl/drivers/cxl_region"
_TRIES = 8


def expect(sysfs: Sysfs, plan: RegionPlan, made: Made) -> None:
    """Sets made.expected: the name that the kernel would give now. Changes nothing else.

    Raises UsageError where the kernel cannot make regions of volatile memory.
    """
    path = f"{CXL}/{plan.root}/create_ram_region"
    if sysfs.exists(f"{CXL}/{plan.root}") and not sysfs.exists(path):
        raise UsageError(
            f"this kernel makes no regions of volatile memory: {path} is not there (Linux 6.3 "
            "and later have it)",
            object=plan.root,
            hint="a newer kernel; or sacctl pool adopt, where firmware has made a region",
        )
    name = sysfs.get(path).strip()
    made.expected = name if re.fullmatch(r"region\d+", name) else ""


def create(sysfs: Sysfs, plan: RegionPlan, made: Made) -> list[Step]:
    """The steps from nothing to a committed region with its dax device, which no driver has
    yet (with guard's steps around them). made gets region and dax.

    Raises UsageError as expect does. The steps raise CtlError (BusyError, DeniedError,
    NotFoundError) with what the kernel said and what it means.
    """
    expect(sysfs, plan, made)

    def at(name: str) -> str:
        return f"{CXL}/{made.region_name()}/{name}"

    steps: list[Step] = [
        NewRegion(sysfs, plan, made),
        Write(
            sysfs,
            "granularity",
            lambda: at("interleave_granularity"),
            str(plan.granularity),
        ),
        Write(sysfs, "ways", lambda: at("interleave_ways"), str(plan.ways)),
    ]
    for decoder in plan.decoders:
        steps += allocate(sysfs, decoder, plan.bytes_each)
    steps.append(Write(sysfs, "size", lambda: at("size"), f"{plan.bytes:#x}"))
    steps += [
        Attach(sysfs, made.region_name, position, decoder)
        for position, decoder in enumerate(plan.decoders)
    ]
    steps += [
        Write(sysfs, "commit", lambda: at("commit"), "1", "0"),
        BindRegion(sysfs, made),
        FindDax(sysfs, made),
        CheckRegion(sysfs, plan, made),
    ]
    return steps


class NewRegion(Step):
    """Takes the name that the kernel offers. Others may be doing the same: then it offers
    another, and this begins again."""

    def __init__(self, sysfs: Sysfs, plan: RegionPlan, made: Made) -> None:
        self._sysfs, self._made = sysfs, made
        self._root = f"{CXL}/{plan.root}"

    @property
    def what(self) -> str:
        return echo(f"{self._root}/create_ram_region", self._made.region_name())

    def apply(self) -> None:
        path = f"{self._root}/create_ram_region"
        for last in (*[False] * (_TRIES - 1), True):
            try:
                name = self._sysfs.read(path).strip()
                self._made.region = name
                self._sysfs.write(path, name)
                return
            except OSError as error:
                name, self._made.region = self._made.region_name(), ""
                if error.errno != errno.EBUSY or last:
                    raise failed(self._sysfs, "create", echo(path, name), error) from error

    def undo(self) -> None:
        name, path = self._made.region, f"{self._root}/delete_region"
        if name and self._sysfs.exists(f"{CXL}/{name}"):
            try:
                self._sysfs.write(path, name)
            except OSError as error:
                raise failed(self._sysfs, "create", echo(path, name), error) from error
        self._made.region = ""


class BindRegion(Step):
    """Undone, it waits until the dax devices have gone with it."""

    def __init__(self, sysfs: Sysfs, made: Made) -> None:
        self._sysfs, self._made, self._bound = sysfs, made, False

    @property
    def what(self) -> str:
        return echo(f"{REGION_DRIVER}/bind", self._made.region_name())

    def apply(self) -> None:
        self._bound = True
        try:
            self._sysfs.write(f"{REGION_DRIVER}/bind", self._made.region)
        except OSError as error:
            self._bound = False
            raise failed(self._sysfs, "bind", self.what, error) from error

    def undo(self) -> None:
        name = self._made.region
        if self._bound and self._sysfs.target(f"{CXL}/{name}/driver") == "cxl_region":
            path = f"{REGION_DRIVER}/unbind"
            try:
                self._sysfs.write(path, name)
            except OSError as error:
                raise failed(self._sysfs, "bind", echo(path, name), error) from error
            wait_for(lambda: not dax_of(self._sysfs, name), DAX_WAIT)
        self._bound = False
        self._made.dax.clear()


class FindDax(Step):
    """Waits for the region's dax device: that the region was made says nothing."""

    def __init__(self, sysfs: Sysfs, made: Made) -> None:
        self._sysfs, self._made = sysfs, made

    @property
    def what(self) -> str:
        return f"wait for the dax device of {self._made.region_name()}"

    def apply(self) -> None:
        sysfs, name = self._sysfs, self._made.region
        if not wait_for(lambda: dax_ready(sysfs, name), DAX_WAIT):
            raise no_dax(sysfs, name)
        self._made.dax[:] = dax_of(sysfs, name)

    def undo(self) -> None:
        self._made.dax.clear()


class CheckRegion(Step):
    """Reads everything back: an exit code, or a write that went well, proves nothing."""

    def __init__(self, sysfs: Sysfs, plan: RegionPlan, made: Made) -> None:
        self._sysfs, self._plan, self._made = sysfs, plan, made

    @property
    def what(self) -> str:
        return f"read {self._made.region_name()} back"

    def apply(self) -> None:
        sysfs, plan, at = self._sysfs, self._plan, f"{CXL}/{self._made.region}"
        wanted: list[tuple[str, object, object]] = [
            ("interleave_ways", sysfs.number(f"{at}/interleave_ways"), plan.ways),
            (
                "interleave_granularity",
                sysfs.number(f"{at}/interleave_granularity"),
                plan.granularity,
            ),
            ("size", sysfs.number(f"{at}/size"), plan.bytes),
            ("commit", sysfs.number(f"{at}/commit"), 1),
            ("driver", sysfs.target(f"{at}/driver"), "cxl_region"),
        ]
        wanted += [
            (f"target{i}", sysfs.get(f"{at}/target{i}"), decoder)
            for i, decoder in enumerate(plan.decoders)
        ]
        size = sum(sysfs.number(f"/sys/bus/dax/devices/{name}/size") for name in self._made.dax)
        wanted.append(("the size of its dax device", size, plan.bytes))
        wrong = [f"{name} is {seen}, not {want}" for name, seen, want in wanted if seen != want]
        if wrong:
            raise CtlError(
                f"{self._made.region} does not read back as it was written: {'; '.join(wrong)}",
                object=self._made.region,
                hint="dmesg | grep -i cxl; does another program change it?",
            )
