# SPDX-License-Identifier: Apache-2.0
"""The bytes: one file for each device, from which those of dax devices are put together."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

import numpy as np

from cxlsim.parts import DaxDevice, Memdev

__all__ = ["Media"]

_STEP = 2 << 20  # copied at a time: dax devices are multiples of it, stripes divide it


class Media:
    """DIR/.memory/memN.raw by position in the topology, DIR/dev/daxX.Y, and the way between.

    A dax device that device_dax has is a sparse file of its size. What is written to it is
    carried to the devices when the driver lets go (or by keep()); then the file is cut to
    nothing, so that who has it mapped gets SIGBUS, and a socket stands in its place, so that
    open() says ENXIO: as on a real machine.
    """

    def __init__(self, root: Path, memdevs: list[Memdev]) -> None:
        self.root = root
        self.dev = root / "dev"
        self.gone: set[Memdev] = set()
        self._open: dict[str, tuple[DaxDevice, list[tuple[int, int]]]] = {}
        self._plans: dict[str, Layout] = {}
        self._idle: set[str] = set()
        self._old: dict[DaxDevice, list[int]] = {}  # files of drivers that have let go
        folder = root / ".memory"
        folder.mkdir(exist_ok=True)
        self.dev.mkdir(exist_ok=True)
        self.at = {m: folder / f"mem{m.index}.raw" for m in memdevs}
        for memdev, path in self.at.items():
            with path.open("ab") as made:
                if made.tell() < memdev.bytes:
                    made.truncate(memdev.bytes)

    def away(self, memdev: Memdev) -> bool:
        """Taken out of its slot, so that a rescan does not find it."""
        return memdev in self.gone

    def show(self, devices: list[DaxDevice]) -> None:
        """Device nodes for these dax devices, and no others."""
        usable = {d.name: d for d in devices if d.driver == "device_dax"}
        for name, (device, ranges) in list(self._open.items()):
            if usable.get(name) is not device or device.ranges != ranges:
                self._close(name)
        names = {d.name for d in devices}
        for name in self._idle - (names - usable.keys()):
            (self.dev / name).unlink(missing_ok=True)
        self._idle &= names - usable.keys()
        for name in sorted(names - usable.keys() - self._idle):
            _refusing(self.dev / name)
            self._idle.add(name)
        for name, device in usable.items():
            if name not in self._open:
                self._begin(name, device)

    def in_use(self, device: DaxDevice) -> bool:
        """Whether anybody has the device's file open or mapped since before its driver let
        go. What nobody has is forgotten."""
        kept = [fd for fd in self._old.pop(device, []) if not _alone(fd)]
        if kept:
            self._old[device] = kept
        return bool(kept)

    def forget(self, device: DaxDevice) -> None:
        """The device has gone."""
        for fd in self._old.pop(device, []):
            os.close(fd)

    def close(self) -> None:
        for device in list(self._old):
            self.forget(device)

    def keep(self) -> None:
        """Carries what was written to dax devices to the devices' own files."""
        for name, plan in self._plans.items():
            plan.save(self.dev / name)

    def peek(self, memdev: Memdev, dpa: int, size: int) -> bytes:
        self.keep()
        with self.at[memdev].open("rb") as of:
            of.seek(dpa)
            return of.read(size)

    def _begin(self, name: str, device: DaxDevice) -> None:
        plan = Layout(device, self.at)
        path = self.dev / name
        with suppress(FileNotFoundError):
            path.unlink()
        with path.open("wb") as made:
            made.truncate(device.bytes)
        path.chmod(0o600)
        plan.load(path)
        self._plans[name] = plan
        self._open[name] = (device, list(device.ranges))

    def _close(self, name: str) -> None:
        path = self.dev / name
        self._plans.pop(name).save(path)
        device, _ = self._open.pop(name)
        if device in device.home.devices:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self._old.setdefault(device, []).append(fd)
        os.truncate(path, 0)
        path.unlink()


class Layout:
    """Which bytes of which file a dax device's are: chosen when its driver takes it.

    Bytes go round the devices in turns of the granularity, as a window of modulo arithmetic
    has them.
    """

    def __init__(self, device: DaxDevice, at: dict[Memdev, Path]) -> None:
        self.parts: list[tuple[int, int]] = []  # in the device, in the region: 2 MiB each
        offset = 0
        for start, size in device.ranges:
            for step in range(0, size, _STEP):
                self.parts.append((offset + step, start - device.home.start + step))
            offset += size
        region = device.home.region
        self.grain = 4096
        if region is not None:
            self.grain = region.granularity
            self.files = [(at[t.memdev], t.dpa_start) for t in region.members]
        else:
            plain = next(iter(at.values())).parent / f"hmem{device.home.id}.raw"
            with plain.open("ab") as made:
                if made.tell() < device.home.bytes:
                    made.truncate(device.home.bytes)
            self.files = [(plain, 0)]

    def load(self, path: Path) -> None:
        """From the devices' files into the dax device's."""
        share = _STEP // len(self.files)
        with _Opened([path, *(f for f, _ in self.files)]) as (to, *sources):
            for offset, inside in self.parts:
                at = [dpa + inside // len(self.files) for _, dpa in self.files]
                if not any(filled(fd, a, share) for fd, a in zip(sources, at, strict=True)):
                    continue
                each = [os.pread(fd, share, a) for fd, a in zip(sources, at, strict=True)]
                rows = np.frombuffer(b"".join(each), np.uint8)
                rows = rows.reshape(len(self.files), -1, self.grain).swapaxes(0, 1)
                os.pwrite(to, rows.tobytes(), offset)

    def save(self, path: Path) -> None:
        """From the dax device's file into the devices'."""
        ways = len(self.files)
        share = _STEP // ways
        with _Opened([path, *(f for f, _ in self.files)]) as (source, *to):
            for offset, inside in self.parts:
                at = [dpa + inside // ways for _, dpa in self.files]
                had = any(filled(fd, a, share) for fd, a in zip(to, at, strict=True))
                if not had and not filled(source, offset, _STEP):
                    continue
                rows = np.frombuffer(os.pread(source, _STEP, offset), np.uint8)
                if not had and not rows.any():
                    continue
                each = rows.reshape(-1, ways, self.grain).swapaxes(0, 1)
                for fd, a, part in zip(to, at, each, strict=True):
                    os.pwrite(fd, part.tobytes(), a)


class _Opened:
    """Files as descriptors, closed at the end."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __enter__(self) -> list[int]:
        self.fds = [os.open(p, os.O_RDWR | os.O_CLOEXEC) for p in self.paths]
        return self.fds

    def __exit__(self, *_: object) -> None:
        for fd in self.fds:
            os.close(fd)


def _alone(fd: int) -> bool:
    """Whether nobody but us has the file open; then it is closed. A lease asks just that."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return False
    os.close(fd)
    return True


def filled(fd: int, start: int, size: int) -> bool:
    """Whether a sparse file holds anything there."""
    try:
        return os.lseek(fd, start, os.SEEK_DATA) < start + size
    except OSError:  # ENXIO: nothing to the end
        return False


def _refusing(path: Path) -> None:
    """A file that open() answers with ENXIO: a socket that nobody listens at."""
    path.unlink(missing_ok=True)
    here = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
            # A socket's path is short: reached through a descriptor's.
            made.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)
