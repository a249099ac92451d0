# SPDX-License-Identifier: Apache-2.0
"""The main job on a pool of devices: a process puts a prefix, the daemon is killed, another
process finds it and checks every byte."""

from __future__ import annotations

import sys

from vm.guest import cxl
from vm.guest.kit import sacctl, sh
from vm.guest.product import daemon, room

LIMIT = 400
_JOB = (sys.executable, "-P", "-m", "sacctl.demo.job")


def test_writer_and_reader() -> None:
    names = ",".join(d.name for d in cxl.devices().values())
    with daemon() as it:
        sacctl("pool", "create", "demo", "--devices", names, *room(160), limit=200)
        sh(*_JOB, "write", "2048", "2", limit=120)
        it.kill()
        it.start()
        sh(*_JOB, "read", "2048", "2", "2", limit=120)
        sacctl("pool", "destroy", "demo", "--yes", limit=300)
