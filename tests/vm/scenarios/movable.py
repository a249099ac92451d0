# SPDX-License-Identifier: Apache-2.0
"""Memory of a region that is online as movable: refused, then taken with a permission; and a
pool that is system RAM on purpose."""

from __future__ import annotations

from vm.guest import cxl
from vm.guest.kit import equal, sacctl, sh, until
from vm.guest.product import Pages, daemon, record, room

APPEND = "memhp_default_state=online_movable"
TOPOLOGIES = ("1hb1",)
LIMIT = 400


def test_online_movable_needs_a_permission() -> None:
    names = [d.name for d in cxl.devices().values()]
    sh("cxl", "create-region", "-t", "ram", "-m", "-d", "decoder0.0", "-w", "1", *names)
    region = next(cxl.BUS.glob("region*")).name
    dax = cxl.dax_of(region)
    until("kmem to take it", lambda: cxl.driver(dax) == "kmem")
    done = sacctl("pool", "adopt", "kv", region, code=4, limit=200)
    assert "--force-offline" in done.err, done.err
    equal(cxl.driver(dax), "kmem", "the driver after the refusal")
    with daemon():
        sacctl("pool", "adopt", "kv", region, "--force-offline", limit=200)
        equal(cxl.driver(dax), "device_dax", "the driver after the adoption")
        pages = Pages("kv", "chat")
        pages.put()
        equal(pages.found(), 4, "pages found")
        pages.close()
        sacctl("pool", "destroy", "kv", "--yes", limit=300)
    cxl.destroy(region)


def test_create_beside_auto_online() -> None:
    """The kernel would put new memory online; the pool gets it all the same."""
    names = ",".join(d.name for d in cxl.devices().values())
    with daemon():
        sacctl("pool", "create", "kv", "--devices", names, *room(), limit=200)
        equal(record("kv")["state"], "serving", "state of the pool")
        for dax in record("kv")["cxl"]["regions"][0]["dax"]:
            equal(cxl.driver(dax), "device_dax", f"the driver of {dax}")
        sacctl("pool", "destroy", "kv", "--yes", limit=300)


def test_system_ram() -> None:
    names = ",".join(d.name for d in cxl.devices().values())
    with daemon():
        done = sacctl(
            "pool", "create", "kv", "--devices", names, "--mode", "system-ram", limit=200
        )
        assert "movable" in (done.out + done.err).lower() or "DRAM" in done.out + done.err, done
        shown = record("kv")
        equal(shown["cxl"]["mode"], "system-ram", "mode")
        pages = Pages("kv", "chat")
        pages.put()
        equal(pages.found(), 4, "pages found")
        pages.close()
        sacctl("pool", "destroy", "kv", "--yes", limit=300)
