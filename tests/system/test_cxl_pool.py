# SPDX-License-Identifier: Apache-2.0
"""The daemon on a simulated machine serves pools of CXL devices, with the real core."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cxlsim
import pytest
from click.testing import CliRunner, Result
from conformance.content import RICH, check_stored, put
from system.daemon_kit import Place

import libsac
from sacctl.cli import root
from sacctl.cxl.read import read
from sacctl.daemon.link import Link
from sacctl.errors import CtlError, PartlyError, RefusedError
from sacctl.pool.cxl_assemble import assemble
from sacctl.pool.cxl_create import create
from sacctl.pool.cxl_destroy import destroy
from sacctl.pool.cxl_isolated import create as isolate
from sacctl.pool.cxl_spec import CxlSpec
from sacctl.pool.record import Record

M = 1 << 20
KEYS = 40


class Machine:
    """A simulated machine with a daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = Place(folder, ["daemon.status_interval = 1"])
        self.sim = cxlsim.Machine(folder / "m", "2hb4", seed=1)

    def start(self) -> None:
        self.place.start(SAC_SYSROOT=str(self.sim.root))

    def reboot(self) -> None:
        self.place.stop()
        self.sim.close()
        self.sim = cxlsim.Machine(self.folder / "m", "2hb4", seed=2)
        self.start()

    def destroy(self, name: str, link: Link) -> None:
        # The descriptors that the daemon gave to its service manager, which we are, to keep.
        self.place.drain()
        destroy(name, self.sim.sysfs, self.place.records, daemon=link)

    def create(self, link: Link, room: int = 0) -> Record:
        devices = tuple(m.identity for m in read(self.sim.sysfs).memdevs)
        spec = CxlSpec("kv", devices, room=room)
        made = create(spec, self.sim.sysfs, self.place.records, daemon=link, owner=os.geteuid())
        assert made.made.served
        return made.made.record

    def namespace(self, pool: str, name: str) -> None:
        self.place.ask(
            "namespace.create", pool=pool, name=name, layout=RICH.to_dict(), checksum=True
        )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    made.start()
    yield made
    made.place.close()
    made.sim.__exit__(None)


def client(machine: Machine, pool: str = "kv") -> libsac.Pool:
    return libsac.connect(pool, socket=machine.place.socket)


def write(machine: Machine, pool: str = "kv", name: str = "n") -> None:
    with client(machine, pool) as open_pool:
        ns = open_pool.namespace(name)
        put(ns, ns.keys(range(16 * KEYS)))


def pages_found(machine: Machine, pool: str = "kv", name: str = "n") -> int:
    """How many pages are there, with the bytes that were put."""
    with client(machine, pool) as open_pool:
        ns = open_pool.namespace(name)
        keys = ns.keys(range(16 * KEYS))
        check_stored(ns, keys)
        return int(ns.stats().pages)


def test_served_restarted_rebooted_destroyed(machine: Machine) -> None:
    before = machine.sim.snapshot()
    with machine.place.link() as link:
        record = machine.create(link)
        shown = link.call("pool.show", name="kv")["pool"]
        assert shown["state"] == "serving"
        assert shown["kind"] == "cxl"
        assert shown["cxl"]["regions"][0]["ways"] == 4
    machine.namespace("kv", "n")
    write(machine)
    assert pages_found(machine) == KEYS
    machine.place.stop(signal.SIGKILL)
    machine.start()
    assert pages_found(machine) == KEYS
    machine.reboot()
    shown = machine.place.ask("pool.show", name="kv")["pool"]
    assert shown["state"] == "absent"
    assert shown["hint"] == "sudo sacctl pool assemble kv"
    with machine.place.link() as link:
        done = assemble("kv", machine.sim.sysfs, machine.place.records, daemon=link)
        assert done.changed
        assert done.served
        assert not done.formatted
        assert done.record.uuid == record.uuid
    assert pages_found(machine) == KEYS
    verified = machine.place.ask("namespace.verify", pool="kv", name="n")
    assert verified["dropped"] == 0
    assert verified["checked"] >= KEYS
    with machine.place.link() as link:
        with client(machine) as attached:
            ns = attached.namespace("n")
            with pytest.raises(RefusedError, match="attached"):
                machine.destroy("kv", link)
            assert ns.stats().pages == KEYS
        del ns
        gc.collect()  # this process is its own client: nothing may keep the memory mapped
        machine.destroy("kv", link)
    assert machine.place.ask("pool.list")["pools"] == []
    for serial in range(0x100, 0x104):
        assert not machine.sim.peek(serial, 0, 256 * M).strip(b"\0")
    assert read(machine.sim.sysfs).regions == ()
    assert len(machine.sim.snapshot()) == len(before)


def test_isolated_namespace(machine: Machine) -> None:
    with machine.place.link() as link:
        machine.create(link, room=128 * M)
        sysfs, records = machine.sim.sysfs, machine.place.records
        options = {"layout": RICH.to_dict(), "checksum": True, "quota": 32 * M}
        made = isolate("kv", "n", 32 * M, options, sysfs, records, link, owner=os.geteuid())
        assert made.served
        write(machine, "kv.n")
        assert pages_found(machine, "kv.n") == KEYS
        paths = {made.record.meta, *made.record.data}
        assert not paths & {records.get("kv").meta, *records.get("kv").data}
        machine.destroy("kv.n", link)
        machine.destroy("kv", link)
    assert machine.place.ask("pool.list")["pools"] == []


def test_devices_handed_to_a_daemon_that_starts_later(machine: Machine) -> None:
    machine.place.stop()
    devices = tuple(m.identity for m in read(machine.sim.sysfs).memdevs)
    spec = CxlSpec("kv", devices)
    create(spec, machine.sim.sysfs, machine.place.records, owner=os.geteuid())
    machine.start()
    assert machine.place.ask("pool.show", name="kv")["pool"]["state"] == "serving"
    with machine.place.link() as link:
        machine.destroy("kv", link)


@pytest.mark.parametrize("what", ["device", "driver"])
def test_gone_and_back_before_the_daemon_looked(machine: Machine, what: str) -> None:
    """Its mappings are dead, though all looks as before."""
    with machine.place.link() as link:
        record = machine.create(link)
        machine.namespace("kv", "n")
        write(machine)
        assert not assemble("kv", machine.sim.sysfs, machine.place.records, daemon=link).changed
        if what == "device":
            machine.sim.unplug(0x100)
            machine.sim.plug(0x100)
        else:
            name = Path(record.data[0]).name
            for end in ("unbind", "bind"):
                machine.sim.sysfs.write(f"/sys/bus/dax/drivers/device_dax/{end}", name)
        done = assemble("kv", machine.sim.sysfs, machine.place.records, daemon=link)
        assert done.served
        assert done.changed is (what == "device")
        assert not done.formatted
        assert done.record.uuid == record.uuid
        shown = link.call("pool.show", name="kv")["pool"]
        assert shown["state"] == "serving"
        assert not any(extent["lost"] for extent in shown["extents"])
    write(machine)
    assert pages_found(machine) == KEYS


def test_what_went_a_moment_ago_is_not_served(machine: Machine) -> None:
    with machine.place.link() as link:
        machine.create(link)
        machine.sim.unplug(0x100)
        assert link.call("pool.list")["pools"][0]["state"] == "lost"
        machine.sim.plug(0x100)
        assert link.call("pool.show", name="kv")["pool"]["state"] == "lost"


@pytest.mark.parametrize("again", [False, True])
def test_a_daemon_killed_while_it_gets_the_pool(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """All is taken back, and the answer says so; also from the next daemon, which has found
    the record of the pool by then."""
    before = machine.sim.snapshot()
    real = Link.call

    def call(self: Link, op: str, *words: Any, **more: Any) -> dict[str, Any]:
        if op == "pool.add" and not killed:
            killed.append(op)
            machine.place.stop(signal.SIGKILL)
            if again:
                machine.start()
        return real(self, op, *words, **more)

    killed: list[str] = []
    with machine.place.link() as link:
        monkeypatch.setattr(Link, "call", call)
        with pytest.raises(CtlError) as caught:
            machine.create(link)
    assert killed
    assert not isinstance(caught.value, PartlyError)
    assert "the connection broke" in caught.value.message
    assert machine.place.records.names() == []
    assert read(machine.sim.sysfs).regions == ()
    assert len(machine.sim.snapshot()) == len(before)
    if again:
        assert machine.place.ask("pool.list")["pools"] == []
    else:
        machine.start()
    with machine.place.link() as link:
        machine.create(link)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read poison lists")
def test_known_poison_is_out_of_use_at_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pool that is made over it, and in one that is assembled with a device that got it
    while it was away."""
    monkeypatch.setenv("SAC_CONFIG", str(machine.place.config))
    monkeypatch.setenv("SAC_SOCKET", str(machine.place.socket))

    def run(*words: str) -> Result:
        monkeypatch.setenv("SAC_SYSROOT", str(machine.sim.root))
        machine.sim.trace_instance(f"sac-once-{os.getpid()}")
        done = CliRunner().invoke(root, list(words))
        assert done.exit_code == 0, done.output
        return done

    def poison(dpa: int) -> None:
        machine.sim.sysfs.write("/sys/kernel/debug/cxl/mem0/inject_poison", f"{dpa:#x}")

    def bad() -> int:
        return int(machine.place.ask("pool.show", name="kv")["pool"]["dead_blocks"])

    names = ",".join(m.name for m in read(machine.sim.sysfs).memdevs)
    poison(100 * M)
    made = run("-o", "json", "pool", "create", "kv", "--devices", names)
    assert "pool kv: 1 place is poisoned" in made.stderr
    assert json.loads(made.stdout)["pool"]["dead_blocks"] == bad() == 1
    machine.sim.unplug(0x100)
    machine.sim.plug(0x100)
    poison(50 * M)
    done = run("pool", "assemble", "kv")
    assert "pool kv: 2 places are poisoned" in done.stderr
    assert bad() == 2
