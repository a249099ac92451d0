# SPDX-License-Identifier: Apache-2.0
"""The real daemon on a simulated machine whose devices go, come back and are poisoned: it
goes on, as its clients do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cxlsim
import pytest
from system.daemon_kit import LAYOUT, Place
from system.manager import Manager

from sacctl.cxl.read import read
from sacctl.pool.cxl_assemble import assemble
from sacctl.pool.cxl_create import create
from sacctl.pool.cxl_spec import CxlSpec

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making regions needs root")

# Puts two pages, and does what it is told: "read" says what became of them; "put" puts anew.
CLIENT = """
import sys, libsac
from libsac.errors import SacError
pool = libsac.connect("kv", socket=sys.argv[1], name="engine")
ns = pool.namespace("chat")
plane = ns.layout.planes[0]
def put(keys):
    with ns.put(keys) as put:
        for p in ns.layout.planes:
            for layer in p.layers:
                for page in put.missing:
                    put.view(p.name, layer, page)[:] = 7
keys = ns.keys(range(128))
put(keys)
print("put", flush=True)
held = None
for line in sys.stdin:
    word = line.strip()
    try:
        if word == "pin":
            held = ns.pin(keys)
            said = "pinned" if held.tokens == 128 else f"pinned {held.tokens}"
        elif word == "gather":
            said = "right" if (held.gather(plane.name, 0, range(4)) == 7).all() else "wrong"
        elif word == "find":
            said = f"found {int(ns.lookup(keys).sum())}"
        elif word == "put":
            put(keys)
            said = "put"
    except SacError as error:
        said = type(error).__name__
        print(f"{word}: {said}: {error}", file=sys.stderr, flush=True)
    print(said, flush=True)
"""


class CxlPlace(Place):
    """A place on a simulated machine."""

    def __init__(self, folder: Path, machine: cxlsim.Machine) -> None:
        super().__init__(folder, ["daemon.status_interval = 1"])
        self.machine = machine

    def env(self, **more: str) -> dict[str, str]:
        return super().env(SAC_SYSROOT=str(self.machine.sysfs.root), **more)

    def make_cxl(self) -> None:
        """The pool "kv" on all devices, with the namespace "chat"."""
        devices = tuple(m.identity for m in read(self.machine.sysfs).memdevs)
        spec = CxlSpec("kv", devices)
        with self.link() as link:
            create(spec, self.machine.sysfs, self.records, daemon=link, owner=os.geteuid())
            link.call("namespace.create", name="chat", pool="kv", layout=LAYOUT)

    def assemble(self) -> None:
        with self.link() as link:
            assemble("kv", self.machine.sysfs, self.records, daemon=link)

    def pool(self, name: str = "kv") -> dict[str, Any]:
        found = {pool["name"]: pool for pool in self.ask("pool.list")["pools"]}
        return dict(found[name])

    def codes(self) -> set[str]:
        return {finding["code"] for finding in self.ask("health")["findings"]}

    def dax(self) -> str:
        """The name of the device that holds the data."""
        return Path(self.pool()["extents"][0]["path"]).name


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[cxlsim.Machine]:
    (tmp_path / "m").mkdir()
    with cxlsim.Machine(tmp_path / "m", "2hb2") as made:
        monkeypatch.setenv("SAC_SYSROOT", str(made.sysfs.root))
        yield made


@pytest.fixture
def place(tmp_path: Path, machine: cxlsim.Machine) -> Iterator[CxlPlace]:
    made = CxlPlace(tmp_path, machine)
    yield made
    made.close()


class Engine:
    """The client process. A context manager."""

    def __init__(self, place: Place) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", CLIENT, str(place.socket)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "put"

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, word: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.answer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def until(done: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


def unplug(place: CxlPlace) -> None:
    place.machine.unplug(0x101)


def unbind(place: CxlPlace) -> None:
    place.machine.sysfs.write("/sys/bus/dax/drivers/device_dax/unbind", place.dax())


@pytest.mark.parametrize("fault", [unplug, unbind])
def test_a_device_that_goes_takes_its_pool_and_nothing_else(
    place: CxlPlace, fault: Callable[[CxlPlace], None]
) -> None:
    place.start()
    place.make_cxl()
    place.make_pool("other", "16M", link=place.link())
    with Engine(place) as engine:
        assert engine.ask("pin") == "pinned"
        assert engine.ask("gather") == "right"
        fault(place)
        until(lambda: place.pool()["state"] == "lost")
        lost = place.pool()
        assert "sacctl pool assemble kv" in lost["hint"]
        assert lost["extents"][0]["lost"]
        assert "SAC210" in place.codes()
        # The client lives, and is told.
        assert engine.ask("gather") in ("MediaError", "StaleError")
        assert engine.ask("find") in ("found 0", "MediaError")
        assert engine.process.poll() is None
        # So do the daemon and its other pool.
        assert place.pool("other")["state"] == "serving"
        place.ask("namespace.create", name="more", pool="other", layout=LAYOUT)
        assert place.process is not None
        assert place.process.poll() is None
    assert place.stop() == 0


def test_what_comes_back_is_served_without_a_restart(place: CxlPlace) -> None:
    place.start()
    place.make_cxl()
    with Engine(place) as engine:
        assert engine.ask("find") == "found 2"
        unplug(place)
        until(lambda: place.pool()["state"] == "lost")
        place.machine.plug(0x101)
        time.sleep(1.0)
        assert place.pool()["state"] == "lost"  # until root has made the region again
        place.assemble()
        assert place.pool()["state"] == "serving"
        assert not {"SAC210", "SAC501", "SAC507", "SAC508"} & place.codes()
        assert "chat" in {s["name"] for s in place.ask("namespace.list")["namespaces"]}
        # Its memory was away: without a checksum nothing on it is believed.
        assert place.pool()["rebooted"]
        until(lambda: engine.ask("find") == "found 0")
        # The very process attached anew, and goes on.
        until(lambda: engine.ask("put") == "put")
        assert engine.ask("find") == "found 2"
        assert engine.ask("pin") == "pinned"
        assert engine.ask("gather") == "right"


def test_a_lost_pool_stays_lost_over_a_restart(place: CxlPlace) -> None:
    place.start()
    place.make_cxl()
    unplug(place)
    until(lambda: place.pool()["state"] == "lost")
    place.stop(signal.SIGKILL)
    place.start()
    assert place.pool()["state"] == "absent"
    assert "sacctl pool assemble kv" in place.pool()["hint"]
    place.machine.plug(0x101)
    place.assemble()
    assert place.pool()["state"] == "serving"


def test_quarantined_blocks_lose_their_pages_only(place: CxlPlace) -> None:
    place.start()
    place.make_cxl()
    with Engine(place) as engine:
        assert engine.ask("find") == "found 2"
        size = place.pool()["extents"][0]["bytes"]
        # All but the first blocks, and none of them twice.
        place.ask("pool.quarantine", pool="kv", extent=0, offset=size - 64, bytes=64)
        assert engine.ask("find") == "found 2"
        assert place.pool()["dead_blocks"] == 1
        assert "SAC203" in place.codes()
        answer = place.ask("pool.quarantine", pool="kv", extent=0, offset=0, bytes=size)
        assert answer["pages"] >= 1
        assert engine.ask("find") == "found 0"
        assert engine.process.poll() is None
    assert place.stop() == 0


def test_the_store_forgets_files_of_devices_that_went(place: CxlPlace) -> None:
    manager = Manager(place)
    manager.start()
    place.make_cxl()
    manager.hear(seconds=1.0)
    assert manager.names() == ["pool.kv.0", "pool.kv.meta"]
    unplug(place)
    until(lambda: place.pool()["state"] == "lost")
    manager.hear(seconds=1.0)
    assert manager.names() == []
    manager.close()


def test_devices_from_the_store(place: CxlPlace) -> None:
    """A daemon that may not open devices by their paths has its pool all the same."""
    manager = Manager(place)
    manager.start()
    place.make_cxl()
    manager.hear(seconds=1.0)
    uuid = place.pool()["uuid"]
    paths = [Path(place.pool()["meta"]), Path(place.pool()["extents"][0]["path"])]
    place.stop()
    for path in paths:
        path.rename(f"{path}.away")
    manager.start()
    assert (place.pool()["state"], place.pool()["uuid"]) == ("serving", uuid)
    for path in paths:
        Path(f"{path}.away").rename(path)
    assert place.stop() == 0
    manager.close()
