# SPDX-License-Identifier: Apache-2.0
"""Who started the daemon by connecting knows whose daemon it is."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path

import pytest

from sacctl.daemon import frames, link
from sacctl.daemon.link import Link, Peer

_HEADER = struct.Struct("<4sHHIIQ")


def serve(listening: socket.socket, greeted: list[int]) -> None:
    """Greets every client, each in its turn."""
    while True:
        try:
            peer, _ = listening.accept()
        except OSError:
            return
        with peer:
            _, _, op, length, _, sequence = _HEADER.unpack(peer.recv(_HEADER.size))
            while length:
                length -= len(peer.recv(length))
            assert op == frames.HELLO
            body = struct.pack("<16sQII32s", bytes(16), 1, os.getpid(), 0, b"1.2.3")
            head = _HEADER.pack(b"SAC1", 1, op | 0x8000, len(body), 0, sequence)
            peer.sendall(head + body)
            greeted.append(sequence)
            peer.recv(1)  # until the client goes


@pytest.fixture
def daemon(tmp_path: Path) -> tuple[Path, list[int], socket.socket]:
    path, greeted = tmp_path / "sacd.sock", list[int]()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    listening.listen(4)
    threading.Thread(target=serve, args=(listening, greeted), daemon=True).start()
    return path, greeted, listening


def test_the_service_manager_listened(
    daemon: tuple[Path, list[int], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first connection names pid 1, root: files of a new pool would become root's."""
    path, greeted, listening = daemon
    met = [Peer(1, 0, 0), Peer(77, 990, 990)]
    monkeypatch.setattr(link, "_peer", lambda connected: met.pop(0))
    with listening, Link(path) as made:
        assert made.peer == Peer(77, 990, 990)
        assert made.version == "1.2.3"
    assert met == []
    assert len(greeted) == 2


def test_one_connection_where_the_daemon_listened(
    daemon: tuple[Path, list[int], socket.socket],
) -> None:
    path, greeted, listening = daemon
    with listening, Link(path) as made:
        assert made.peer == Peer(os.getpid(), os.geteuid(), os.getegid())
    assert len(greeted) == 1


def test_a_daemon_that_is_pid_1_itself(
    daemon: tuple[Path, list[int], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container: no endless rounds."""
    path, greeted, listening = daemon
    monkeypatch.setattr(link, "_peer", lambda connected: Peer(1, 0, 0))
    with listening, Link(path) as made:
        assert made.peer.pid == 1
    assert len(greeted) == 2
