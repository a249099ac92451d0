# SPDX-License-Identifier: Apache-2.0
"""Pools made of devices: created, used by a client, seen in the devices, destroyed."""

from __future__ import annotations

from vm.guest import cxl
from vm.guest.kit import equal, host, sacctl, topology
from vm.guest.product import Pages, daemon, interleaved, pool, record, room

# Each on one kernel.
TOPOLOGIES = {"6.12": ("1hb1", "1hb2", "2hb4", "sw2"), "7.3": ("2hb2", "4hb4")}
LIMIT = 400

# By topology: devices as the user names them, and how they lie in the region.
_CASES = {
    "1hb1": ("0", [0], 256),
    "1hb2": ("10", [0, 1], 4096),
    "2hb2": ("10", [0, 1], 256),
    "2hb4": ("3102", [0, 2, 1, 3], 256),
    "4hb4": ("2031", [0, 1, 2, 3], 256),
    "sw2": ("10", [0, 1], 1024),
}


def names(indices: str) -> str:
    """Of devices, in the user's order: "cxl3,mem1" and so on, in both spellings."""
    found = cxl.devices()
    given = [found[int(i)].name for i in indices]
    given[0] = given[0].replace("mem", "cxl")
    return ",".join(given)


def test_create_use_destroy() -> None:
    indices, order, granularity = _CASES[topology()]
    words = ["--devices", names(indices)]
    if len(order) > 1 and not topology().startswith(("2hb", "4hb")):
        words += ["--granularity", str(granularity)]
    if len(order) > 1:
        words += room()  # one pool of them all takes the whole of its devices
    with daemon() as it, pool("kv", *words):
        shown = record("kv")
        region = shown["cxl"]["regions"][0]
        equal(region["ways"], len(order), "ways of the region")
        pages = Pages("kv", "chat")
        pages.put()
        equal(pages.found(), 4, "pages found")
        if len(order) > 1:
            interleaved(pages, order, granularity)
        else:
            equal(len(host.find(0, pages.head(0, 0))), 1, "places of the first bytes")
        pages.close()
        it.stop()
        it.start()
        again = Pages("kv", "chat")
        equal(again.found(), 4, "pages found by the next daemon")
        again.close()
    for index in order:
        equal(host.find(index, b"<0/0/"), [], f"pages left in device {index}")
    equal(sacctl("pool", "list", "-o", "json").json["pools"], [], "pools left")
