# SPDX-License-Identifier: Apache-2.0
"""Memory that the kernel took as system RAM: what can still be had, and what can not."""

from __future__ import annotations

from vm.guest import cxl
from vm.guest.kit import equal, sacctl, sh, until

LEAVES = "memory that is online in zone Normal stays until the machine is started anew"
TOPOLOGIES = ("1hb1",)
LIMIT = 300


def test_region_online_in_zone_normal_is_refused() -> None:
    names = [d.name for d in cxl.devices().values()]
    sh("cxl", "create-region", "-t", "ram", "-m", "-d", "decoder0.0", "-w", "1", *names)
    region = next(cxl.BUS.glob("region*")).name
    dax = cxl.dax_of(region)
    until("kmem to take it", lambda: cxl.driver(dax) == "kmem")
    for force in ((), ("--force-offline",)):
        done = sacctl("pool", "adopt", "kv", region, *force, code=4, limit=200)
        assert "memhp_default_state=offline" in done.err, done.err
        assert "blocks" in done.err, done.err
    equal(cxl.driver(dax), "kmem", "the driver after the refusals")
    done = sacctl("device", "list", "-o", "json")
    assert "Normal" in done.out, done.out
    equal(sacctl("pool", "list", "-o", "json").json["pools"], [], "pools left")
