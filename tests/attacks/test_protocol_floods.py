# SPDX-License-Identifier: Apache-2.0
"""Clients that are too many, too slow, or deaf."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks import wire
from attacks.honest import Scene, scene, soon


@pytest.fixture
def attacked() -> Iterator[Scene]:
    with scene() as one:
        yield one


def test_a_flood_of_connections(attacked: Scene) -> None:
    """Of one user only so many may be silent; who speaks gets in all the same."""
    silent: list[wire.Speaker] = []
    for _ in range(120):
        silent.append(wire.Speaker(attacked.socket))
    attacked.check()
    refused = 0
    for _ in range(100):
        one = wire.Speaker(attacked.socket)
        one.socket.settimeout(0.05)
        try:
            if one.closed():
                refused += 1
        except TimeoutError:
            silent.append(one)
        else:
            one.close()
    assert refused >= 80
    for one in silent:
        one.close()
    assert soon(lambda: attacked.daemon.clients().clients == 1)


def test_connections_that_come_and_go(attacked: Scene) -> None:
    before = attacked.fds()
    for i in range(1500):
        with wire.Speaker(attacked.socket) as one:
            if i % 3 == 0:
                one.send(wire.frame(wire.HELLO, wire.hello()))
            elif i % 3 == 1:
                one.send(wire.header(wire.HELLO, 88)[: i % 24])
    attacked.check()
    assert soon(lambda: attacked.fds() <= before)
    # A connection of before may have been accepted since.
    assert soon(lambda: attacked.daemon.clients().clients == 1)


def test_one_process_does_not_take_all_places(attacked: Scene) -> None:
    many = []
    for _ in range(1024):
        one = wire.Speaker(attacked.socket)
        many.append(one)
        if one.status(wire.HELLO, wire.hello()) != 0:
            break
    assert len(many) < 1000
    pid = os.fork()  # another process is still let in
    if pid == 0:
        status = 1
        try:
            with wire.Speaker(attacked.socket) as other:
                other.hello()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    for one in many:
        one.close()
    assert soon(lambda: attacked.daemon.clients().clients == 1)


def test_a_client_that_never_reads(attacked: Scene) -> None:
    with wire.Speaker(attacked.socket) as deaf:
        deaf.hello()
        table = deaf.attach("p", "deaf")
        deaf.ask(wire.EVENTS, struct.pack("<IIQ", table.number, 1, 2**64 - 1))
        request = wire.frame(wire.ATTACH, wire.attach("p", "deaf", 0))
        deaf.socket.setblocking(False)
        sent = 0
        try:
            for _ in range(3000):
                sent += deaf.socket.send(request)
        except BlockingIOError:
            pass
        assert sent < 3000 * len(request)
        attacked.check()
        assert attacked.fds() < 2000
        table.close()
    attacked.check()


def test_many_large_frames_begun(attacked: Scene) -> None:
    """Memory is used for what has come, not for what was announced."""

    def resident() -> int:
        statm = Path(f"/proc/{attacked.daemon.pid}/statm").read_text()
        return int(statm.split()[1]) * 4096

    before = resident()
    many = []
    for _ in range(40):
        one = wire.Speaker(attacked.socket)
        one.hello()
        one.send(wire.header(wire.COMMIT, wire.LONGEST) + bytes(1000))
        many.append(one)
    attacked.check()
    assert resident() - before < 40 << 20
    for one in many:
        one.close()


def test_stopped_clients_do_not_stop_the_daemon(attacked: Scene) -> None:
    pid = os.fork()
    if pid == 0:
        one = wire.Speaker(attacked.socket)
        one.hello()
        one.attach("p", "honest").reserve(1)
        while True:
            signal.pause()
    assert soon(lambda: attacked.daemon.clients().clients == 2)
    os.kill(pid, signal.SIGSTOP)
    for _ in range(20):
        attacked.check()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert soon(lambda: attacked.daemon.clients().clients == 1)


def test_a_slow_sender_is_given_up(attacked: Scene) -> None:
    slow = wire.Speaker(attacked.socket)
    slow.hello()
    silent = wire.Speaker(attacked.socket)
    waits = wire.Speaker(attacked.socket)  # between frames a client may take its time
    waits.hello()
    begin = time.monotonic()
    closed: dict[str, float] = {}
    data = wire.frame(wire.POOLS, bytes(1000))
    for at in range(200):
        for name, one in (("slow", slow), ("silent", silent)):
            if name in closed:
                continue
            try:
                if name == "slow":
                    one.send(data[at : at + 1])
                one.socket.settimeout(0.1)
                if one.closed():
                    closed[name] = time.monotonic() - begin
            except TimeoutError:
                pass
            except wire.ClosedError:
                closed[name] = time.monotonic() - begin
        if len(closed) == 2:
            break
        if at % 40 == 0:
            attacked.check()
    assert set(closed) == {"slow", "silent"}
    assert all(28 < seconds < 40 for seconds in closed.values()), closed
    assert waits.status(wire.POOLS) == 0
    waits.close()


def test_a_long_operation_does_not_keep_others(attacked: Scene) -> None:
    with wire.Speaker(attacked.socket) as busy:
        busy.hello()
        table = busy.attach("p", "honest")
        for _ in range(30):
            busy.send(wire.frame(wire.VERIFY, table.number_request()))
            attacked.check()
            assert busy.answer().status == 0
        table.close()
