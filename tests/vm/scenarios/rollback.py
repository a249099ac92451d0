# SPDX-License-Identifier: Apache-2.0
"""A device goes between two writes of `pool create`: all that was done is taken back, and the
message says what happened."""

from __future__ import annotations

import sys
from pathlib import Path

from vm.guest import cxl
from vm.guest.kit import equal, sacctl, sh, until

LIMIT = 400

# Run in a process of its own: sacctl, with a write before which a device is pulled.
_PULLED = """
import sys
from pathlib import Path
from sacctl.cxl.sysfs import Sysfs
from sacctl.cli import main
pci, where = sys.argv[1:3]
write = Sysfs.write
def pulling(self, path, value):
    if where in path and not Path("/run/pulled").exists():
        Path("/run/pulled").write_text(path)
        Path("/sys/bus/pci/drivers/cxl_pci/unbind").write_text(pci)
    return write(self, path, value)
Sysfs.write = pulling
sys.argv = ["sacctl", *sys.argv[3:]]
sys.exit(main())
"""

# Before the write of which attribute: at the beginning, in the middle and near the end.
_PLACES = ("/dpa_size", "/target1", "/commit", "/cxl_region/bind", "/device_dax/")


def test_device_unbound_between_two_writes() -> None:
    for where in _PLACES:
        device = cxl.devices()[1]
        pci = device.pci
        Path("/run/pulled").unlink(missing_ok=True)
        names = ",".join(d.name for d in cxl.devices().values())
        words = ["pool", "create", "kv", "--devices", names]
        done = sh(sys.executable, "-P", "-c", _PULLED, pci, where, *words, code=None)
        assert Path("/run/pulled").exists(), f"no write to {where}"
        assert done.code not in (0, 130), f"create succeeded without {device.name}"
        assert "fault of sacctl" not in done.err, done.err
        assert "error: " in done.err, done.err
        Path("/sys/bus/pci/drivers/cxl_pci/bind").write_text(pci)
        until("the device to be back", lambda: 1 in cxl.devices())
        left = [what for what in cxl.leftovers() if not what.startswith("process")]
        equal(left, [], f"left behind after a device went before a write to {where}")
        equal(sacctl("pool", "list", "-o", "json").json["pools"], [], "pools left")


def test_create_works_after_that() -> None:
    names = ",".join(d.name for d in cxl.devices().values())
    sacctl("pool", "create", "kv", "--devices", names, limit=200)
    sacctl("pool", "destroy", "kv", "--yes", limit=300)
    equal(sacctl("pool", "list", "-o", "json").json["pools"], [], "pools left")
