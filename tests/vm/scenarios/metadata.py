# SPDX-License-Identifier: Apache-2.0
"""Poison in a pool's metadata: what is stored can be read on, nothing more is written, and
everybody says why; daemon and clients live."""

from __future__ import annotations

from pathlib import Path

from vm.guest import cxl
from vm.guest.kit import equal, host, sacctl, sh
from vm.guest.product import Daemon, Pages, daemon, pool, record, room
from vm.scenarios.faults import DEVICE, codes, devices

TOPOLOGIES = ("1hb1",)
LIMIT = 400
BLOCK = 2 * cxl.MIB


def metadata() -> tuple[int, int]:
    """Where the pool's metadata lies in device 0: offset and bytes."""
    shown = record("kv")
    dax = cxl.DAX / "devices" / Path(shown["meta"]).name
    base = cxl.number(f"{shown['cxl']['regions'][0]['region']}/resource")
    return cxl.number(dax / "resource") - base, cxl.number(dax / "size")


def poison(at: int) -> None:
    """One line of the device's memory goes bad, and the monitor tells the daemon."""
    host.qmp("cxl-inject-poison", path=DEVICE, start=at, length=64)
    done = sacctl("device", "monitor", "--once", "-o", "json").json
    assert at in [p["dpa"] for p in done["poison"]], done["poison"]


def refused(pages: Pages) -> str:
    """What a put of new pages says."""
    from libsac.errors import MediaError

    try:
        pages.put()
    except MediaError as error:
        return str(error)
    raise AssertionError("a put into a pool whose metadata is poisoned succeeded")


def test_poison_in_metadata() -> None:
    with daemon() as it, pool("kv", "--devices", devices(), *room()):
        pages = Pages("kv", "chat", checksum=True)
        pages.put()
        start, size = metadata()
        # The last block, which nothing is in: it is taken out of use, and that is all.
        poison(start + size - BLOCK)
        more = Pages("kv", "chat", seed=10_000, checksum=True)
        more.put()
        equal((pages.found(), more.found()), (4, 4), "pages, with a bad block to spare")
        # The first one, with the superblock and the tables.
        poison(start)
        assert {"SAC203", "SAC212", "SAC513"} <= codes(), "health says nothing of it"
        name = Path(record("kv")["meta"]).name
        last = Pages("kv", "chat", seed=20_000, checksum=True)
        said = refused(last)
        assert name in said, said
        assert "metadata" in said, said
        words = ("--layout", "deepseek-v3.2-fp8", "--layers", "2", "--quota", "8M")
        done = sacctl("namespace", "create", "other", *words, "--pool", "kv", code=None)
        assert done.code, "a namespace was made in a pool whose metadata is poisoned"
        assert name in done.err, done.err
        assert "fault of sac" not in done.err, done.err
        equal((pages.found(), more.found()), (4, 4), "pages that are read on")
        for one in (pages, more, last):
            one.close()
        _restart(it)
    with daemon():
        _made_again(start)


def _made_again(at: int) -> None:
    """A new pool at the same place says that it takes no writes; where the device has cleared
    the poison, it does."""
    words = ("pool", "create", "kv", "--devices", devices(), *room())
    again = sacctl(*words, code=7, limit=200)
    assert "takes no writes" in again.err, again.err
    poisoned = sacctl("device", "monitor", "--once", "-o", "json").json["poison"]
    places = [place["dpa"] for place in poisoned]
    assert at in places, poisoned
    sacctl("pool", "destroy", "kv", "--yes", limit=200)
    debug = Path("/sys/kernel/debug")
    if not (debug / "cxl").exists():
        sh("mount", "-t", "debugfs", "none", str(debug))
    for place in places:
        file = debug / "cxl" / cxl.devices()[0].name / "clear_poison"
        file.write_text(f"{place:#x}\n")
    sacctl(*words, limit=200)
    assert "SAC212" not in codes()
    pages = Pages("kv", "chat")
    pages.put()
    pages.close()
    sacctl("pool", "destroy", "kv", "--yes", limit=200)


def _restart(it: Daemon) -> None:
    """The next daemon has the same pages, and is told anew what is bad."""
    it.stop()
    it.start()
    sacctl("device", "monitor", "--once")
    pages = Pages("kv", "chat", exists=True)
    equal(pages.found(), 4, "pages found by the next daemon")
    last = Pages("kv", "chat", seed=20_000, exists=True)
    refused(last)
    for one in (pages, last):
        one.close()
