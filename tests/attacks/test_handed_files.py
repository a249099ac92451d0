# SPDX-License-Identifier: Apache-2.0
"""What a service manager hands over: files of other kinds, too many, too few, under wrong
names, and variables of nonsense. The daemon starts, serves its pools, says what it drops."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from system.daemon_kit import LAYOUT, Place
from system.manager import Manager, open_paths

from sacctl.daemon.notify import Notifier, take_handed
from sacctl.errors import UsageError

KEPT = ["pool.kv.0", "pool.kv.meta"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.fixture
def manager(place: Place) -> Iterator[Manager]:
    """With a pool that has a namespace, and no daemon."""
    made = Manager(place)
    made.start()
    with place.link() as link:
        place.make_pool(link=link)
        link.call("namespace.create", name="chat", pool="kv", layout=LAYOUT)
    made.hear()
    assert made.names() == KEPT
    place.stop()
    yield made
    made.close()


def a_socket(kind: socket.SocketKind = socket.SOCK_STREAM, family: int = socket.AF_UNIX) -> int:
    return socket.socket(family, kind).detach()


KINDS: dict[str, Callable[[Path], int]] = {
    "pipe": lambda at: os.dup(os.pipe()[0]),
    "socket": lambda at: a_socket(),
    "datagram": lambda at: a_socket(socket.SOCK_DGRAM),
    "internet": lambda at: a_socket(family=socket.AF_INET),
    "zeros": lambda at: os.open("/dev/zero", os.O_RDWR),
    "folder": lambda at: os.open(at, os.O_RDONLY),
    "path": lambda at: os.open(at / "kv" / "meta", os.O_PATH),
    "writing": lambda at: os.open(at / "kv" / "meta", os.O_WRONLY),
    "memory": lambda at: os.memfd_create("x"),
    "event": lambda at: os.eventfd(0),
    "process": lambda at: os.pidfd_open(os.getpid()),
}  # fmt: skip


def served(place: Place) -> None:
    pool = place.ask("pool.list")["pools"][0]
    spaces = place.ask("namespace.list")["namespaces"]
    assert (pool["state"], [space["name"] for space in spaces]) == ("serving", ["chat"])


def start(place: Place, manager: Manager) -> str:
    """What the daemon logs."""
    at = len(place.log.read_text())
    manager.start()
    manager.hear()
    served(place)
    assert manager.names() == KEPT
    return place.log.read_text()[at:]


def test_every_kind_beside_the_right_ones(place: Place, manager: Manager) -> None:
    """To forget them all takes more messages than the manager's socket holds; that it is ready
    arrives all the same."""
    for number, make in enumerate(KINDS.values()):
        manager.kept.append((f"stored{number}", make(place.folder)))
    said = start(place, manager)
    assert f"stored{len(KINDS) - 1}" in said
    assert "stored1 (a socket)" in said


@pytest.mark.parametrize("kind", ["pipe", "internet", "zeros", "path", "writing"])
def test_one_in_the_place_of_a_right_one(place: Place, manager: Manager, kind: str) -> None:
    name, fd = manager.kept.pop()
    os.close(fd)
    manager.kept.append((name, KINDS[kind](place.folder)))
    said = start(place, manager)
    assert "kept files of pool kv are not used" in said


def test_two_sets_of_a_pool(place: Place, manager: Manager) -> None:
    """One of them is right: its files are used, and the paths are not."""
    for name in KEPT:
        manager.kept.insert(0, (name, KINDS["zeros"](place.folder)))
    (place.folder / "kv").rename(place.folder / "elsewhere")
    said = start(place, manager)
    assert "2 files came as pool.kv.meta: one is right, the rest is dropped" in said
    assert place.process is not None
    assert "/dev/zero" not in open_paths(place.process.pid)
    assert len(manager.kept) == 2


def test_dropped_files_are_waited_for(place: Place, manager: Manager) -> None:
    """The manager has the pool locked by them until it hears that it may close them."""
    name, fd = next(kept for kept in manager.kept if kept[0] == "pool.kv.0")
    manager.kept.remove((name, fd))
    os.close(fd)
    place.write(["daemon.status_interval = 3600"])
    start(place, manager)


def test_a_socket_of_another_kind_comes_first(place: Place, manager: Manager) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place.folder / "right.sock"))
        listening.listen()
        manager.start(("one", a_socket()), ("two", listening.fileno()))
        place.socket = place.folder / "right.sock"
        served(place)


def handed(names: str = "", **env: str) -> tuple[str, str]:
    """In a process with nothing at 3 and above: what was odd, or the refusal."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            out = os.dup2(writing, 60)
            os.closerange(3, 60)
            os.closerange(61, 1024)
            given = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": names} | env
            try:
                found = take_handed(given)
                said = f"{found.listening}|{found.odd}"
            except UsageError as error:
                said = f"error|{error}"
            os.write(out, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        what, _, why = file.read().partition("|")
    return what, why


@pytest.mark.parametrize("count", ["x", "-1", "1e3", "\u0663", "9" * 5000, "0x3", " 3", ""])
def test_a_count_that_is_none(count: str) -> None:
    what, why = handed(LISTEN_FDS=count)
    assert what == "None"
    assert "which is no number" in why


@pytest.mark.parametrize("count", ["3", "9" * 18])
def test_files_that_are_not_open(count: str) -> None:
    assert "3 of them" in handed("pool.kv.meta", LISTEN_FDS="3")[1]
    assert handed("pool.kv.meta", LISTEN_FDS=count)[0] == "None"
    assert handed("sacd.socket", LISTEN_FDS=count)[0] == "error"


@pytest.mark.parametrize("usec", ["9" * 400, "9" * 5000, "-1", "\u0663", "x"])
def test_a_watchdog_of_nonsense(usec: str) -> None:
    notifier = Notifier({"WATCHDOG_USEC": usec, "NOTIFY_SOCKET": "/" + "x" * 500})
    assert notifier.watchdog == 0.0
    notifier.ready("nobody hears")
    assert not notifier.keep("pool.kv.meta", 0)
    assert not notifier.drop("pool.kv.meta\nREADY=1")
    notifier.close()


@pytest.mark.parametrize("name", ["kept.json", ".kept.json.new"])
@pytest.mark.parametrize("what", ["pipe", "folder", "link"])
def test_something_else_in_the_state_folder(
    place: Place, manager: Manager, name: str, what: str
) -> None:
    """What was kept is not known then: files are opened by their paths."""
    path = place.folder / "run" / "state" / name
    path.unlink(missing_ok=True)
    other = place.folder / "other"
    other.write_text("{}")
    make: dict[str, Callable[[], None]] = {
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "link": lambda: path.symlink_to(other),
    }
    make[what]()
    start(place, manager)
    assert other.read_text() == "{}"
