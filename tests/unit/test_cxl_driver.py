# SPDX-License-Identifier: Apache-2.0
"""A driver that another probe is giving to the device while we ask for it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from sacctl.cxl.driver import EnsureDriver
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError

DEVICE, DRIVERS = "sys/bus/dax/devices/dax0.0", "sys/bus/dax/drivers"


class Probing(Sysfs):
    """bind says EBUSY; the probe that was at it is done a little later, or fails."""

    def __init__(self, root: Path, ends_with: str) -> None:
        super().__init__(root)
        self._ends_with = ends_with

    def write(self, path: str, value: str) -> None:
        if self._ends_with:
            link, to = self.root / DEVICE / "driver", self.root / DRIVERS / self._ends_with
            threading.Timer(0.1, link.symlink_to, (to,)).start()
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)


def machine(root: Path, ends_with: str) -> EnsureDriver:
    for name in (DEVICE, f"{DRIVERS}/device_dax", f"{DRIVERS}/kmem"):
        (root / name).mkdir(parents=True)
    return EnsureDriver(Probing(root, ends_with), lambda: "dax0.0", "device_dax")


def test_the_other_probe_gives_it(tmp_path: Path) -> None:
    machine(tmp_path, "device_dax").apply()
    assert (tmp_path / DEVICE / "driver").resolve().name == "device_dax"


@pytest.mark.parametrize("ends_with", ["", "kmem"])
def test_the_other_probe_does_not(tmp_path: Path, ends_with: str) -> None:
    with pytest.raises(CtlError, match=r"dax0\.0") as caught:
        machine(tmp_path, ends_with).apply()
    assert caught.value.errno == errno.EBUSY
