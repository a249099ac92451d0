# SPDX-License-Identifier: Apache-2.0
"""Memory of a pool goes in the midst of what is done with it: the daemon and its clients go on,
errors are for what is lost alone, and the counts stay true."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import cxlsim
import pytest
from system.daemon_kit import LAYOUT
from system.test_faults import CxlPlace, until
from system.test_faults_partly import META, OTHER, Client, assembled

from libsac.errors import MediaError, NoSpaceError
from sacctl.cxl.read import read
from sacctl.errors import CtlError
from sacctl.pool.cxl_create import create
from sacctl.pool.cxl_spec import CxlSpec
from sacctl.pool.record import Record, Records

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making regions needs root")

SPACES = ("sure", "bare")


def make(place: CxlPlace, records: Records, name: str, *serials: int) -> Record:
    """A pool on these devices; the daemon gets it where it is of the daemon's records."""
    known = {m.serial: m.identity for m in read(place.machine.sysfs).memdevs}
    spec = CxlSpec(name, tuple(known[serial] for serial in serials))
    with place.link() as link:
        daemon = link if records is place.records else None
        owner = os.geteuid()
        made = create(spec, place.machine.sysfs, records, daemon=daemon, owner=owner)
    return made.made.record


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[CxlPlace]:
    """A pool of two regions: one of two devices with the metadata, and one of OTHER; or of the
    devices that a test asks for."""
    serials = getattr(request, "param", (0x100, META, OTHER))
    (tmp_path / "m").mkdir()
    with cxlsim.Machine(tmp_path / "m", "2hb4") as machine:
        monkeypatch.setenv("SAC_SYSROOT", str(machine.sysfs.root))
        made = CxlPlace(tmp_path, machine)
        made.start()
        make(made, made.records, "kv", *serials)
        for name in SPACES:
            options = {"layout": LAYOUT, "checksum": name == "sure"}
            made.ask("namespace.create", name=name, pool="kv", **options)
        yield made
        assert made.process is not None
        assert made.stop() == 0
        assert "Traceback" not in made.log.read_text()
        made.close()


def lost(place: CxlPlace) -> bool:
    return place.pool()["state"] == "lost" or bool(place.pool()["extents"][1]["lost"])


def true_counts(place: CxlPlace, client: Client) -> None:
    """What the daemon counts is what a client finds, and what is given out is all there is."""
    shown = {s["name"]: s for s in place.ask("namespace.list")["namespaces"]}
    for name, space in shown.items():
        assert space["pages"] == client.found(name)
        assert space["reserved"] == space["pinned"] == 0
    pool = place.pool()
    alive = [e for e in pool["extents"] if not e["lost"]]
    assert pool["free_bytes"] == sum(e["free_bytes"] for e in alive)


def verify(place: CxlPlace, client: Client) -> None:
    """It may come to the dead pages before the daemon has heard of the loss: these leave."""
    before = client.found("sure")
    for _ in range(10):
        done = place.ask("namespace.verify", pool="kv", name="sure")
        assert done["dropped"] <= done["checked"] <= before


def evict(place: CxlPlace, client: Client) -> None:
    place.ask("namespace.resize", pool="kv", name="sure", quota=16 << 20)
    for _ in range(4):
        put(client)


def put(client: Client) -> None:
    """Where it fails, then for the memory that went, or for a quota that is full."""
    for name in SPACES:
        with suppress(MediaError, NoSpaceError):
            client.put(name)


def put_again(place: CxlPlace, client: Client) -> None:
    for _ in range(6):
        put(client)


def end(place: CxlPlace, client: Client) -> None:
    place.ask("namespace.destroy", pool="kv", name="bare")
    del client.spaces["bare"]


WORK: dict[str, Callable[[CxlPlace, Client], None]] = {
    "verify": verify,
    "evict": evict,
    "put": put_again,
    "destroy": end,
}


@pytest.mark.parametrize("work", WORK)
def test_in_the_midst(place: CxlPlace, work: str) -> None:
    client = Client(place)
    put(client)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            WORK[work](place, client)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.01)
    place.machine.unplug(OTHER)
    thread.join(30)
    assert not thread.is_alive()
    assert failed == []
    until(lambda: lost(place))
    assert place.pool()["state"] == "serving"
    true_counts(place, client)
    for name in client.spaces:
        if work != "evict":  # whose quota is too small for all
            client.put(name)
    true_counts(place, client)
    client.pool.close()


def test_one_after_the_other(place: CxlPlace) -> None:
    client = Client(place)
    put(client)
    place.machine.unplug(OTHER)
    until(lambda: lost(place))
    stayed = client.found("sure")
    place.machine.unplug(META)
    until(lambda: place.pool()["state"] == "lost")
    assert {e["lost"] != "" for e in place.pool()["extents"]} == {True}
    put(client)
    assert client.found("sure") == client.found("bare") == 0
    for op in ("namespace.verify", "namespace.destroy"):
        with pytest.raises(CtlError, match="is lost"):
            place.ask(op, pool="kv", name="sure")
    assert place.ask("pool.lost", pool="kv")["pages"] == 0
    client.pool.close()
    place.machine.plug(META)
    place.machine.plug(OTHER)
    assert assembled(place).pages == stayed
    client = Client(place)
    true_counts(place, client)
    put(client)
    true_counts(place, client)
    client.pool.close()


@pytest.mark.parametrize("when", ["before", "as it starts"])
def test_at_the_start(place: CxlPlace, when: str) -> None:
    place.stop()
    if when == "before":
        place.machine.unplug(OTHER)
    place.start(wait=False)
    if when != "before":
        time.sleep(0.3)
        place.machine.unplug(OTHER)
    place.expect("READY=1")
    until(lambda: place.pool()["state"] == "absent" or lost(place))
    assert {"SAC501", "SAC507"} <= place.codes()
    place.machine.plug(OTHER)
    assert assembled(place).served
    client = Client(place)
    put(client)
    true_counts(place, client)
    client.pool.close()


@pytest.mark.parametrize("place", [(0x100,)], indirect=True)
def test_an_extent_that_was_added(place: CxlPlace, tmp_path: Path) -> None:
    """It is watched as those are that were there from the beginning."""
    more = make(place, Records(tmp_path / "elsewhere"), "more", OTHER)
    before = Path(more.data[0])
    with before.open("r+b") as memory:
        memory.write(bytes(1 << 20))  # nobody's any more
    with place.link() as link:
        plain = place.make_pool("plain", "32M", link=link)
    grown = plain.with_(data=(*plain.data, *more.data), sizes=(*plain.sizes, *more.sizes))
    place.ask("pool.extend", name="plain", record=grown.to_dict())
    place.machine.unplug(OTHER)
    until(lambda: bool(place.pool("plain")["extents"][1]["lost"]))
    assert [bool(e["lost"]) for e in place.pool("plain")["extents"]] == [False, True]
