# SPDX-License-Identifier: Apache-2.0
"""Watches CXL and dax devices: what happens to them makes the daemon look.

The kernel tells over netlink. Where it may not be listened to (no such address family in the
sandbox, no libudev, a simulated machine), the devices are looked at every few seconds; that
is done beside the events as well, since a message can be lost.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Any

from sacctl.cxl.sysfs import Sysfs
from sacctl.daemon.log import log

__all__ = ["LOOK", "Watcher"]

LOOK = 3.0  # seconds
JOIN = 10.0
MOST = 1000  # events between two looks
SUBSYSTEMS = ("dax", "cxl")
# Of what happens to decoders and ports there is much, and the devices' own events say it.
_WORTH = {
    ("dax", ""): "dax device",
    ("cxl", "cxl_memdev"): "CXL device",
    ("cxl", "cxl_region"): "region",
}
_WORDS = {
    "add": "is there",
    "remove": "has gone",
    "bind": "was bound to {driver}",
    "unbind": "has lost its driver",
}


class Watcher:
    """Calls look() in a thread of its own: after each event of a device, and every LOOK
    seconds. look() raises nothing that is not logged here.

    Attributes:
        listening: whether the kernel's events come.
    """

    def __init__(self, sysfs: Sysfs, look: Callable[[], object], every: float = LOOK) -> None:
        self._sysfs = sysfs
        self._look = look
        self._every = every
        self._ending = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None
        self.listening = False

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="devices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; waits for a look that is being taken."""
        if self._ending < 0:
            return
        os.eventfd_write(self._ending, 1)
        if self._thread is not None:
            self._thread.join(JOIN)
            if self._thread.is_alive():
                return  # it ends behind its look; the descriptor stays its own
        os.close(self._ending)
        self._ending = -1

    def _run(self) -> None:
        monitor = None if self._sysfs.simulated else self._listen()
        self.listening = monitor is not None
        heard = [self._ending] if monitor is None else [self._ending, monitor.fileno()]
        while True:
            ready = select.select(heard, [], [], self._every)[0]
            if self._ending in ready:
                return
            if ready:
                try:
                    _take(monitor)
                except OSError as error:
                    # Too many at once, most likely: what they said is seen by looking.
                    log.warning(f"events of devices were lost: {error}")
            self._try()

    def _try(self) -> None:
        try:
            self._look()
        except Exception:
            log.exception("devices cannot be looked at")

    def _listen(self) -> Any:
        try:
            # Not on every machine, and only needed here.
            import pyudev

            monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
            for subsystem in SUBSYSTEMS:
                monitor.filter_by(subsystem)
            monitor.start()
        except Exception as error:
            # Not there, no such address family, no memory for ctypes in a sandbox: all the
            # same, there is another way.
            log.info(f"devices are looked at every {self._every:g} s: no events: {error}")
            return None
        return monitor


def _take(monitor: Any) -> None:
    """Takes the events that have come; logs what is worth it. Raises OSError."""
    for _ in range(MOST):
        device = monitor.poll(0)
        if device is None:
            return
        said = _sentence(device)
        if said:
            log.info(said)


def _sentence(device: Any) -> str:
    """ "dax device dax0.0 has lost its driver"; "" for what is not worth a line."""
    what = _WORTH.get((device.subsystem, device.properties.get("DEVTYPE", "")))
    words = _WORDS.get(device.action or "", "")
    if what is None or not words:
        return ""
    driver = device.properties.get("DRIVER", "its driver")
    return f"{what} {device.sys_name} {words.format(driver=driver)}"
