# SPDX-License-Identifier: Apache-2.0
"""The driver of a dax device: taken away, given, read back."""

from __future__ import annotations

import errno
from collections.abc import Callable

from sacctl.cxl.meanings import failed
from sacctl.cxl.offline import refuse_online
from sacctl.cxl.read import read
from sacctl.cxl.sizes import size_text
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.users import refuse_used
from sacctl.cxl.writes import echo, wait_for
from sacctl.errors import CtlError, NotFoundError, UsageError
from sacctl.pool.steps import Step

__all__ = ["EnsureDriver", "ForgetId", "NewId", "Unbind", "driver_of"]

DEVICES = "/sys/bus/dax/devices"
DRIVERS = "/sys/bus/dax/drivers"
_MODULES = {"device_dax": "device_dax", "kmem": "kmem"}
_WAIT = 5.0  # seconds: udev may be loading the driver
_PROBE = 2.0  # seconds that another probe of the device may take
_ABSENT = (errno.ENODEV, errno.ENOENT, errno.EINVAL, errno.ENXIO)


def driver_of(sysfs: Sysfs, name: str) -> str:
    """ "device_dax", "kmem", "fsdev_dax", or "" for none."""
    return sysfs.target(f"{DEVICES}/{name}/driver")


class _Driver(Step):
    """A step on one dax device, whose name may be known only when it runs."""

    def __init__(self, sysfs: Sysfs, name: Callable[[], str]) -> None:
        self._sysfs, self._name = sysfs, name

    def _write(self, driver: str, attribute: str) -> None:
        path, name = f"{DRIVERS}/{driver}/{attribute}", self._name()
        if driver == "device_dax" and attribute in ("bind", "new_id"):
            refuse_used(self._sysfs, name)  # who has it open from before would crash the kernel
        try:
            self._sysfs.write(path, name)
        except OSError as error:
            kind = "kmem" if driver == "kmem" and attribute != "unbind" else "bind"
            raise failed(self._sysfs, kind, echo(path, name), error) from error

    def _is(self, driver: str) -> bool:
        return driver_of(self._sysfs, self._name()) == driver

    def _there(self) -> bool:
        return self._sysfs.exists(f"{DEVICES}/{self._name()}")


class _Given(_Driver):
    """A step for one driver, named from the start. _done: there is something to undo."""

    def __init__(self, sysfs: Sysfs, name: Callable[[], str], driver: str) -> None:
        super().__init__(sysfs, name)
        self._driver = driver
        self._done = False


class Unbind(_Driver):
    """From whatever has it; nothing where nothing has. kmem is taken away only when no memory
    block is online (leak: even then). Undone, the driver has it again.

    expected: the driver that a step before this one gives it, for a plan.
    """

    def __init__(
        self, sysfs: Sysfs, name: Callable[[], str], *, leak: bool = False, expected: str = ""
    ) -> None:
        super().__init__(sysfs, name)
        self._leak = leak
        self._expected = expected
        self._from = ""

    @property
    def what(self) -> str:
        driver = self._from or self._expected or driver_of(self._sysfs, self._name())
        if not driver:
            return f"unbind the driver of {self._name()}, if there is one"
        return echo(f"{DRIVERS}/{driver}/unbind", self._name())

    def apply(self) -> None:
        driver = driver_of(self._sysfs, self._name())
        if not driver:
            return
        if driver == "kmem" and not self._leak:
            refuse_online(self._sysfs, self._name())
        self._from = driver
        try:
            self._write(driver, "unbind")
        except CtlError:
            self._from = ""
            raise

    def undo(self) -> None:
        if self._from and self._there() and not driver_of(self._sysfs, self._name()):
            self._write(self._from, "bind")
        self._from = ""


class NewId(_Given):
    """Tells a driver that the device is its own, which binds it where nothing has it. Undone:
    unbound, and the driver forgets it."""

    @property
    def what(self) -> str:
        return echo(f"{DRIVERS}/{self._driver}/new_id", self._name())

    def apply(self) -> None:
        sysfs, driver = self._sysfs, self._driver
        if driver not in _MODULES:
            raise UsageError(f"no driver '{driver}' for a dax device: device_dax or kmem")
        if not wait_for(lambda: sysfs.exists(f"{DRIVERS}/{driver}"), _WAIT):
            raise NotFoundError(
                f"the driver {driver} is not loaded",
                object=self._name(),
                hint=f"modprobe {_MODULES[driver]}",
            )
        if driver == "kmem":
            _check_block(sysfs, self._name())
        self._done = True
        try:
            self._write(driver, "new_id")
        except CtlError:
            self._done = False
            raise

    def undo(self) -> None:
        if not self._done:
            return
        if self._there() and self._is(self._driver):
            if self._driver == "kmem":
                refuse_online(self._sysfs, self._name())
            self._write(self._driver, "unbind")
        forget(self._sysfs, self._driver, self._name())
        self._done = False


class EnsureDriver(_Given):
    """Binds the device where new_id did not, and reads the driver back."""

    @property
    def what(self) -> str:
        line = echo(f"{DRIVERS}/{self._driver}/bind", self._name())
        return f"{line}  # if new_id did not"

    def apply(self) -> None:
        if not driver_of(self._sysfs, self._name()):
            self._done = True
            try:
                self._write(self._driver, "bind")
            except CtlError as error:
                # Busy: the probe that new_id began was at it still, and may well succeed.
                if error.errno != errno.EBUSY or not wait_for(
                    lambda: self._is(self._driver), _PROBE
                ):
                    self._done = False
                    raise
        found = driver_of(self._sysfs, self._name())
        if found != self._driver:
            raise CtlError(
                f"{self._name()} is bound to {found or 'no driver'}, not {self._driver}",
                object=self._name(),
                hint="does a udev rule or another program bind it?",
            )

    def undo(self) -> None:
        if self._done and self._there() and self._is(self._driver):
            self._write(self._driver, "unbind")
        self._done = False


class ForgetId(_Given):
    """Makes device_dax forget a device of this name, which a later region may get."""

    @property
    def what(self) -> str:
        return echo(f"{DRIVERS}/{self._driver}/remove_id", self._name())

    def apply(self) -> None:
        self._done = forget(self._sysfs, self._driver, self._name())

    def undo(self) -> None:
        if self._done:
            self._write(self._driver, "new_id")
        self._done = False


def forget(sysfs: Sysfs, driver: str, name: str) -> bool:
    """Writes remove_id; whether the driver knew the device. Raises CtlError."""
    path = f"{DRIVERS}/{driver}/remove_id"
    if not sysfs.exists(path):
        return False
    try:
        sysfs.write(path, name)
    except OSError as error:
        if error.errno in _ABSENT:
            return False
        raise failed(sysfs, "bind", echo(path, name), error) from error
    return True


def _check_block(sysfs: Sysfs, name: str) -> None:
    """kmem takes whole memory blocks only. Raises UsageError."""
    block = read(sysfs).policy.block_bytes
    start = sysfs.number(f"{DEVICES}/{name}/resource")
    size = sysfs.number(f"{DEVICES}/{name}/size")
    if not block:
        return
    first = -(-start // block) * block
    if (start + size) // block * block <= first:
        raise UsageError(
            f"{name} ({size_text(size)}) cannot be system RAM: it needs at least one whole "
            f"memory block of {size_text(block)}",
            object=name,
            hint="--mode devdax, or a larger --size",
        )
