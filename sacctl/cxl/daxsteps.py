# SPDX-License-Identifier: Apache-2.0
"""Dax devices: split, and bound to a driver.

Readiness is the driver link of a dax device and its size, read back; that a write went well,
or that /dev/daxN.M exists, says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sacctl.cxl.driver import EnsureDriver, NewId, Unbind
from sacctl.cxl.made import Made
from sacctl.cxl.regiondax import DAX_WAIT
from sacctl.cxl.sizes import size_text
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.writes import Write, echo, wait_for
from sacctl.errors import CtlError, UsageError
from sacctl.pool.steps import Step

__all__ = ["ALIGN", "DEVICES", "CreateDax", "bind", "split"]

DEVICES = "/sys/bus/dax/devices"
ALIGN = 2 << 20  # of CXL's dax devices


def bind(
    sysfs: Sysfs, made: Made, driver: str, which: Sequence[int] = (0,), *, unbind: bool = False
) -> list[Step]:
    """Steps that bind dax devices of made, by their number in made.dax, to "device_dax" or
    "kmem".

    unbind: what has them now is unbound first; kmem only where no memory block is online.
    The steps raise NotFoundError where the driver is not loaded, and CtlError where the
    driver that is read back is another one.
    """
    steps: list[Step] = []
    for index in which:
        steps += _bound(sysfs, _named(made, index), driver, unbind)
    return steps


def _bound(sysfs: Sysfs, name: Callable[[], str], driver: str, unbind: bool) -> list[Step]:
    steps: list[Step] = [Unbind(sysfs, name)] if unbind else []
    return [*steps, NewId(sysfs, name, driver), EnsureDriver(sysfs, name, driver)]


def split(sysfs: Sysfs, made: Made, sizes: Sequence[int]) -> list[Step]:
    """Steps that divide the first dax device: it shrinks to sizes[0], then one device for
    each other size is made behind it. No driver may have it.

    sizes: bytes, multiples of 2 MiB. made.dax gets the new names. Raises UsageError.
    """
    if not sizes or any(size <= 0 or size % ALIGN for size in sizes):
        raise UsageError(
            "sizes of dax devices must be multiples of 2 MiB: "
            + ", ".join(size_text(size) for size in sizes),
            object=made.dax_name(),
        )
    first = _named(made, 0)
    steps: list[Step] = [Resize(sysfs, first, sizes[0])]
    for index, size in enumerate(sizes[1:], 1):
        steps.append(CreateDax(sysfs, made, index))
        steps.append(Resize(sysfs, _named(made, index), size))
    return [*steps, CheckSizes(sysfs, made, sizes)]


def _named(made: Made, index: int) -> Callable[[], str]:
    return lambda: made.dax_name(index)


class Resize(Write):
    """Undone, it has the size again that it had."""

    _before: int

    def __init__(self, sysfs: Sysfs, name: Callable[[], str], size: int) -> None:
        super().__init__(
            sysfs,
            "dax-size",
            lambda: f"{DEVICES}/{name()}/size",
            str(size),
            back=lambda: str(self._before),
        )
        self._before = 0
        self._size = size

    def apply(self) -> None:
        self._before = self.sysfs.number(self.path)
        if self._before != self._size:
            super().apply()


class CreateDax(Step):
    """One more dax device, without memory yet, in the region of the first."""

    def __init__(self, sysfs: Sysfs, made: Made, index: int) -> None:
        self._sysfs, self._made, self._index = sysfs, made, index
        self._name = ""

    @property
    def folder(self) -> str:
        """Where the attributes of the dax region are."""
        return f"{DEVICES}/{self._made.dax_name(0)}/../dax_region"

    @property
    def what(self) -> str:
        return echo(f"{self.folder}/create", "1")

    def apply(self) -> None:
        folder = f"{_real_folder(self._sysfs, self._made.need_dax())}"
        before = _dax_in(self._sysfs, folder)
        write = Write(self._sysfs, "dax-create", f"{folder}/dax_region/create", "1")
        write.apply()

        def new() -> list[str]:
            return sorted(_dax_in(self._sysfs, folder) - before)

        wait_for(lambda: bool(new()), DAX_WAIT)
        found = new()
        if not found:
            raise CtlError(
                f"no dax device came of '{self.what}'",
                object=folder,
                hint="dmesg | grep -i dax",
            )
        self._name = found[0]
        self._made.dax[self._index :] = [self._name]

    def undo(self) -> None:
        name, self._name = self._name, ""
        if name and self._sysfs.exists(f"{DEVICES}/{name}"):
            folder = _real_folder(self._sysfs, name)
            Write(self._sysfs, "dax-delete", f"{folder}/dax_region/delete", name).apply()
        if name in self._made.dax:
            self._made.dax.remove(name)


class CheckSizes(Step):
    def __init__(self, sysfs: Sysfs, made: Made, sizes: Sequence[int]) -> None:
        self._sysfs, self._made, self._sizes = sysfs, made, tuple(sizes)

    @property
    def what(self) -> str:
        names = [self._made.dax_name(i) for i in range(len(self._sizes))]
        return f"read the sizes of {', '.join(names)} back"

    def apply(self) -> None:
        for index, size in enumerate(self._sizes):
            name = self._made.need_dax(index)
            found = self._sysfs.number(f"{DEVICES}/{name}/size")
            if found != size:
                raise CtlError(
                    f"{name} has {size_text(found)}, not {size_text(size)} as it was told",
                    object=name,
                    hint="dmesg | grep -i dax; does another program change it?",
                )


def _real_folder(sysfs: Sysfs, name: str) -> str:
    """The folder that the dax device and its dax_region are in. Raises CtlError."""
    real = sysfs.real(f"{DEVICES}/{name}")
    if not real:
        raise CtlError(f"{name} has gone", object=name, hint="sacctl device list")
    return real.rpartition("/")[0]


def _dax_in(sysfs: Sysfs, folder: str) -> set[str]:
    return {name for name in sysfs.names(folder) if re.fullmatch(r"dax\d+\.\d+", name)}
