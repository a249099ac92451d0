# SPDX-License-Identifier: Apache-2.0
"""A pool over devices that hardware cannot interleave: two regions, pages on both by weight,
one of them lost and back, and all of it assembled at the next boot."""

from __future__ import annotations

from vm.guest import cxl
from vm.guest.kit import equal, host, sacctl, until
from vm.guest.product import Pages, daemon, record
from vm.scenarios.faults import codes

KERNELS = ("6.12",)
TOPOLOGIES = ("2hb3apart",)
STATE = True
LIMIT = 400

# Of the first region, which has more memory than it takes to see where pages go.
ROOM = 352 * cxl.MIB
COUNT = 24  # pages of 1 MiB: two in each slab
# By region: its devices.
DEVICES = ((0, 1), (2,))


def pages(namespace: str = "chat") -> Pages:
    return Pages("kv", namespace, COUNT, row=16 << 10, checksum=True)


def regions_of(some: Pages) -> list[int]:
    """Which region each page lies in, as seen from outside."""
    found = []
    for page in range(COUNT):
        head = some.head(page, 0)
        on = [n for n, devices in enumerate(DEVICES) for d in devices if host.find(d, head)]
        equal(len(on), 1, f"regions that page {page} is in")
        found += on
    return found


def test_regions() -> None:
    """One story: each part begins with what the one before has left."""
    names = ",".join(d.name for d in cxl.devices().values())
    plan = sacctl("pool", "plan", "--devices", names, "-o", "json").json
    equal([region["ways"] for region in plan["regions"]], [2, 1], "ways as planned")
    with daemon():
        create = ("pool", "create", "kv", "--devices", names, "--isolated-room", str(ROOM))
        sacctl(*create, limit=200)
        shown = record("kv")
        made = shown["cxl"]["regions"]
        devices = [["serial:0x100", "serial:0x101"], ["serial:0x102"]]
        equal([region["devices"] for region in made], devices, "devices by region")
        equal([region["weight"] for region in made], [2, 1], "weights")
        some = pages()
        some.put()
        equal(some.found(), COUNT, "pages found")
        where = regions_of(some)
        _by_weight(where, [2 * shown["extents"][0]["bytes"], shown["extents"][1]["bytes"]])
        _lost_and_back(some, where)
        some.close()


def _by_weight(where: list[int], shares: list[int]) -> None:
    """Slabs go where the least is filled, for size and weight: to one slab of what that
    gives, of the two pages that each holds."""
    expected = COUNT * shares[0] / sum(shares)
    assert abs(where.count(0) - expected) <= 2, f"{where.count(0)} pages, not {expected:.1f}"


def _lost_and_back(some: Pages, where: list[int]) -> None:
    """The second region's device goes: the first one's pages stay, also when it is back."""
    stay = [page for page, region in enumerate(where) if region == 0]
    host.unplug(2)
    until("the loss of the extent", lambda: record("kv")["extents"][1].get("lost"), 60)
    equal(record("kv")["state"], "serving", "state of the pool without one region")
    assert "SAC211" in codes(), "health says what is missing"
    equal(some.intact(), stay, "pages that are there")
    host.plug(2)
    until("the device", lambda: 2 in cxl.devices(), 60)
    sacctl("pool", "assemble", "kv", "--wait", "30", limit=300)
    assert not record("kv")["extents"][1].get("lost"), "the extent is there again"

    def attached() -> list[int]:
        from libsac.errors import SacError

        try:
            return some.intact()
        except SacError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            return []

    equal(until("the client to attach anew", attached, 60), stay, "pages that are there")
    some.put()
    equal(some.found(), COUNT, "pages put anew")
    assert set(regions_of(some)) == {0, 1}, "pages on both regions again"


def again_regions() -> None:
    """The next boot: both regions are made again, and nothing has to be computed again."""
    equal(sorted(cxl.BUS.glob("region*")), [], "regions at boot")
    with daemon():
        sacctl("pool", "assemble", "--all", "--wait", "10", limit=300)
        shown = record("kv")
        equal(shown["state"], "serving", "state")
        made = shown["cxl"]["regions"]
        equal([region["weight"] for region in made], [2, 1], "weights")
        some = pages()
        equal(some.found(), COUNT, "pages found")
        equal(set(regions_of(some)), {0, 1}, "regions with pages")
        some.close()
        sacctl("pool", "destroy", "kv", "--yes", limit=300)
    for device in (0, 1, 2):
        equal(host.find(device, b"<0/"), [], f"pages left in device {device}")
    equal([what for what in cxl.leftovers() if not what.startswith("process")], [], "left")
