# SPDX-License-Identifier: Apache-2.0
"""Clients of a real daemon, as its administrator sees them, also when it is killed."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from system.daemon_kit import LAYOUT, Place

import libsac
from sacctl.daemon import frames
from sacctl.errors import NotFoundError, RefusedError, UsageError


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, ["daemon.status_interval = 1"])
    yield made
    made.close()


# ---------------------------------------------------------------------------------- clients

HOLDER = """
import sys, libsac
pool = libsac.connect(socket=sys.argv[1], name="holder")
ns = pool.namespace("chat")
keys = ns.keys(range(128))
with ns.put(keys) as put:
    for plane in ns.layout.planes:
        for layer in plane.layers:
            for page in range(2):
                put.view(plane.name, layer, page)[:] = 7
prefix = ns.pin(keys)
print(prefix.pages if hasattr(prefix, "pages") else len(prefix), flush=True)
sys.stdin.readline()
rows = prefix.gather(ns.layout.planes[0].name, 0, range(4))
print("read" if (rows == 7).all() else "wrong", flush=True)
sys.stdin.readline()
prefix.close()
"""


def test_a_client_is_seen_held_and_let_go(place: Place) -> None:
    place.make_pool()
    place.start()
    place.ask("namespace.create", name="chat", layout=LAYOUT)
    with subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDER, str(place.socket)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "2\n"
        found = [c for c in place.ask("client.list")["clients"] if c["name"] == "holder"]
        assert (found[0]["pid"], found[0]["pinned"]) == (holder.pid, 2)
        held = place.ask("namespace.flush", name="chat")
        assert (held["evicted"], held["pinned"]) == (0, 2)
        assert held["holders"][0]["pid"] == holder.pid
        with pytest.raises(RefusedError, match="kv"):
            place.ask("pool.remove", name="kv")
        stats = place.ask("stats")["stats"]
        assert stats["namespaces"][0]["pages"] == 2
        # A killed daemon comes back and takes over what the client has.
        place.stop(signal.SIGKILL)
        place.start()
        assert place.ask("namespace.flush", name="chat")["pinned"] == 2
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "read\n"
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.wait(30) == 0
    end = time.monotonic() + 10
    while place.ask("namespace.show", name="chat")["clients"] and time.monotonic() < end:
        time.sleep(0.05)
    flushed = place.ask("namespace.flush", name="chat")
    assert (flushed["evicted"], flushed["pages"]) == (2, 0)


def test_frames_and_errors_of_the_link(place: Place) -> None:
    place.start()
    with place.link() as link:
        with pytest.raises(UsageError, match="unknown operation"):
            link.call("no.such")
        with pytest.raises(NotFoundError):
            link.call("pool.show", name="none")
        assert link.version
        assert place.process is not None
        assert link.peer.pid == place.process.pid
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.settimeout(10)
        raw.connect(str(place.socket))
        raw.sendall(struct.pack("<4sHHIIQ", b"SAC1", 99, 1, 0, 0, 1))
        reply = frames.receive(raw)
        assert reply.status != 0
        assert "99" in frames.parse_refusal(reply.payload).message


# ----------------------------------------------------------------------------- many clients


def holder(place: Place, number: int, spaces: int, ready: int, go: int, end: int) -> None:
    """A child: attaches, puts a page of its own in each namespace, holds it; reads it again
    when it is told to."""
    code = 1
    try:
        pool = libsac.connect(socket=str(place.socket), name=f"engine{number}")
        prefixes = []
        for index in range(spaces):
            ns = pool.namespace(f"n{index}")
            keys = ns.keys(range(number * 64, number * 64 + 64))
            plane = ns.layout.planes
            with ns.put(keys) as put:
                for each in plane:
                    for layer in each.layers:
                        put.view(each.name, layer, 0)[:] = number
            prefixes.append((ns, ns.pin(keys)))
        os.write(ready, b".")
        os.read(go, 1)
        for ns, prefix in prefixes:
            rows = prefix.gather(ns.layout.planes[0].name, 0, range(64))
            assert (rows == number).all()
        os.write(ready, b"+")
        os.read(end, 1)
        code = 0
    except BaseException as error:
        os.write(2, f"client {number}: {error!r}\n".encode())
        os.write(ready, b"!")
    finally:
        os._exit(code)


def test_many_clients_and_a_daemon_that_is_killed(place: Place) -> None:
    clients, spaces = 64, 6
    place.make_pool(size="512M")
    place.start()
    with place.link() as link:
        for index in range(spaces):
            link.call("namespace.create", name=f"n{index}", layout=LAYOUT)
    reading, ready = os.pipe()
    go, telling = os.pipe()
    end, ending = os.pipe()
    children = []
    try:
        for number in range(1, clients + 1):
            child = os.fork()
            if child == 0:
                holder(place, number, spaces, ready, go, end)
            children.append(child)
        assert b"".join(os.read(reading, 1) for _ in range(clients)) == b"." * clients
        started = time.monotonic()
        with place.link() as link:
            listed = link.call("client.list")["clients"]
            engines = [c for c in listed if c["name"].startswith("engine")]
            assert len(engines) == clients
            assert {(len(c["tables"]), c["pinned"]) for c in engines} == {(spaces, spaces)}
            stats = link.call("stats")["stats"]
            assert [n["clients"] for n in stats["namespaces"]] == [clients] * spaces
            assert all(n["pinned"] == clients for n in stats["namespaces"])
            assert link.call("health")["status"] == "ok"
            assert time.monotonic() - started < 10
        for child in children[:32]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        del children[:32]
        place.stop(signal.SIGKILL)
        place.start()
        with place.link() as link:
            engines = [
                c for c in link.call("client.list")["clients"] if c["name"].startswith("engine")
            ]
            assert sorted(c["pid"] for c in engines) == sorted(children)
            assert {c["pinned"] for c in engines} == {spaces}
            flushed = link.call("namespace.flush", name="n0")
            assert (flushed["evicted"], flushed["pages"]) == (32, 32)
            os.write(telling, b"." * 32)
            assert b"".join(os.read(reading, 1) for _ in range(32)) == b"+" * 32
            os.write(ending, b"." * 32)
            codes = [os.waitpid(child, 0)[1] for child in children]
            children.clear()
            assert codes == [0] * 32
            limit = time.monotonic() + 10
            while link.call("namespace.show", name="n0")["clients"]:
                assert time.monotonic() < limit
                time.sleep(0.05)
            assert link.call("namespace.flush", name="n0")["pages"] == 0
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for fd in (reading, ready, go, telling, end, ending):
            os.close(fd)
