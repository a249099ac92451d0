# SPDX-License-Identifier: Apache-2.0
"""A trace of CXL events of our own: an instance of tracefs, apart from other tracers.

Needs root. Files of tracefs are used as they are on the machine, or below a simulated root.
"""

from __future__ import annotations

import errno
import os
import select
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from sacctl.cxl.events import Event, lost, parse
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import DeniedError, NotFoundError, from_os

__all__ = ["Trace", "read_poison"]

MOUNTS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class Trace:
    """Makes the instance and lets the kernel write CXL events into it, while the context is
    entered; removes it behind. One that a killed process left is taken over.

    Raises (when entered) NotFoundError where the kernel has no such events, DeniedError
    without root, CtlError.

    Attributes:
        lost: events that did not fit in the kernel's buffer so far.
    """

    def __init__(self, sysfs: Sysfs, name: str) -> None:
        self._sysfs = sysfs
        self._name = name
        self._folder = Path()
        self._pipe = -1
        self._rest = b""
        self.lost = 0

    def __enter__(self) -> Self:
        mount = next((m for m in MOUNTS if self._sysfs.exists(f"{m}/instances")), "")
        if not mount:
            if self._sysfs.simulated:
                raise NotFoundError("a simulated machine has no trace of CXL events")
            if os.geteuid() != 0:
                raise DeniedError("only root may read the kernel's trace", object=MOUNTS[0])
            raise NotFoundError(
                f"tracefs is not mounted at {MOUNTS[0]}",
                object=MOUNTS[0],
                hint="mount -t tracefs nodev /sys/kernel/tracing",
            )
        self._folder = self._sysfs.at(f"{mount}/instances/{self._name}")
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise from_os(error, "cannot make a trace of its own") from None
        try:
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _begin(self) -> None:
        try:
            self._write("events/cxl/enable", "1")
        except FileNotFoundError:
            raise NotFoundError(
                "the kernel has no CXL events: cxl_core is not loaded, or was built without "
                "tracing",
                object=str(self._folder),
                hint="modprobe cxl_pci",
            ) from None
        except OSError as error:
            raise from_os(error, "cannot switch on the kernel's CXL events") from None
        with suppress(OSError):
            # Else a reader is woken only when half of the buffer is full.
            self._write("buffer_percent", "0")
        try:
            self._write("trace", "")  # what an earlier owner left
            self._pipe = os.open(self._folder / "trace_pipe", _FLAGS)
        except OSError as error:
            raise from_os(error, "cannot read the kernel's trace") from None

    def _end(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        with suppress(OSError):
            self._write("events/cxl/enable", "0")
        for _ in range(20):
            try:
                self._folder.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY:  # a reader that is about to close
                    return
                time.sleep(0.05)
            else:
                return

    def _write(self, name: str, value: str) -> None:
        fd = os.open(self._folder / name, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            if value:
                os.write(fd, value.encode())
        finally:
            os.close(fd)

    def fileno(self) -> int:
        """For select: readable when there are events."""
        return self._pipe

    def wait(self, timeout: float) -> bool:
        """Waits up to timeout seconds for events; whether there are any, perhaps."""
        return bool(select.select([self._pipe], [], [], timeout)[0])

    def read(self) -> list[Event]:
        """The events since the last read, without waiting. Raises CtlError."""
        found: list[Event] = []
        while True:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                data = b""
            except OSError as error:
                raise from_os(error, "cannot read the kernel's trace") from None
            if not data:
                return found
            whole, _, self._rest = (self._rest + data).rpartition(b"\n")
            for line in whole.decode("utf-8", "replace").splitlines():
                self.lost += lost(line)
                event = parse(line)
                if event is not None:
                    found.append(event)


def read_poison(
    sysfs: Sysfs, trace: Trace, memdevs: list[str]
) -> tuple[list[Event], list[str]]:
    """Has the kernel read the poison lists of these devices (mem0); what it told, and of
    which devices it could not be read and why, as sentences. Raises CtlError."""
    events: list[Event] = []
    failed: list[str] = []
    for name in memdevs:
        path = f"/sys/bus/cxl/devices/{name}/trigger_poison_list"
        if not sysfs.exists(path):
            failed.append(f"{name}: it has no poison list")
            continue
        try:
            # The kernel has written all of it to the trace when this returns.
            sysfs.write(path, "1")
        except OSError as error:
            failed.append(f"{name}: its poison list cannot be read: {error.strerror}")
        # After each: a long list must not push out another one's.
        events += trace.read()
    return events, failed
