# SPDX-License-Identifier: Apache-2.0
"""The daemon on a simulated machine serves pools of CXL devices, with the real core."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import cxlsim
import pytest
from conformance.content import RICH, check_stored, put
from system.daemon_kit import Place

import libsac
from sacctl.cxl.read import read
from sacctl.daemon.link import Link
from sacctl.errors import RefusedError
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
