# SPDX-License-Identifier: Apache-2.0
"""The service manager keeps the files of pools: a daemon that starts anew has its pools from
it, and takes nothing but what it gave."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from system.daemon_kit import LAYOUT, Place
from system.manager import Manager, open_paths

FILES = ["pool.kv.0", "pool.kv.meta"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.fixture
def manager(place: Place) -> Iterator[Manager]:
    made = Manager(place)
    yield made
    made.close()


def with_pool(place: Place, manager: Manager) -> str:
    """Starts the daemon, gives it a pool with a namespace; the pool's uuid."""
    manager.start()
    with place.link() as link:
        record = place.make_pool(link=link)
        link.call("namespace.create", name="chat", pool="kv", layout=LAYOUT)
    manager.hear()
    assert manager.names() == FILES
    return record.uuid


def state(place: Place) -> tuple[str, str, list[str]]:
    pool = place.ask("pool.list")["pools"][0]
    spaces = place.ask("namespace.list")["namespaces"] if pool["state"] == "serving" else []
    return pool["state"], pool["uuid"], [space["name"] for space in spaces]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_needs_no_path(place: Place, manager: Manager, how: signal.Signals) -> None:
    uuid = with_pool(place, manager)
    place.stop(how)
    (place.folder / "kv").rename(place.folder / "elsewhere")
    manager.start()
    assert state(place) == ("serving", uuid, ["chat"])
    manager.hear()
    assert manager.names() == FILES  # neither forgotten nor twice
    assert manager.removed == []
    # And again: what came back is still known.
    place.stop()
    manager.start()
    assert state(place) == ("serving", uuid, ["chat"])


def test_without_the_store_the_path_counts(place: Place, manager: Manager) -> None:
    with_pool(place, manager)
    place.stop()
    (place.folder / "kv").rename(place.folder / "elsewhere")
    place.start()
    assert state(place)[0] == "absent"


def test_pools_of_records_are_kept_too(place: Place, manager: Manager) -> None:
    place.make_pool()
    manager.start()
    manager.hear()
    assert manager.names() == FILES


def test_a_file_in_anothers_place_is_not_taken(place: Place, manager: Manager) -> None:
    uuid = with_pool(place, manager)
    place.stop()
    # The data file of the store is now a copy: the same bytes, another file.
    number = next(i for i, (name, _) in enumerate(manager.kept) if name == "pool.kv.0")
    name, fd = manager.kept[number]
    copy = place.folder / "copy"
    size = os.fstat(fd).st_size
    with copy.open("wb") as file:
        file.truncate(size)
        file.write(os.pread(fd, 1 << 20, 0))
    other = os.open(copy, os.O_RDWR)
    os.close(fd)
    manager.kept[number] = (name, other)
    manager.start()
    manager.hear()
    assert place.process is not None
    assert str(copy) not in open_paths(place.process.pid)
    assert state(place) == ("serving", uuid, ["chat"])  # by its path
    assert "pool.kv.0 is another file than it was" in place.log.read_text()
    assert manager.names() == FILES  # the right ones, anew
    assert set(manager.removed) >= {"pool.kv.0", "pool.kv.meta"}


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_files_of_no_pool_are_closed(place: Place, manager: Manager, flags: int) -> None:
    stray = place.folder / "stray"
    stray.write_bytes(bytes(4096))
    manager.kept.append(("pool.other.meta", os.open(stray, flags)))
    manager.kept.append(("", os.open(stray, flags)))
    manager.start()
    manager.hear()
    assert place.process is not None
    assert str(stray) not in open_paths(place.process.pid)
    assert manager.removed == ["pool.other.meta"]
    assert "of no pool: one without a name, pool.other.meta" in place.log.read_text()


def test_half_of_a_pool_is_not_taken(place: Place, manager: Manager) -> None:
    with_pool(place, manager)
    place.stop()
    name, fd = manager.kept.pop()
    os.close(fd)
    manager.start()
    assert state(place)[0] == "serving"
    assert f"0 came as {name}, one is needed" in place.log.read_text()


def test_what_goes_is_forgotten(place: Place, manager: Manager) -> None:
    with_pool(place, manager)
    with place.link() as link:
        link.call("namespace.destroy", name="chat", pool="kv")
        link.call("pool.remove", name="kv")
    manager.hear()
    assert manager.names() == []


def test_new_extents_are_kept(place: Place, manager: Manager) -> None:
    from sacctl.pool.extend import extend

    uuid = with_pool(place, manager)
    with place.link() as link:
        extend("kv", (32 << 20,), place.records, daemon=link)
    manager.hear()
    assert manager.names() == ["pool.kv.0", "pool.kv.1", "pool.kv.meta"]
    place.stop()
    (place.folder / "kv").rename(place.folder / "elsewhere")
    manager.start()
    assert state(place) == ("serving", uuid, ["chat"])
    assert len(place.ask("pool.list")["pools"][0]["extents"]) == 2


def test_the_socket_comes_with_the_files(place: Place, manager: Manager) -> None:
    uuid = with_pool(place, manager)
    place.stop()
    path = place.folder / "activated.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen(8)
        manager.start(("sacd.socket", listening.fileno()))
        place.socket = path
        assert state(place) == ("serving", uuid, ["chat"])


def test_a_removed_pools_files_are_not_served(place: Place, manager: Manager) -> None:
    """Its owner destroyed it while no daemon ran."""
    with_pool(place, manager)
    place.stop()
    for file in (place.folder / "kv").iterdir():
        file.unlink()
    manager.start()
    assert state(place)[0] == "absent"
    assert "has been removed" in place.log.read_text()
