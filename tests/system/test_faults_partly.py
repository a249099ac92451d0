# SPDX-License-Identifier: Apache-2.0
"""A pool of two regions that loses one of them, and is assembled while the daemon runs and
holds the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import cxlsim
import pytest
from system.daemon_kit import LAYOUT
from system.test_faults import CxlPlace, until

import libsac
from libsac.errors import SacError
from sacctl.cxl.read import read
from sacctl.errors import CtlError, RefusedError
from sacctl.pool.cxl_assemble import Assembled, assemble
from sacctl.pool.cxl_create import create
from sacctl.pool.cxl_spec import CxlSpec

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making regions needs root")

TOKENS = 64 * 800  # pages enough for both regions to have some
META, OTHER = 0x101, 0x102  # devices of the region with the metadata, and of the other


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CxlPlace]:
    (tmp_path / "m").mkdir()
    with cxlsim.Machine(tmp_path / "m", "2hb4") as machine:
        monkeypatch.setenv("SAC_SYSROOT", str(machine.sysfs.root))
        made = CxlPlace(tmp_path, machine)
        made.start()
        serials = (0x100, 0x101, 0x102)
        names = {m.serial: m.identity for m in read(machine.sysfs).memdevs}
        spec = CxlSpec("kv", tuple(names[serial] for serial in serials))
        with made.link() as link:
            create(spec, machine.sysfs, made.records, daemon=link, owner=os.geteuid())
            for name, checksum in (("sure", True), ("bare", False)):
                link.call(
                    "namespace.create", name=name, pool="kv", layout=LAYOUT, checksum=checksum
                )
        yield made
        made.close()


class Client:
    """Pages of both namespaces."""

    def __init__(self, place: CxlPlace) -> None:
        self.pool = libsac.connect("kv", socket=str(place.socket), name="engine")
        self.spaces = {name: self.pool.namespace(name) for name in ("sure", "bare")}

    def put(self, name: str) -> None:
        space = self.spaces[name]
        with space.put(space.keys(range(TOKENS))) as put:
            for plane in space.layout.planes:
                for layer in plane.layers:
                    for page in range(len(put.missing)):
                        put.view(plane.name, layer, page)[:] = 7

    def found(self, name: str) -> int:
        try:
            space = self.spaces[name]
            return int(space.lookup(space.keys(range(TOKENS))).sum())
        except SacError:
            return 0


def assembled(place: CxlPlace) -> Assembled:
    with place.link() as link:
        return assemble("kv", place.machine.sysfs, place.records, daemon=link)


def test_a_part_comes_back(place: CxlPlace) -> None:
    client = Client(place)
    for name in ("sure", "bare"):
        client.put(name)
    before = client.found("sure")
    place.machine.unplug(OTHER)
    until(lambda: bool(place.pool()["extents"][1]["lost"]))
    assert place.pool()["state"] == "serving"
    stayed = client.found("sure")
    assert 0 < stayed < before
    place.machine.plug(OTHER)
    done = assembled(place)
    assert (done.changed, done.formatted, done.checked, done.served) == (
        True,
        False,
        True,
        True,
    )
    shown = place.pool()
    assert shown["state"] == "serving"
    assert not any(extent["lost"] for extent in shown["extents"])
    assert not {"SAC210", "SAC211", "SAC507", "SAC508"} & place.codes()
    # What left when its device went has left; what is on the other device has a checksum.
    until(lambda: client.found("sure") > 0)
    assert (client.found("sure"), client.found("bare")) == (stayed, 0)
    assert done.pages == stayed
    client.put("sure")
    assert client.found("sure") == before
    client.pool.close()
    assert place.stop() == 0


def test_the_metadata_comes_back(place: CxlPlace) -> None:
    """All of it is lost then, though a data extent is there and the daemon holds it. Its region
    lies behind the lost one: the kernel makes that again only when it has gone, and so have its
    users."""
    client = Client(place)
    client.put("sure")
    before = client.found("sure")
    place.machine.unplug(META)
    until(lambda: place.pool()["state"] == "lost")
    place.machine.plug(META)
    with pytest.raises(RefusedError, match="is in use by process") as caught:
        assembled(place)
    assert "the daemon" not in caught.value.message
    assert (place.pool()["state"], place.pool()["hint"]) == (
        "lost",
        "sudo sacctl pool assemble kv",
    )
    client.pool.close()
    done = assembled(place)
    assert (done.checked, done.served, done.pages) == (True, True, before)
    client = Client(place)
    assert client.found("sure") == before
    client.pool.close()
    assert place.stop() == 0


def test_a_driver_taken_away(place: CxlPlace) -> None:
    """The daemon closes the dead device by itself; a client has to end first."""
    name = Path(place.pool()["extents"][1]["path"]).name
    place.machine.sysfs.write("/sys/bus/dax/drivers/device_dax/unbind", name)
    until(lambda: bool(place.pool()["extents"][1]["lost"]))
    assert assembled(place).served
    shown = place.pool()
    assert (shown["state"], [e["lost"] for e in shown["extents"]]) == ("serving", ["", ""])
    assert place.stop() == 0


def test_what_cannot_be_made_leaves_the_pool_lost(place: CxlPlace) -> None:
    place.machine.unplug(OTHER)
    until(lambda: bool(place.pool()["extents"][1]["lost"]))
    place.machine.plug(OTHER)
    place.machine.fail_at(12)
    with pytest.raises(CtlError):
        assembled(place)
    # What failed was behind the daemon's letting go: it says what to do.
    assert place.pool()["state"] in ("lost", "absent")
    assert "sacctl pool assemble kv" in place.pool()["hint"]
    assert assembled(place).served
    assert place.pool()["state"] == "serving"
    assert place.stop() == 0
