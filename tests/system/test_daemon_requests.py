# SPDX-License-Identifier: Apache-2.0
"""Administration of a real daemon: thousands of namespaces, hostile requests, other users."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from system.daemon_kit import LAYOUT, Place, open_files

from libsac import Layout
from sacctl.daemon import frames
from sacctl.errors import CtlError, NotFoundError


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, ["daemon.status_interval = 1"])
    yield made
    made.close()


# -------------------------------------------------------------------------------- namespaces


def test_namespaces_from_creation_to_the_end(place: Place) -> None:
    place.make_pool()
    place.start()
    with place.link() as link:
        made = link.call(
            "namespace.create", name="chat", layout=LAYOUT, quota="16M", mode="0640"
        )
        assert made["created"] is True
        space = made["namespace"]
        assert (space["uid"], space["mode"], space["quota_bytes"]) == (
            os.getuid(), "0640", 16 << 20,
        )  # fmt: skip
        again = link.call(
            "namespace.create", name="chat", layout=LAYOUT, quota="16M", mode="0640"
        )
        assert again["created"] is False
        with pytest.raises(CtlError, match="quota"):
            link.call("namespace.create", name="chat", layout=LAYOUT, mode="0640")
        other = Layout.preset("deepseek-v3.2-fp8", layers=2).to_dict()
        with pytest.raises(CtlError, match="chat"):
            link.call("namespace.create", name="chat", layout=other, quota="16M", mode="0640")
        shown = link.call("namespace.show", name="chat")
        assert Layout.from_dict(shown["namespace"]["layout"]) == Layout.from_dict(LAYOUT)
        resized = link.call("namespace.resize", name="chat", quota="32M")
        assert resized["namespace"]["quota_bytes"] == 32 << 20
        flushed = link.call("namespace.flush", name="chat")
        assert (flushed["evicted"], flushed["holders"]) == (0, [])
        assert link.call("namespace.verify", name="chat")["dropped"] == 0
        link.call("namespace.destroy", name="chat")
        with pytest.raises(NotFoundError):
            link.call("namespace.show", name="chat")


def test_thousands_of_namespaces(place: Place) -> None:
    """Creation, lists, stats and a restart after a kill stay quick."""
    count = 4500
    place.make_pool(size="64M")
    place.start()
    layout = Layout.from_dict(LAYOUT).to_dict()
    with place.link() as link:
        started = time.monotonic()
        for number in range(count):
            link.call("namespace.create", name=f"n{number:05d}", layout=layout)
        creating = time.monotonic() - started
        started = time.monotonic()
        listed = link.call("namespace.list")["namespaces"]
        listing = time.monotonic() - started
        assert [n["name"] for n in listed] == [f"n{i:05d}" for i in range(count)]
        started = time.monotonic()
        stats = link.call("stats")["stats"]
        counting = time.monotonic() - started
        assert len(stats["namespaces"]) == count
        started = time.monotonic()
        status = link.call("status")
        asking = time.monotonic() - started
        assert status["daemon"]["namespaces"] == count
    place.stop(signal.SIGKILL)
    started = time.monotonic()
    place.start()
    starting = time.monotonic() - started
    assert place.ask("status")["daemon"]["namespaces"] == count
    print(
        f"{count} namespaces: create {creating / count * 1e3:.2f} ms each, "
        f"list {listing:.2f} s, stats {counting:.2f} s, status {asking * 1e3:.1f} ms, "
        f"start {starting:.2f} s"
    )
    assert creating / count < 0.05
    assert max(listing, counting) < 10
    assert asking < 1
    assert starting < 20


# ----------------------------------------------------------------------------------- hostile


def test_hostile_requests(place: Place) -> None:
    place.make_pool()
    process = place.start()
    before = open_files(process.pid)
    bodies = [
        b"", b"{", b"[]", b"\xff", b'{"op": 1}', b'{"op": "nope"}', b"[" * 100_000,
        b'{"op": "namespace.create", "name": "x", "layout": {"planes": 1}}',
        b'{"op": "namespace.show", "name": "\\ud800"}',
        b'{"op": "pool.add", "record": {"name": "../../etc"}}',
        b'{"op": "client.evict", "id": "' + b"0" * 32 + b'"}',
    ]  # fmt: skip
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    for _ in range(5):
        for body in bodies:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
                raw.settimeout(10)
                raw.connect(str(place.socket))
                frames.send(raw, frames.HELLO, 1, frames.hello("hostile"))
                assert frames.receive(raw).status == 0
                frames.send(raw, frames.ADMIN, 2, body, files)
                reply = frames.receive(raw)
                assert reply.status == 0
                assert json.loads(reply.payload)["error"]["message"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        # Asks and does not wait for the answer.
        raw.connect(str(place.socket))
        frames.send(raw, frames.HELLO, 1, frames.hello("rude"))
        frames.send(raw, frames.ADMIN, 2, b'{"op": "stats"}', files)
    for fd in files:
        os.close(fd)
    assert place.ask("status")["daemon"]["state"] == "serving"
    end = time.monotonic() + 5
    while open_files(process.pid) > before + 2 and time.monotonic() < end:
        time.sleep(0.05)
    assert open_files(process.pid) <= before + 2
    assert "Traceback" not in place.log.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_another_user_may_look_and_not_touch(place: Place) -> None:
    place.folder.chmod(0o755)
    for folder in list(place.folder.parents)[:3]:
        if folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    place.make_pool()
    place.write(["daemon.socket_mode = '0666'"])
    place.start()
    place.ask("namespace.create", name="chat", layout=LAYOUT)
    outcome = as_user(
        12345,
        place,
        [
            ("status", {}), ("namespace.list", {}), ("reload", {}),
            ("pool.remove", {"name": "kv"}), ("namespace.destroy", {"name": "chat"}),
            ("namespace.flush", {"name": "chat"}),
            ("namespace.create", {"name": "mine", "layout": LAYOUT}),
            ("namespace.destroy", {"name": "mine"}),
        ],
    )  # fmt: skip
    assert outcome == [
        "ok", "ok", "permission", "permission", "permission", "permission", "ok", "ok",
    ]  # fmt: skip


def as_user(uid: int, place: Place, requests: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """What each request comes to for another user: "ok" or the kind of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said: list[str] = []
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with place.link() as link:
                for op, args in requests:
                    try:
                        link.call(op, **args)
                        said.append("ok")
                    except CtlError as error:
                        said.append(error.kind)
        except BaseException as error:
            said.append(repr(error))
        finally:
            os.write(writing, json.dumps(said).encode())
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        outcome: list[str] = json.load(file)
    return outcome
