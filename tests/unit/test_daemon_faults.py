# SPDX-License-Identifier: Apache-2.0
"""The daemon's part in faults: what is lost is lost once, what comes back takes its place, and
events of devices are heard where they can be."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from unit.fake_daemon import Desk, FakePool, desk, record
from unit.faults_kit import CxlHouse, cxl_house

from libsac.errors import CorruptError
from sacctl.cxl.sysfs import Sysfs
from sacctl.daemon import opener as opener_module
from sacctl.daemon.extents import META, gone, marks, pages_gone
from sacctl.daemon.health import daemon_health
from sacctl.daemon.losses import Losses
from sacctl.daemon.unserved import Served
from sacctl.daemon.watch import Watcher
from sacctl.errors import CtlError
from sacctl.pool.record import Record

ADMIN, USER = 0, 4242


@pytest.fixture
def here(tmp_path: Path) -> Desk:
    return desk(tmp_path)


def two(here: Desk) -> FakePool:
    pool = here.serve(FakePool())
    pool.two_extents()
    return pool


# ------------------------------------------------------------------------- operations


def test_quarantine(here: Desk) -> None:
    pool = two(here)
    answer = here.ask("pool.quarantine", pool="kv", extent=1, offset=4096, bytes=64)
    assert answer == {"pool": "kv", "extent": 1, "offset": 4096, "bytes": 64, "pages": 3}
    here.ask("pool.quarantine", pool="kv", extent=META, offset=0, bytes=4 << 20)
    assert pool.bad == [(1, 4096, 64), (META, 0, 4 << 20)]


def test_only_administrators_may(here: Desk) -> None:
    pool = two(here)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("pool.quarantine", {"extent": 0, "offset": 0, "bytes": 64}),
        ("pool.lost", {"extent": 0}),
        ("pool.lost", {}),
    ]
    for op, args in cases:
        assert here.error(op, uid=USER, pool="kv", **args)["kind"] == "permission"
    assert (pool.bad, pool.lost) == ([], [])


@pytest.mark.parametrize(
    "args",
    [
        {"extent": 2, "offset": 0, "bytes": 64},
        {"extent": -2, "offset": 0, "bytes": 64},
        {"extent": 0, "offset": -1, "bytes": 64},
        {"extent": 0, "offset": 0, "bytes": 0},
        {"extent": 0, "offset": 0},
    ],
)
def test_nonsense_is_refused(here: Desk, args: dict[str, Any]) -> None:
    pool = two(here)
    assert here.error("pool.quarantine", pool="kv", **args)["kind"] == "usage"
    assert pool.bad == []
    missing: dict[str, Any] = {"extent": 0, "offset": 0, "bytes": 64}
    assert here.error("pool.quarantine", pool="other", **missing)["kind"] == "not_found"


def test_a_part_is_lost_once(here: Desk) -> None:
    pool = two(here)
    assert here.ask("pool.lost", pool="kv", extent=1)["pages"] == 5
    assert here.ask("pool.lost", pool="kv", extent=1)["pages"] == 0
    assert pool.lost == [1]
    shown = here.ask("pool.list")["pools"][0]
    assert shown["state"] == "serving"
    assert [bool(e["lost"]) for e in shown["extents"]] == [False, True]
    found = daemon_health(here.service, {})["findings"]
    assert [f["code"] for f in found] == ["SAC211"]


def test_the_log_says_that_pages_are_gone(
    here: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not "5 pages left": that reads as if they had stayed."""
    monkeypatch.setattr(logging.getLogger("sacctl"), "propagate", True)
    caplog.set_level(logging.INFO, "sacctl")  # whatever another test has left
    two(here)
    here.ask("pool.quarantine", pool="kv", extent=1, offset=0, bytes=64)
    here.ask("pool.lost", pool="kv")
    assert "poisoned; 3 pages are gone" in caplog.text
    assert "; 5 pages are gone" in caplog.text
    assert pages_gone(1) == "1 page is gone"


def test_what_is_left_of_a_pool_is_let_go(here: Desk) -> None:
    pool = two(here)
    asked: dict[str, Any] = {"name": "kv", "lost": True}
    assert not here.ask("pool.remove", **asked)["closed"]  # it is whole
    assert not pool.closed
    here.ask("pool.lost", pool="kv", extent=1)
    assert here.error("pool.remove", uid=USER, **asked)["kind"] == "permission"
    assert here.ask("pool.remove", **asked)["closed"]
    assert pool.closed
    shown = here.ask("pool.list")["pools"][0]
    assert (shown["state"], shown["hint"]) == ("lost", "sudo sacctl pool assemble kv")
    assert not here.ask("pool.remove", **asked)["closed"]  # once is enough


@pytest.mark.parametrize("extents", [[None], [META], [0, 1]])
def test_all_of_it_is_lost(here: Desk, extents: list[int | None]) -> None:
    pool = two(here)
    for extent in extents:
        args: dict[str, Any] = {} if extent is None else {"extent": extent}
        here.ask("pool.lost", pool="kv", **args)
    assert pool.lost[-1] is None  # the pool is told that it is all
    shown = here.ask("pool.list")["pools"][0]
    assert (shown["state"], shown["reason"] != "") == ("lost", True)
    assert "sacctl pool assemble kv" in shown["hint"]
    record = daemon_health(here.service, {})
    assert record["status"] == "critical"
    assert [f["code"] for f in record["findings"]] == ["SAC210"]
    assert here.error("namespace.create", name="n", pool="kv", layout={})["kind"] == "not_found"
    assert here.service.summary().startswith("0 pools")
    assert not pool.closed  # its clients are still there


def test_namespaces_of_a_lost_pool_are_lost(here: Desk) -> None:
    two(here).put("chat")
    here.ask("pool.lost", pool="kv")
    for space in (
        *here.ask("namespace.list")["namespaces"],
        *here.ask("pool.show", name="kv")["namespaces"],
    ):
        assert (space["name"], space["state"]) == ("chat", "lost")
        assert space["reason"]


# ------------------------------------------------------------------------- its return


def give_back(
    here: Desk, monkeypatch: pytest.MonkeyPatch, pool: FakePool | Exception, **changes: Any
) -> dict[str, Any]:
    def open_(record: Record, *_: Any) -> FakePool:
        if isinstance(pool, Exception):
            raise pool
        return pool

    monkeypatch.setattr(opener_module, "open_record", open_)
    given = record("kv", changes.get("uuid", "ab" * 16)).to_dict()
    return here.raw(json.dumps({"op": "pool.add", "record": given}).encode())


def test_what_is_back_takes_its_place(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = two(here), FakePool()
    here.ask("pool.lost", pool="kv")
    assert give_back(here, monkeypatch, new)["result"]["added"] is True
    assert old.closed
    assert here.server.pools == {"kv": new}
    assert here.server.forced == ["kv"]
    shown = here.ask("pool.list")["pools"][0]
    assert (shown["state"], shown["reason"]) == ("serving", "")


def test_a_part_that_is_back(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = two(here), FakePool()
    here.ask("pool.lost", pool="kv", extent=0)
    assert give_back(here, monkeypatch, new)["result"]["added"] is True
    assert old.closed


def test_nothing_lost_nothing_replaced(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    old = two(here)
    assert give_back(here, monkeypatch, FakePool())["result"]["added"] is False
    assert not old.closed


def test_another_pool_takes_no_place(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    old = two(here)
    here.ask("pool.lost", pool="kv", extent=0)
    other = give_back(here, monkeypatch, FakePool("cd" * 16), uuid="cd" * 16)
    assert other["error"]["kind"] == "refused"
    assert not old.closed
    # But where nothing of it is left: what was on the devices has gone, and was made anew.
    here.ask("pool.lost", pool="kv")
    made = give_back(here, monkeypatch, FakePool("cd" * 16), uuid="cd" * 16)
    assert made["result"]["pool"]["uuid"] == "cd" * 16


def test_what_does_not_open_is_absent(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    old = two(here)
    here.ask("pool.lost", pool="kv")
    answer = give_back(here, monkeypatch, CorruptError("torn"))
    assert "torn" in answer["error"]["message"]
    assert old.closed
    assert here.ask("pool.list")["pools"][0]["state"] == "damaged"


# ---------------------------------------------------------------------------- devices


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CxlHouse]:
    (tmp_path / "machine").mkdir()
    with cxl_house(tmp_path / "machine", "2hb2") as made:
        yield made


def cxl_record(house: CxlHouse) -> Record:
    path = house.pool["extents"][0]["path"]
    return record().with_(meta=house.pool["meta"], data=(path,))


def served(here: Desk, house: CxlHouse) -> FakePool:
    """The house's pool, served by the desk with its devices."""
    pool = FakePool()
    own = cxl_record(house)
    seen = marks(house.sysfs, own)
    here.service.pools._known.put(Served("kv", own, cast(Any, pool), "serving", marks=seen))
    return pool


def rebind(house: CxlHouse) -> None:
    for verb in ("unbind", "bind"):
        house.sysfs.write(f"/sys/bus/dax/drivers/device_dax/{verb}", house.data)


def away(house: CxlHouse) -> None:
    house.sysfs.write("/sys/bus/dax/drivers/device_dax/unbind", house.data)


def unplug(house: CxlHouse) -> None:
    house.machine.unplug(0x100)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (away, "has no driver any more"),
        (rebind, "went and came back"),
        (unplug, "has gone"),
    ],
    ids=["unbind", "rebind", "unplug"],
)
def test_a_dead_device_is_told_from_a_living_one(
    house: CxlHouse, fault: Any, words: str
) -> None:
    seen = marks(house.sysfs, cxl_record(house))
    assert [(m.extent, m.dax) for m in seen] == [(META, house.meta), (0, house.data)]
    assert [gone(house.sysfs, mark) for mark in seen] == ["", ""]
    house.machine.aer(0x101, "correctable", 1)  # the tree is written anew: no other device
    assert [gone(house.sysfs, mark) for mark in seen] == ["", ""]
    fault(house)
    assert words in gone(house.sysfs, seen[1])


def test_ordinary_files_have_no_device(house: CxlHouse, tmp_path: Path) -> None:
    assert marks(house.sysfs, record()) == ()
    with (tmp_path / "dax0.0").open("wb") as file:
        assert marks(Sysfs(), record(), [file.fileno()] * 2) == ()


def test_a_look_loses_what_has_gone(here: Desk, house: CxlHouse) -> None:
    pool = served(here, house)
    losses = Losses(here.service.pools, house.sysfs)
    assert losses.look() == []
    away(house)
    assert losses.look() == ["kv"]
    assert pool.lost == [None]  # its only data extent
    assert losses.look() == []
    assert f"{house.data} has no driver" in here.service.pools.get("kv").reason


def test_metadata_takes_all_with_it(here: Desk, house: CxlHouse) -> None:
    pool = served(here, house)
    pool.two_extents()
    house.sysfs.write("/sys/bus/dax/drivers/device_dax/unbind", house.meta)
    assert Losses(here.service.pools, house.sysfs).look() == ["kv"]
    assert pool.lost == [None]


def test_a_pool_that_opens_does_not_delay_a_loss(here: Desk, house: CxlHouse) -> None:
    pool = served(here, house)
    losses = Losses(here.service.pools, house.sysfs)
    unplug(house)
    with here.service.pools._changing:  # somebody opens or scrubs another pool
        thread = threading.Thread(target=losses.look)
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
    assert pool.lost == [None]


def test_what_cannot_be_lost_does_not_stop_the_look(here: Desk, house: CxlHouse) -> None:
    pool = served(here, house)

    def fail(extent: int | None) -> int:
        raise CtlError("it cannot")

    pool.lose = fail  # type: ignore[method-assign]
    unplug(house)
    assert Losses(here.service.pools, house.sysfs).look() == ["kv"]


# ----------------------------------------------------------------------------- events


def until(done: Any) -> None:
    end = time.monotonic() + 10
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_without_events_it_looks_all_the_same(house: CxlHouse) -> None:
    looks: list[int] = []
    watcher = Watcher(house.sysfs, lambda: looks.append(1), every=0.05)
    watcher.start()
    until(lambda: len(looks) > 2)
    assert not watcher.listening
    watcher.close()
    count = len(looks)
    time.sleep(0.2)
    assert len(looks) == count


def test_a_look_that_fails_is_not_the_last(tmp_path: Path) -> None:
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        raise ValueError("no")

    watcher = Watcher(Sysfs(tmp_path), look, every=0.02)
    watcher.start()
    until(lambda: len(looks) > 2)
    watcher.close()


class FakeDevice:
    def __init__(self, action: str, subsystem: str, name: str, **properties: str) -> None:
        self.action, self.subsystem, self.sys_name = action, subsystem, name
        self.properties = properties


class FakeMonitor:
    """As pyudev's: events that a test puts in."""

    def __init__(self) -> None:
        self.filters: list[str] = []
        self.queue: list[FakeDevice | OSError] = []
        self.failing = False
        self.started = False
        self.reading, self.writing = os.pipe()
        self.taken: list[FakeDevice] = []

    def filter_by(self, subsystem: str) -> None:
        self.filters.append(subsystem)

    def start(self) -> None:
        if self.failing:
            raise OSError(97, "Address family not supported by protocol")
        self.started = True

    def fileno(self) -> int:
        return self.reading

    def put(self, *events: FakeDevice | OSError) -> None:
        self.queue += events
        os.write(self.writing, b"." * len(events))

    def poll(self, timeout: float) -> FakeDevice | None:
        assert timeout == 0
        if not self.queue:
            return None
        os.read(self.reading, 1)
        found = self.queue.pop(0)
        if isinstance(found, OSError):
            raise found
        self.taken.append(found)
        return found


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> FakeMonitor:
    pyudev = pytest.importorskip("pyudev")
    made = FakeMonitor()
    monkeypatch.setattr(pyudev, "Context", lambda: None)
    monkeypatch.setattr(pyudev.Monitor, "from_netlink", lambda context, source: made)
    return made


def test_an_event_makes_it_look_at_once(monitor: FakeMonitor) -> None:
    looks: list[int] = []
    watcher = Watcher(Sysfs(), lambda: looks.append(len(monitor.taken)), every=30.0)
    watcher.start()
    until(lambda: monitor.started)
    assert monitor.filters == ["dax", "cxl"]
    monitor.put(FakeDevice("unbind", "dax", "dax0.0"), FakeDevice("remove", "dax", "dax0.0"))
    until(lambda: looks)
    assert watcher.listening
    assert looks[-1] >= 1  # not before the event was taken
    until(lambda: len(monitor.taken) == 2)
    count = len(looks)
    monitor.put(OSError(105, "No buffer space available"))  # events were lost
    until(lambda: len(looks) > count)
    began = time.monotonic()
    watcher.close()  # although nothing happens
    assert time.monotonic() - began < 5


def test_no_netlink_is_no_reason_not_to_serve(monitor: FakeMonitor) -> None:
    monitor.failing = True
    looks: list[int] = []
    watcher = Watcher(Sysfs(), lambda: looks.append(1), every=0.02)
    watcher.start()
    until(lambda: looks)
    assert not watcher.listening
    watcher.close()


def test_events_as_sentences() -> None:
    from sacctl.daemon.watch import _sentence

    assert _sentence(FakeDevice("remove", "cxl", "mem0", DEVTYPE="cxl_memdev")) == (
        "CXL device mem0 has gone"
    )
    bound = FakeDevice("bind", "dax", "dax0.0", DRIVER="device_dax")
    assert _sentence(bound) == "dax device dax0.0 was bound to device_dax"
    assert _sentence(FakeDevice("add", "cxl", "decoder3.0", DEVTYPE="cxl_decoder")) == ""
