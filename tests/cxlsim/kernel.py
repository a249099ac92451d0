# SPDX-License-Identifier: Apache-2.0
"""The simulated kernel: takes writes, changes the machine, and shows what it has become."""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from cxlsim import regions, show_dax, show_pci, show_ports
from cxlsim.answers import Oops, Refused, number
from cxlsim.dax import DaxBus, Driver
from cxlsim.media import Media
from cxlsim.memory import Memory
from cxlsim.parts import Decoder, Memdev, Region, Shown
from cxlsim.routes import Routes
from cxlsim.shape import Parts
from cxlsim.trace import Tracing, poison_line
from cxlsim.tree import Files, Tree, file, folder

__all__ = ["Kernel", "Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """version: "6.12" or "7.3". kmem: that driver is loaded. invalidates: CPU caches can be
    invalidated (not in a guest whose CPU says so). auto_online: of auto_online_blocks.
    """

    version: str = "6.12"
    kmem: bool = True
    auto_online: str = "online"
    block_bytes: int = 128 << 20
    invalidates: bool = True
    take_ram: bool = True  # windows have create_ram_region
    bandwidth: int = 0  # of a device, in MiB/s; 0: firmware does not say
    cmdline: str = "ro quiet"


class Kernel:
    """Every change goes through ``write`` or ``change``, under one lock; then files follow."""

    def __init__(self, parts: Parts, tree: Tree, media: Media, options: Options) -> None:
        if options.version not in ("6.12", "7.3"):
            raise ValueError(f"kernel {options.version!r}: 6.12 or 7.3")
        new = options.version == "7.3"
        self.version = options.version
        self.no_mode = errno.EBUSY if new else errno.EINVAL  # dpa_size before mode
        self.no_part = errno.ENODEV if new else errno.EINVAL  # as a target, without mode
        self.no_pmem = errno.EINVAL if new else errno.ENXIO  # mode pmem, and there is none
        self.dax_delay = 0.05 if new else 0.0
        self.panics_on_leak = new
        self.soft_reserved = not new
        self.invalidates = options.invalidates
        self.windows_take_ram = options.take_ram
        self.bridges, self.windows, self.memdevs = parts.bridges, parts.windows, parts.memdevs
        self.routes = Routes(parts.ports)
        self.tree, self.media = tree, media
        self.trace = Tracing(tree.root)
        drivers = [Driver("device_dax", False)]
        if options.kmem:
            drivers.append(Driver("kmem", True))
        self.memory = Memory(self, options.auto_online, options.block_bytes)
        self.dax = DaxBus(self, drivers)
        self.bandwidth, self.cmdline = options.bandwidth, options.cmdline
        self.boot_id = str(uuid.uuid4())
        self.log: list[str] = []
        self.oops = ""
        self.lock = threading.RLock()
        self._timers: list[threading.Timer] = []

    # ---------------------------------------------------------------------- writes

    def write(self, path: str, value: str) -> int:
        """One write(2) to a file: 0 or the errno. After an oops all of them fail with EIO."""
        with self.lock:
            if self.oops:
                return errno.EIO
            _, entry = self.tree.find(path)
            if entry is None:
                return errno.ENOENT
            if entry.kind == "d":
                return errno.EISDIR
            store = entry.store
            if store is None:
                return errno.EACCES
            try:
                self.change(lambda: store(value))
            except Refused as refused:
                return refused.errno or errno.EIO
            except Oops as oops:
                self.oops = str(oops)
                self.say(f"Oops: {oops}")
                return errno.EIO
            return 0

    def change(self, what: Callable[[], None]) -> None:
        """Does it, and shows the machine after it, also where it failed half-way."""
        with self.lock:
            try:
                what()
            finally:
                self.show()

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, lambda: None if self.oops else self.change(what))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        with self.lock:
            self.media.keep()
            self.media.close()
            self.trace.close()

    def say(self, line: str) -> None:
        """A line of the kernel's log."""
        self.log.append(line)

    # ----------------------------------------------------------------------- files

    def files(self) -> Files:
        return {
            **show_pci.pci_files(self),
            **show_ports.cxl_files(self),
            **show_dax.dax_files(self),
            **show_dax.memory_files(self),
            "/dev": folder(),
            "/sys/kernel/debug/cxl": folder(),
            "/proc/cmdline": file(self.cmdline),
            "/proc/iomem": show_dax.iomem(self),
            "/proc/sys/kernel/osrelease": file(f"{self.version}.0-sim"),
            "/proc/sys/kernel/random/boot_id": file(self.boot_id),
            "/proc/version": file(f"Linux version {self.version}.0-sim (simulated)"),
        }

    def show(self) -> None:
        self.media.show(self.dax.devices)
        self.tree.show(self.files())

    def region_path(self, region: Region) -> str:
        return f"{show_ports.ROOT}/{region.window.name}/{region.name}"

    # ------------------------------------------------------------------ the cxl bus

    def free_region_id(self) -> int:
        used = {w.next_id for w in self.windows}
        used |= {r.id for w in self.windows for r in w.regions}
        used |= {r.id for r in self.dax.regions}
        return next(n for n in range(len(used) + 1) if n not in used)

    def decoder(self, name: str) -> Decoder | None:
        found = (d for m in self.memdevs if m.present and m.probed for d in m.decoders)
        return next((d for d in found if d.name == name), None)

    def on_cxl_bus(self, name: str) -> bool:
        return f"{show_ports.BUS}/devices/{name}" in self.tree.shown

    def _region(self, value: str) -> Region:
        name = value.removesuffix("\n")
        for window in self.windows:
            for region in window.regions:
                if region.name == name:
                    return region
        raise Refused(errno.ENODEV)

    def bind_region(self, value: str) -> None:
        regions.bind(self, self._region(value))

    def unbind_region(self, value: str) -> None:
        region = self._region(value)
        if not region.bound:
            raise Refused(errno.ENODEV)
        regions.unbind(self, region)

    def flush(self, value: str) -> None:
        if value.removesuffix("\n") != "1":
            raise Refused(errno.EINVAL)

    def cannot(self, value: str) -> None:
        """What this machine does not offer."""
        raise Refused(errno.EOPNOTSUPP)

    # ----------------------------------------------------------------------- devices

    def _memdev(self, value: str, by: str) -> Memdev:
        wanted = value.removesuffix("\n")
        for memdev in self.memdevs:
            if memdev.plugged and getattr(memdev, by) == wanted:
                return memdev
        raise Refused(errno.ENODEV)

    def bind_pci(self, value: str) -> None:
        memdev = self._memdev(value, "pci")
        if memdev.bound:
            raise Refused(errno.EBUSY)
        memdev.bound = memdev.probed = True
        self._rename(memdev)

    def unbind_pci(self, value: str) -> None:
        memdev = self._memdev(value, "pci")
        if not memdev.bound:
            raise Refused(errno.ENODEV)
        self._leave(memdev)
        memdev.bound = False

    def bind_mem(self, value: str) -> None:
        memdev = self._memdev(value, "name")
        if memdev.probed:
            raise Refused(errno.EBUSY)
        memdev.probed = True

    def unbind_mem(self, value: str) -> None:
        memdev = self._memdev(value, "name")
        if not memdev.probed:
            raise Refused(errno.ENODEV)
        self._leave(memdev)
        memdev.probed = False

    def remove_pci(self, memdev: Memdev, value: str) -> None:
        if number(value):
            self.unplug(memdev)

    def rescan(self, value: str) -> None:
        if number(value):
            for memdev in self.memdevs:
                if not memdev.plugged and not self.media.away(memdev):
                    self.plug(memdev)

    def unplug(self, memdev: Memdev) -> None:
        """The device is gone: its regions lose a target, their dax devices go."""
        if memdev.plugged:
            self._leave(memdev)
            memdev.plugged = False
            for decoder in memdev.decoders:
                decoder.shown = Shown()  # registers without power, unlike those of a driver

    def plug(self, memdev: Memdev) -> None:
        memdev.plugged = memdev.bound = memdev.probed = True
        self._rename(memdev)

    def _leave(self, memdev: Memdev) -> None:
        for decoder in reversed(memdev.decoders):
            if decoder.region is not None:
                regions.detach(self, decoder.region, decoder.position)
            decoder.mode, decoder.committed = "none", False
            decoder.dpa_start = decoder.dpa_bytes = 0

    def _rename(self, memdev: Memdev) -> None:
        """The lowest free numbers, as the kernel gives them."""
        others = [m for m in self.memdevs if m is not memdev and m.present]
        names = {m.number for m in others}
        memdev.number = next(n for n in range(len(names) + 1) if n not in names)
        ports = {p.number for p in self.routes.ports} | {m.endpoint for m in others} | {0}
        memdev.endpoint = next(n for n in range(len(ports) + 1) if n not in ports)

    # ------------------------------------------------------------------------ poison

    def poison(self, memdev: Memdev, value: str, on: bool) -> None:
        """debugfs: poison of 64 bytes at a DPA."""
        at = number(value)
        if at % 64 or at >= memdev.bytes:
            raise Refused(errno.EINVAL)
        if on:
            memdev.poison.add(at)
        else:
            memdev.poison.discard(at)
        self.trace.emit(poison_line(memdev, at, "Inject" if on else "Clear"))

    def list_poison(self, memdev: Memdev, value: str) -> None:
        """Reports the poison list to the trace, as cxl_poison events."""
        if value[:1] in ("0", "n", "N"):
            return
        if value[:1] not in ("1", "y", "Y"):
            raise Refused(errno.EINVAL)
        for at in sorted(memdev.poison):
            self.trace.emit(poison_line(memdev, at, "List"))
