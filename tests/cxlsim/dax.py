# SPDX-License-Identifier: Apache-2.0
"""The dax bus: regions, devices, drivers, and who gets which."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cxlsim.answers import Oops, Refused, number
from cxlsim.parts import ALIGN, DaxDevice, DaxRegion, Region

if TYPE_CHECKING:
    from cxlsim.kernel import Kernel

__all__ = ["DaxBus", "Driver"]


@dataclass(eq=False)
class Driver:
    """takes_all: matches CXL and hmem memory by its type; else only names in ids."""

    name: str
    takes_all: bool
    ids: set[str] = field(default_factory=set)


class DaxBus:
    def __init__(self, kernel: Kernel, drivers: list[Driver]) -> None:
        self.kernel = kernel
        self.drivers = drivers
        self.autoprobe = True
        self.regions: list[DaxRegion] = []

    @property
    def devices(self) -> list[DaxDevice]:
        return [d for r in self.regions for d in r.devices]

    # ------------------------------------------------------------------- regions

    def add_region(self, region: Region) -> None:
        """The dax region of a CXL region, with one device of all its memory."""
        folder = f"{self.kernel.region_path(region)}/dax_region{region.id}"
        home = DaxRegion(
            region.id, region.start, region.bytes, region.window.node, folder, region
        )
        region.dax = home
        self.regions.append(home)
        if self.kernel.dax_delay:
            self.kernel.later(self.kernel.dax_delay, lambda: self._first(home))
        else:
            self._first(home)

    def _first(self, home: DaxRegion) -> None:
        if home in self.regions:
            self.add_device(home)

    def add_device(self, home: DaxRegion) -> DaxDevice:
        """The first device of a region: of all its memory."""
        return self._add(home, [(home.start, home.bytes)], memmap=True)

    def remove_region(self, home: DaxRegion) -> None:
        """Raises Oops where the kernel crashes: lost memory whose region goes."""
        for device in list(home.devices):
            self.release(device)
            self._gone(device)
        self.regions.remove(home)
        if self.kernel.panics_on_leak and self.kernel.memory.lost([(home.start, home.bytes)]):
            raise Oops(f"dax region {home.id} has gone, its memory is online until reboot")

    def _add(self, home: DaxRegion, ranges: list[tuple[int, int]], memmap: bool) -> DaxDevice:
        used = {d.id for d in home.devices}
        minors = {d.minor for d in self.devices}
        device = DaxDevice(home, _least(used), _least(minors), ranges, memmap=memmap)
        home.devices.append(device)
        if self.autoprobe:
            self._probe_any(device)
        return device

    def _gone(self, device: DaxDevice) -> None:
        device.home.devices.remove(device)
        self.kernel.media.forget(device)
        if device.damaged:
            raise Oops(f"{device.name} was open when device_dax took it again, and has gone")

    # ----------------------------------------------------------- dax_region's files

    def create(self, home: DaxRegion, value: str) -> None:
        if number(value, most=1 << 31) != 1:
            raise Refused(errno.EINVAL)
        if not home.available:
            raise Refused(errno.ENOSPC)
        device = self._add(home, [], memmap=False)
        home.seed = home.seed or device
        home.youngest = device

    def delete(self, home: DaxRegion, value: str) -> None:
        device = next((d for d in home.devices if d.name == value.removesuffix("\n")), None)
        if device is None:
            raise Refused(errno.ENXIO)
        if device.driver or device.bytes or device.id == 0:
            raise Refused(errno.EBUSY)
        self._gone(device)
        if home.seed is device:
            home.seed = None
        if home.youngest is device:
            home.youngest = None

    def resize(self, device: DaxDevice, value: str) -> None:
        wanted = number(value)
        if wanted % device.align:
            raise Refused(errno.EINVAL)
        if device.driver:
            raise Refused(errno.EBUSY)
        if wanted > device.bytes + device.home.available:
            raise Refused(errno.ENOSPC)
        while device.bytes > wanted:
            start, size = device.ranges.pop()
            keep = size - (device.bytes + size - wanted)
            if keep > 0:
                device.ranges.append((start, keep))
        while device.bytes < wanted:
            start, room = _gap(device.home)
            size = min(room, wanted - device.bytes)
            last = device.ranges[-1] if device.ranges else None
            if last and last[0] + last[1] == start:
                device.ranges[-1] = (last[0], last[1] + size)
            else:
                device.ranges.append((start, size))

    def set_align(self, device: DaxDevice, value: str) -> None:
        wanted = number(value)
        if device.driver:
            raise Refused(errno.EBUSY)
        if wanted not in (4096, ALIGN, 1 << 30) or device.bytes % wanted:
            raise Refused(errno.EINVAL)
        device.align = wanted

    def set_memmap(self, device: DaxDevice, value: str) -> None:
        if value[:1] not in "01yYnN" or not value:
            raise Refused(errno.EINVAL)
        if device.driver == "kmem":
            raise Refused(errno.EBUSY)
        device.memmap = value[0] in "1yY"

    # --------------------------------------------------------------------- drivers

    def find(self, name: str) -> DaxDevice | None:
        return next((d for d in self.devices if d.name == name.removesuffix("\n")), None)

    def bind(self, driver: Driver, value: str) -> None:
        device = self.find(value)
        if device is None or not self._match(driver, device):
            raise Refused(errno.ENODEV)
        if device.driver:
            raise Refused(errno.EBUSY)
        self._probe(driver, device)

    def unbind(self, driver: Driver, value: str) -> None:
        device = self.find(value)
        if device is None or device.driver != driver.name:
            raise Refused(errno.ENODEV)
        self.release(device)

    def new_id(self, driver: Driver, value: str) -> None:
        driver.ids.add(_id(value))
        for device in self.devices:
            if not device.driver and self._match(driver, device):
                self._try(driver, device)

    def remove_id(self, driver: Driver, value: str) -> None:
        driver.ids.discard(_id(value))

    def probe(self, value: str) -> None:
        """drivers_probe: any driver that wants the device."""
        device = self.find(value)
        if device is None:
            raise Refused(errno.ENODEV)
        if not device.driver:
            self._probe_any(device)

    def _match(self, driver: Driver, device: DaxDevice) -> bool:
        return driver.takes_all or device.name in driver.ids

    def _probe_any(self, device: DaxDevice) -> None:
        for driver in self.drivers:
            if not device.driver and self._match(driver, device):
                self._try(driver, device)

    def _try(self, driver: Driver, device: DaxDevice) -> None:
        try:
            self._probe(driver, device)
        except Refused as refused:
            self.kernel.say(f"{driver.name} {device.name}: probe failed: {refused}")

    def _probe(self, driver: Driver, device: DaxDevice) -> None:
        if not device.bytes:
            raise Refused(errno.ENXIO)
        if self.kernel.memory.held(device.ranges):
            again = driver.name == "device_dax" and device.failed
            device.failed |= driver.name == "device_dax"
            raise Refused(errno.EINVAL if again else errno.EBUSY, "could not reserve region")
        if driver.name == "kmem":
            self.kernel.memory.add(device.ranges, device.home.node, device.name)
        if driver.name == "device_dax" and self.kernel.media.in_use(device):
            self.kernel.say(f"{device.name}: refcount_t: underflow; use-after-free.")
            device.damaged = True
        device.driver = driver.name
        if device.home.seed is device:
            device.home.seed = None

    def release(self, device: DaxDevice) -> None:
        """The driver lets go."""
        if device.driver == "kmem":
            self.kernel.memory.remove(device.ranges)
        device.driver = ""


def _id(value: str) -> str:
    name = value.removesuffix("\n")
    if not re.fullmatch(r"dax(0|[1-9]\d*)\.(0|[1-9]\d*)", name):
        raise Refused(errno.EINVAL)
    return name


def _least(used: set[int]) -> int:
    return next(n for n in range(len(used) + 1) if n not in used)


def _gap(home: DaxRegion) -> tuple[int, int]:
    """The first free range of a region; there is one."""
    at = home.start
    for start, size in sorted(r for d in home.devices for r in d.ranges):
        if start > at:
            return at, start - at
        at = start + size
    return at, home.end - at
