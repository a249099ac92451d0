# SPDX-License-Identifier: Apache-2.0
"""Pools that come, grow, go and cannot be opened; pools of other users."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from system.daemon_kit import LAYOUT, Place, clean

from sacctl.pool.destroy import destroy
from sacctl.pool.extend import extend
from sacctl.pool.record import Records


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, ["daemon.status_interval = 1"])
    yield made
    made.close()


# ------------------------------------------------------------------------------ pools by fd


def test_a_pool_is_handed_over_and_removed(place: Place) -> None:
    place.start()
    with place.link() as link:
        record = place.make_pool(link=link)
        shown = link.call("pool.show", name="kv")["pool"]
        assert shown["state"] == "serving"
        assert shown["uuid"] == record.uuid
        assert shown["data_bytes"] == 64 << 20
        assert sum(e["bytes"] for e in shown["extents"]) == 64 << 20
        link.call("pool.remove", name="kv")
        assert link.call("pool.list")["pools"] == []
    assert clean(place)


def test_extents_are_added_while_it_serves(place: Place) -> None:
    place.start()
    with place.link() as link:
        place.make_pool(link=link)
        extend("kv", (32 << 20,), place.records, daemon=link)
        shown = link.call("pool.show", name="kv")["pool"]
    assert shown["data_bytes"] == 96 << 20
    assert [e["bytes"] for e in shown["extents"]] == [64 << 20, 32 << 20]
    assert place.stop() == 0
    place.start()
    assert place.ask("pool.show", name="kv")["pool"]["data_bytes"] == 96 << 20


def test_one_bad_pool_does_not_hold_up_the_others(place: Place) -> None:
    for name in ("good", "torn", "gone"):
        place.make_pool(name)
    torn, gone = place.records.get("torn"), place.records.get("gone")
    with Path(torn.meta).open("r+b") as file:
        file.write(bytes(8192))
    Path(gone.meta).unlink()
    place.start()
    pools = {p["name"]: p for p in place.ask("pool.list")["pools"]}
    assert {n: p["state"] for n, p in pools.items()} == {
        "good": "serving",
        "torn": "damaged",
        "gone": "absent",
    }
    assert pools["torn"]["reason"]
    assert pools["gone"]["hint"]
    health = place.ask("health")
    assert health["status"] == "critical"
    assert {f["code"] for f in health["findings"]} == {"SAC201", "SAC202"}


# ------------------------------------------------------------------------ other users' pools


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_pool_of_another_user_is_handed_over(place: Place) -> None:
    """The daemon runs as a user who may not open the files: he gets them by descriptors, has
    the pool as absent after a restart, and gets them again."""
    uid = 12345
    for folder in [place.folder, *place.folder.parents][:4]:
        if folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    for folder in (place.folder / "run", place.folder / "notify"):
        if not folder.exists():
            folder.mkdir()
        os.chown(folder, uid, uid)
    place.write(["daemon.socket_mode = '0666'"])
    place.start(wait=False, user=uid)
    place.expect("READY=1")
    with place.link() as link:
        assert link.peer.uid == uid
        record = place.make_pool(link=link)
        assert Path(record.meta).stat().st_uid == os.geteuid()
        assert link.call("pool.show", name="kv")["pool"]["state"] == "serving"
        link.call("namespace.create", name="chat", layout=LAYOUT)
    assert place.stop() == 0
    assert clean(place)
    place.start(wait=False, user=uid)
    place.expect("READY=1")
    with place.link() as link:
        shown = link.call("pool.show", name="kv")["pool"]
        assert shown["state"] == "absent"
        assert "ermission" in shown["reason"]
        assert "same spec" in shown["hint"]
        place.make_pool(link=link)
        shown = link.call("pool.show", name="kv")
        assert shown["pool"]["state"] == "serving"
        assert [n["name"] for n in shown["namespaces"]] == ["chat"]


def test_a_pool_whose_record_is_elsewhere_is_known_after_a_restart(place: Place) -> None:
    (place.folder / "theirs").mkdir()
    theirs = Records(place.folder / "theirs")
    place.start()
    with place.link() as link:
        place.make_pool(link=link, records=theirs)
        place.make_pool("other", link=link, records=theirs)
    place.stop(signal.SIGKILL)
    place.start()
    with place.link() as link:
        assert [p["state"] for p in link.call("pool.list")["pools"]] == ["serving"] * 2
        destroy("kv", theirs, daemon=link)
        assert [p["name"] for p in link.call("pool.list")["pools"]] == ["other"]
    place.stop()
    destroy("other", theirs)
    place.start()
    assert place.ask("pool.list")["pools"] == []


def test_socket_permissions_follow_a_reload(place: Place) -> None:
    place.start()
    assert place.socket.stat().st_mode & 0o777 == 0o660
    place.write(["daemon.socket_mode = '0600'"])
    assert "daemon.socket_mode" in place.ask("reload")["applied"]
    assert place.socket.stat().st_mode & 0o777 == 0o600


def test_a_socket_that_cannot_be_made(place: Place) -> None:
    place.make_pool()
    place.write([f"daemon.socket = '{place.folder}/none/s'"])
    assert place.spawn().wait(30) not in (0, None)
    log = place.log.read_text()
    assert f"{place.folder}/none" in log
    assert "Traceback" not in log
    assert clean(place)
