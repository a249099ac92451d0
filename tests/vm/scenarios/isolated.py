# SPDX-License-Identifier: Apache-2.0
"""Isolated namespaces: DAX devices of their own in the room that a pool leaves, and memory that
is zeroed before it has another owner, also when that was cut off."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from vm.guest import cxl
from vm.guest.kit import equal, host, sacctl, until
from vm.guest.product import Daemon, Pages, daemon, layout, pool, record

TOPOLOGIES = ("1hb1",)
LIMIT = 400

LAYOUT = "/run/isolated-layout.json"
# Most of the device's 256 MiB: what the pool around it has takes long to zero.
ROOM = 192 * cxl.MIB
QUOTA = 32 * cxl.MIB
# More than is left beside a namespace of that, and less than all.
MORE = 128 * cxl.MIB
# Somebody's bytes in memory that no page of ours is on.
SECRET = b"the secret of an owner before"


def test_isolated() -> None:
    """One story: each part begins with what the one before has left."""
    layout().to_json(LAYOUT)
    names = ",".join(d.name for d in cxl.devices().values())
    with daemon() as it, pool("kv", "--devices", names, "--isolated-room", str(ROOM)):
        shared = Pages("kv", "chat", seed=10_000)
        shared.put()
        equal(free_room(), ROOM, "room that is free")
        create("bank", QUOTA)
        data, meta = places("kv.bank")
        shared.close()
        _devices_of_its_own(data)
        _restart(it)
        _scrub_cut_off(it, data, meta)
        for start, size in (data, meta):
            equal(host.nonzero(0, start, size), None, "a byte that is not zero")
        equal(free_room(), ROOM, "room that is free again")
        shared = Pages("kv", "chat", seed=10_000)
        equal(shared.found(), 4, "pages of the pool around it")
        shared.close()


def test_room_that_had_an_owner() -> None:
    """What the memory held before there was the pool is not the tenant's to read."""
    names = ",".join(d.name for d in cxl.devices().values())
    layout().to_json(LAYOUT)
    size = cxl.number(f"{cxl.devices()[0].name}/ram/size")
    for at in range(0, size, 4 * cxl.MIB):
        host.poke(0, at + 0x1000, SECRET)
    with daemon(), pool("kv", "--devices", names, "--isolated-room", str(ROOM)):
        create("bank", 4 * cxl.MIB)
        for start, length in places("kv.bank"):
            seen = [at for at in host.find(0, SECRET, 999) if start <= at < start + length]
            equal(seen, [], "what its owner can read of others, at")
        sacctl("namespace", "destroy", "bank", "--pool", "kv", "--yes", limit=200)


def create(name: str, quota: int, code: int = 0) -> str:
    words = ("--layout", LAYOUT, "--isolated", "--quota", str(quota), "--checksum")
    done = sacctl("namespace", "create", name, *words, "--pool", "kv", code=code, limit=200)
    return done.err


def free_room() -> int:
    return int(record("kv")["cxl"]["room_free_bytes"])


def places(name: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where a pool's data and metadata lie in device 0: offset and bytes of each."""
    shown = record(name)
    region = shown["cxl"]["regions"][0]["region"]
    base = cxl.number(f"{region}/resource")
    found = []
    for path in (shown["extents"][0]["path"], shown["meta"]):
        dax = cxl.DAX / "devices" / Path(path).name
        found.append((cxl.number(dax / "resource") - base, cxl.number(dax / "size")))
    return found[0], found[1]


def inside(at: int, place: tuple[int, int]) -> bool:
    return place[0] <= at < place[0] + place[1]


def mine() -> set[str]:
    """The DAX devices that this process has open or mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = {line.split()[-1] for line in lines if "/dev/dax" in line}
    for fd in Path("/proc/self/fd").iterdir():
        if fd.is_symlink() and "/dev/dax" in str(fd.readlink()):
            found.add(str(fd.readlink()))
    return found


def _devices_of_its_own(data: tuple[int, int]) -> None:
    """Its pages lie on its own devices, and its clients get no others."""
    around, own = record("kv"), record("kv.bank")
    theirs = {around["meta"], around["extents"][0]["path"]}
    pages = Pages("kv.bank", "bank", exists=True)
    pages.put()
    equal(pages.found(), 4, "pages found")
    ours = {own["meta"], own["extents"][0]["path"]}
    equal(ours & theirs, set(), "devices that both pools have")
    assert mine() <= ours, f"the client has {mine()}; its pool is on {ours}"
    assert mine(), "the client has no device"
    for page in range(4):
        (at,) = host.find(0, pages.head(page, 0))
        assert inside(at, data), f"page {page} lies at {at:#x}"
        (at,) = host.find(0, f"<10000/{page}/0>".encode())
        assert not inside(at, data), f"page {page} of the pool around it lies at {at:#x}"
    pages.close()
    assert "room left" in create("more", MORE, code=4), "it says what lacks"
    refused = sacctl("pool", "destroy", "kv", "--yes", code=4)
    assert "kv.bank" in refused.err, refused.err


def _restart(it: Daemon) -> None:
    """The next daemon serves both, with all pages."""
    it.kill()
    it.start()
    for name, space, seed in (("kv", "chat", 10_000), ("kv.bank", "bank", 0)):
        pages = Pages(name, space, seed=seed, exists=True)
        equal(pages.found(), 4, f"pages of {name} found after a kill of the daemon")
        pages.close()


def _scrub_cut_off(it: Daemon, data: tuple[int, int], meta: tuple[int, int]) -> None:
    """Destruction is killed when the beginning is zero and the end is not yet: nobody gets
    the memory, and the same command does the rest."""
    start, size = data
    end = start + size - len(SECRET)
    host.poke(0, end, SECRET)
    (first,) = host.find(0, b"<0/0/0>")
    words = ("sacctl", "namespace", "destroy", "bank", "--pool", "kv", "--yes")
    with subprocess.Popen(words) as scrubbing:
        until("the first page to go", lambda: host.peek(0, first, 7) != b"<0/0/0>", 60)
        os.kill(scrubbing.pid, signal.SIGKILL)
    it.kill()
    equal(scrubbing.returncode, -signal.SIGKILL, "how the destruction ended")
    equal(host.peek(0, end, len(SECRET)), SECRET, "what is not zeroed yet")
    it.start()
    states = {p["name"]: p["state"] for p in sacctl("pool", "list", "-o", "json").json["pools"]}
    equal(states, {"kv": "serving", "kv.bank": "absent"}, "states of the pools")
    assert "room left" in create("thief", MORE, code=4)
    equal(host.peek(0, end, len(SECRET)), SECRET, "what is still not zeroed")
    sacctl("namespace", "destroy", "bank", "--pool", "kv", "--yes", limit=200)
