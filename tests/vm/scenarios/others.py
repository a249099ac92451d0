# SPDX-License-Identifier: Apache-2.0
"""Pools of devices of different sizes, and of devices that have no serial numbers."""

from __future__ import annotations

from pathlib import Path

from vm.guest import cxl
from vm.guest.kit import equal, host, sacctl, topology
from vm.guest.product import Pages, daemon, record

TOPOLOGIES = {"6.12": ("1hb2mixed", "1hb2nameless")}
LIMIT = 400

# Most of the 512 MiB that both have: zeroing a pool takes long.
ROOM = ("--isolated-room", "448M")


def test_create_use_destroy() -> None:
    names = sorted(path.name for path in Path("/sys/bus/cxl/devices").glob("mem*"))
    planned = sacctl("pool", "plan", "--devices", ",".join(names), "-o", "json")
    with daemon():
        sacctl("pool", "create", "kv", "--devices", ",".join(names), *ROOM, limit=200)
        shown = record("kv")
        devices = [d for region in shown["cxl"]["regions"] for d in region["devices"]]
        if topology() == "1hb2nameless":
            equal(sorted(d.split(":")[0] for d in devices), ["pci", "pci"], "identities")
        else:
            equal(len(set(devices)), 2, "devices of the pool")
            assert "stranded" in planned.out, planned.out
        pages = Pages("kv", "chat")
        pages.put()
        equal(pages.found(), 4, "pages found")
        equal(
            bool(host.find(0, pages.head(0, 0)) or host.find(1, pages.head(0, 0))), True, "seen"
        )
        pages.close()
        sacctl("pool", "destroy", "kv", "--yes", limit=300)
    taken = [p for p in cxl.BUS.glob("decoder*/dpa_size") if int(p.read_text(), 0)]
    equal(taken, [], "decoders that hold capacity")
