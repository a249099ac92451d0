# SPDX-License-Identifier: Apache-2.0
"""A region that another tool has made is adopted; memory stays offline on this machine."""

from __future__ import annotations

from vm.guest import cxl
from vm.guest.kit import equal, sacctl, sh, topology, until
from vm.guest.product import Pages, daemon, record

TOPOLOGIES = {"6.12": ("2hb2",), "7.3": ("1hb1",)}
APPEND = "memhp_default_state=offline"
LIMIT = 400

WINDOWS = {"1hb1": "decoder0.0", "2hb2": "decoder0.2"}


def made_by_cxl() -> tuple[str, str]:
    """A region by `cxl create-region`, its dax device on kmem; both names."""
    names = [d.name for d in cxl.devices().values()]
    where = ("-d", WINDOWS[topology()], "-w", str(len(names)))
    sh("cxl", "create-region", "-t", "ram", "-m", *where, *names)
    region = next(cxl.BUS.glob("region*")).name
    dax = cxl.dax_of(region)
    until("kmem to take it", lambda: cxl.driver(dax) == "kmem")
    return region, dax


def test_region_of_cxl_create_region() -> None:
    region, dax = made_by_cxl()
    listed = sacctl("device", "list", "-o", "json").out
    assert region in listed, listed
    with daemon():
        sacctl("pool", "adopt", "kv", region, limit=200)
        shown = record("kv")
        equal(shown["state"], "serving", "state of the pool")
        equal(shown["cxl"]["adopted"], True, "adopted")
        # Again, by the other name: nothing is done.
        sacctl("pool", "adopt", "kv", dax, limit=200)
        equal(record("kv")["uuid"], shown["uuid"], "the pool's identity")
        pages = Pages("kv", "chat")
        pages.put()
        equal(pages.found(), 4, "pages found")
        pages.close()
        sacctl("pool", "destroy", "kv", "--yes", limit=300)
    assert (cxl.BUS / region).exists(), "destroy took a region that sacctl had not made"
    equal(cxl.read(f"{region}/commit"), "1", "commit of the region")
    size = cxl.number(cxl.DAX / "devices" / dax / "size")
    equal(size, cxl.number(f"{region}/size"), "the dax device has the whole region again")
    cxl.destroy(region)
