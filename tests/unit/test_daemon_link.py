# SPDX-License-Identifier: Apache-2.0
"""The client's side of the protocol against a socket that answers as it is told."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sacctl.daemon import frames
from sacctl.daemon.link import Link
from sacctl.errors import BusyError, CtlError, DeniedError, NotFoundError

HEADER = struct.Struct("<4sHHIIQ")
Answer = Callable[[int, int, bytes, list[int]], bytes | None]


def reply(op: int, sequence: int, payload: bytes, status: int = 0, version: int = 1) -> bytes:
    return HEADER.pack(b"SAC1", version, op | 0x8000, len(payload), status, sequence) + payload


def refusal(code: int, named: str, message: str) -> bytes:
    n, m = named.encode(), message.encode()
    return struct.pack("<iIQHHI", code, 0, 0, len(n), len(m), 0) + n + m


def welcome(op: int, sequence: int) -> bytes:
    payload = struct.pack("<16sQII32s", bytes(range(16)), 1, os.getpid(), 0, b"9.9.9")
    return reply(op, sequence, payload)


class Listener:
    """Speaks with one client; answer() gets op, sequence, payload, fds; None: closes."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self.answer = answer
        self.hello = b""
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listening.bind(str(path))
        self.listening.listen(1)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        with suppress(OSError, struct.error):
            self.serve()

    def serve(self) -> None:
        peer, _ = self.listening.accept()
        with peer:
            while True:
                head, fds = self.read(peer, HEADER.size)
                if not head:
                    return
                magic, version, op, length, status, sequence = HEADER.unpack(head)
                assert (magic, version, status) == (b"SAC1", 1, 0)
                payload, more = self.read(peer, length)
                if op == frames.HELLO:
                    self.hello = payload
                said = (
                    welcome(op, sequence)
                    if op == frames.HELLO and self.answer is not refuse_hello
                    else self.answer(op, sequence, payload, fds + more)
                )
                if said is None:
                    return
                peer.sendall(said)

    @staticmethod
    def read(peer: socket.socket, count: int) -> tuple[bytes, list[int]]:
        data, fds = b"", array.array("i")
        while len(data) < count:
            part, extra, _, _ = peer.recvmsg(count - len(data), socket.CMSG_SPACE(4 * 70))
            for _, _, content in extra:
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
            if not part:
                return b"", list(fds)
            data += part
        return data, list(fds)


def refuse_hello(op: int, sequence: int, payload: bytes, fds: list[int]) -> bytes:
    return reply(op, sequence, refusal(0, "protocol", "version 1 here, 2 there"), 12, version=2)


Listen = Callable[[Answer], tuple[Path, Listener]]


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Listen]:
    made: list[Listener] = []

    def start(answer: Answer) -> tuple[Path, Listener]:
        path = tmp_path / f"s{len(made)}"
        made.append(Listener(path, answer))
        return path, made[-1]

    yield start
    for listener in made:
        listener.listening.close()


def says(*answers: dict[str, Any]) -> Answer:
    waiting = list(answers)

    def answer(op: int, sequence: int, payload: bytes, fds: list[int]) -> bytes:
        assert op == frames.ADMIN
        return reply(op, sequence, json.dumps(waiting.pop(0)).encode())

    return answer


def test_hello_and_one_call(listen: Listen) -> None:
    asked: list[Any] = []

    def answer(op: int, sequence: int, payload: bytes, fds: list[int]) -> bytes:
        asked.append((json.loads(payload), fds))
        return reply(op, sequence, b'{"result": {"pools": [1]}}')

    path, listener = listen(answer)
    with Link(path, name="tester") as link:
        assert link.version == "9.9.9"
        assert (link.peer.pid, link.peer.uid) == (os.getpid(), os.getuid())
        assert link.call("pool.list", pool=None, quota=3) == {"pools": [1]}
    assert asked == [({"op": "pool.list", "quota": 3}, [])]
    assert listener.hello[24:].rstrip(b"\0") == b"tester"
    assert len(listener.hello) == 88


def test_fds_travel_and_stay(listen: Listen) -> None:
    nodes: list[int] = []

    def answer(op: int, sequence: int, payload: bytes, fds: list[int]) -> bytes:
        nodes.extend(os.fstat(fd).st_ino for fd in fds)
        for fd in fds:
            os.close(fd)
        return reply(op, sequence, b'{"result": {}}')

    path, _ = listen(answer)
    mine = [os.memfd_create(name) for name in ("a", "b")]
    with Link(path) as link:
        link.call("pool.add", mine, record={})
    assert nodes == [os.fstat(fd).st_ino for fd in mine]
    for fd in mine:
        os.close(fd)


def test_long_answers_are_put_together(listen: Listen) -> None:
    path, _ = listen(
        says(
            {"result": {"pool": {"name": "kv"}, "namespaces": [1, 2]}, "next": "b"},
            {"result": {"pool": {"name": "kv"}, "namespaces": [3]}, "next": ""},
            {"result": {"namespaces": [4], "stats": {"namespaces": [5]}}},
        )
    )
    with Link(path) as link:
        result = link.call("pool.show", name="kv")
    assert result["namespaces"] == [1, 2, 3, 4]
    assert result["pool"] == {"name": "kv"}


def test_texts_are_put_together(listen: Listen) -> None:
    path, _ = listen(says({"result": {"text": "a\n"}, "next": 2}, {"result": {"text": "b\n"}}))
    with Link(path) as link:
        assert link.call("metrics") == {"text": "a\nb\n"}


def test_errors_keep_their_kind(listen: Listen) -> None:
    error = {"kind": "busy", "message": "in use", "object": "kv", "errno": 16, "hint": "wait"}
    path, _ = listen(says({"error": error}, {"result": {"fine": True}}))
    with Link(path) as link:
        with pytest.raises(BusyError, match="in use") as caught:
            link.call("pool.remove", name="kv")
        assert (caught.value.object, caught.value.errno) == ("kv", 16)
        assert link.call("status") == {"fine": True}  # the connection goes on


def test_no_daemon_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFoundError, match="no daemon listens") as caught:
        Link(tmp_path / "none")
    assert "sacctl daemon run" in caught.value.hint
    # A socket that nobody listens at any more is the same.
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(tmp_path / "dead"))
    dead.close()
    with pytest.raises(NotFoundError):
        Link(tmp_path / "dead")
    monkeypatch.setenv("SAC_SOCKET", str(tmp_path / "none"))
    with pytest.raises(NotFoundError, match=str(tmp_path / "none")):
        Link()


def test_the_environment_names_the_socket(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = listen(says({"result": {}}))
    monkeypatch.setenv("SAC_SOCKET", str(path))
    with Link() as link:
        assert link.path == path


def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    with pytest.raises(CtlError):
        Link(tmp_path / ("x" * 200))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may connect anywhere")
def test_a_socket_that_may_not_be_used(listen: Listen) -> None:
    path, _ = listen(says())
    path.chmod(0)
    with pytest.raises(DeniedError, match="cannot connect"):
        Link(path)


def test_another_version(listen: Listen) -> None:
    path, _ = listen(refuse_hello)
    with pytest.raises(CtlError, match="version 1 here, 2 there"):
        Link(path)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda op, seq, payload, fds: None, "closed the connection"),
        (lambda op, seq, payload, fds: b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak"),
        (lambda op, seq, payload, fds: reply(op, seq + 1, b"{}"), "another request"),
        (lambda op, seq, payload, fds: reply(op, seq, b"{"), "not a JSON object"),
        (lambda op, seq, payload, fds: reply(op, seq, b"[]"), "not a JSON object"),
        (lambda op, seq, payload, fds: reply(op, seq, b"{}"), "no result"),
        (lambda op, seq, payload, fds: reply(op, seq, b'{"error": 3}'), "3"),
        (lambda op, seq, *_: HEADER.pack(b"SAC1", 1, op, 0, 0, seq), "a request came"),
        (lambda *_: HEADER.pack(b"SAC1", 1, 0x8020, 1 << 30, 0, 2), "reply of"),
        (lambda op, seq, payload, fds: reply(op, seq, b"", 6), "no reason"),
        (lambda op, seq, payload, fds: reply(op, seq, refusal(2, "x", "gone"), 3), "gone"),
    ],
)  # fmt: skip
def test_hostile_answers(listen: Listen, answer: Answer, message: str) -> None:
    path, _ = listen(answer)
    with Link(path, timeout=5) as link, pytest.raises(CtlError, match=message):
        link.call("status")


def test_a_daemon_that_does_not_answer(listen: Listen) -> None:
    path, _ = listen(lambda op, seq, payload, fds: b"")
    with Link(path) as link:
        with pytest.raises(CtlError, match=r"within 0\.1 s") as caught:
            link.call("status", timeout=0.1)
        assert caught.value.errno == 110
        with pytest.raises(CtlError):
            link.call("status", timeout=0.1)  # a late answer is never taken for this one's


def test_an_answer_that_never_ends() -> None:
    """Time is kept for the whole answer, not for each of its bytes."""
    here, there = socket.socketpair()
    ended = threading.Event()

    def drip() -> None:
        with there, suppress(OSError):
            there.sendall(HEADER.pack(b"SAC1", 1, 0x8020, 1 << 20, 0, 1))
            while not ended.wait(0.02):
                there.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    begin = time.monotonic()
    with here, pytest.raises(TimeoutError):
        frames.receive(here, 0.3)
    assert time.monotonic() - begin < 5
    ended.set()
    thread.join()
