# SPDX-License-Identifier: Apache-2.0
"""Frames that no client sends: the daemon answers or closes, and serves the others."""

from __future__ import annotations

import contextlib
import socket
import struct
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest
from attacks import wire
from attacks.honest import Scene, scene, soon


@pytest.fixture(scope="module")
def attacked() -> Iterator[Scene]:
    with scene() as one:
        yield one


@pytest.fixture
def speaker(attacked: Scene) -> Iterator[wire.Speaker]:
    with wire.Speaker(attacked.socket) as one:
        one.hello()
        yield one
    attacked.check()


def test_wrong_magic_closes(speaker: wire.Speaker) -> None:
    speaker.send(wire.header(wire.POOLS, 0, magic=b"HTTP"))
    assert speaker.closed()


def test_too_long_a_length_closes(speaker: wire.Speaker) -> None:
    speaker.send(wire.header(wire.COMMIT, wire.LONGEST + 1))
    assert speaker.closed()


@pytest.mark.parametrize("version", [0, 2, 65535])
def test_another_version_is_answered(speaker: wire.Speaker, version: int) -> None:
    speaker.send(wire.header(wire.POOLS, 4, 77, version=version))
    answer = speaker.answer()
    assert (answer.status, answer.sequence) == (wire.BAD_VERSION, 77)
    assert str(version) in answer.message()
    assert "1" in answer.message()
    assert speaker.closed()


@pytest.mark.parametrize("op", [0, 3, 18, 31, 33, 64, 0x8001, 0xFFFF])
def test_unknown_operations_are_answered(speaker: wire.Speaker, op: int) -> None:
    speaker.send(wire.frame(op, b"what", 5))
    answer = speaker.answer()
    assert (answer.status, answer.op) == (wire.ARG, op | 0x8000)
    assert speaker.status(wire.POOLS) == 0


def test_requests_before_hello(attacked: Scene) -> None:
    for op in (wire.POOLS, wire.ATTACH, wire.ADMIN, 99):
        with wire.Speaker(attacked.socket) as new:
            assert new.status(op) == wire.ARG
            assert new.closed()
    with wire.Speaker(attacked.socket) as new:
        new.send(wire.header(wire.HELLO, 5000))
        assert new.closed()
    attacked.check()


def test_every_length_of_every_operation(speaker: wire.Speaker) -> None:
    for op in range(1, 18):
        for size in (*range(40), 63, 64, 65, 128, 129, 296, 440, 441):
            answer = speaker.ask(op, bytes(size))
            answer.close()
            assert answer.status != 0 or op in (wire.POOLS, wire.DETACH), (op, size)


def test_counts_larger_than_the_frame(speaker: wire.Speaker) -> None:
    table = speaker.attach()
    number = table.number
    huge = 0xFFFFFFFF
    for op, payload in [
        (wire.COMMIT, struct.pack("<IIII", number, 0, huge, 0)),
        (wire.COMMIT, struct.pack("<IIII", number, 0, huge, 16)),
        (wire.COMMIT, struct.pack("<IIII", number, 0, 1, huge) + bytes(88)),
        (wire.COMMIT, struct.pack("<IIII", number, 0, 0x02E8BA2F, 0) + bytes(88)),
        (wire.RENEW, struct.pack("<IIQ", number, huge, 0)),
        (wire.ABORT, struct.pack("<IIQ", number, 0x10000000, 0) + bytes(16)),
        (wire.DEAD, struct.pack("<II", number, huge) + bytes(8)),
        (wire.RESERVE, table.reserve_request(524_289)),
        (wire.RESERVE, table.reserve_request(2**64 - 1, 1)),
        (wire.RESERVE, table.reserve_request(2**63, 2**63)),
        (wire.ATTACH, wire.attach("p", "n", planes=huge)),
        (wire.ATTACH, wire.attach("p", "n", planes=65)),
        (wire.ATTACH, wire.attach("p", "n", planes=2)),
        (wire.ATTACH, wire.attach("p", "n", have=1000)),
    ]:
        assert speaker.status(op, payload) in (wire.ARG, wire.LAYOUT), (op, payload[:32])
    answer = speaker.ask(wire.EVENTS, struct.pack("<IIQ", number, huge, 0))
    assert answer.status == 0
    answer = speaker.ask(wire.EVICT, struct.pack("<IIQ", number, 0, 2**64 - 1))
    assert answer.status == 0
    for op, payload in [
        (wire.DEAD, struct.pack("<IIQ", number, 1, 2**64 - 1)),
        (wire.DEAD, struct.pack("<IIQ", number, 1, 1 << 40)),
    ]:
        assert speaker.status(op, payload) == wire.RANGE
    table.close()


def test_names_without_an_end(speaker: wire.Speaker) -> None:
    full = b"x" * 64
    layout = wire.attach("p", "n")
    assert speaker.status(wire.POOL_INFO, full) == wire.ARG
    assert speaker.status(wire.NAMES, full) == wire.ARG
    assert speaker.status(wire.DROP, full + full) == wire.ARG
    assert speaker.status(wire.ATTACH, full + layout[64:]) == wire.ARG
    assert speaker.status(wire.ATTACH, layout[:64] + full + layout[128:]) == wire.ARG
    model = layout[:152] + b"m" * 128 + layout[280:]
    assert speaker.status(wire.ATTACH, model) == wire.ARG
    bad = layout[:-144] + b"n" * 32 + layout[-112:]
    assert speaker.status(wire.ATTACH, bad) in (wire.ARG, wire.LAYOUT)
    for name in ("", "../../etc", "a/b", "\n"):
        answer = speaker.ask(wire.ATTACH, wire.attach("p", name, wire.READ_ONLY))
        assert answer.status in (wire.ARG, wire.NOT_FOUND)


def test_reservations_of_others(attacked: Scene, speaker: wire.Speaker) -> None:
    honest = attacked.table.reserve(2)
    table = speaker.attach("p", "honest")
    guessed = [wire.Reservation(r.slot, r.part, r.generation, r.token ^ 1) for r in honest]
    assert speaker.status(wire.ABORT, table.held_request(guessed)) == 0  # ends nothing
    # Even with the right token, which it cannot know, a page does not become visible here.
    request = table.commit_request(honest, [wire.key(1000), wire.key(1001)])
    assert speaker.status(wire.COMMIT, request) == wire.RESERVATION
    attacked.commit(honest)
    # Of a table that is not its own.
    stolen = struct.pack("<IIQQQ", attacked.table.number, 0, 1, 0, 0)
    assert speaker.status(wire.RESERVE, stolen) == wire.NOT_FOUND
    assert speaker.status(wire.DETACH, attacked.table.number_request()) == wire.NOT_FOUND
    table.close()


def test_commits_that_make_no_sense(speaker: wire.Speaker) -> None:
    table = speaker.attach()
    held = table.reserve(2)
    other = wire.Reservation(0xFFFFFFF0, 0, 0, held[0].token)
    cases = [
        ([other], [wire.key(1)]),
        ([wire.Reservation(held[0].slot, 7, 0, held[0].token)], [wire.key(1)]),
        ([wire.Reservation(held[0].slot, 1, 0, held[0].token)], [wire.key(1)]),
        ([wire.Reservation(held[0].slot, 0, 0, held[1].token)], [wire.key(1)]),
        ([held[0]], [bytes(32)]),
    ]
    for items, keys in cases:
        status = speaker.status(wire.COMMIT, table.commit_request(items, keys))
        assert status in (wire.ARG, wire.RESERVATION)
    assert table.pages() == 0
    # The same page and the same slot twice in one request.
    assert (
        speaker.status(
            wire.COMMIT, table.commit_request([held[0], held[0]], [wire.key(1), wire.key(1)])
        )
        == 0
    )
    assert speaker.status(
        wire.COMMIT, table.commit_request([held[1], held[1]], [wire.key(2), wire.key(3)])
    ) in (0, wire.RESERVATION)
    assert table.pages() in (1, 2)
    assert speaker.status(wire.DETACH, table.number_request()) == 0
    table.close()


def test_unexpected_fds_are_closed(attacked: Scene, speaker: wire.Speaker) -> None:
    before = attacked.fds()
    with tempfile.TemporaryFile() as file:
        for _ in range(50):
            speaker.ask(wire.POOLS, b"", [file.fileno()] * 20).close()
            speaker.ask(99, b"", [file.fileno()]).close()
        assert attacked.fds() <= before
        # More than any operation takes.
        speaker.send(wire.frame(wire.POOLS), [file.fileno()] * 100)
        assert speaker.closed()
        # With half a frame.
        with wire.Speaker(attacked.socket) as other:
            other.send(wire.frame(wire.HELLO, wire.hello())[:10], [file.fileno()] * 5)
    assert soon(lambda: attacked.fds() <= before)


def test_the_daemons_own_socket_as_an_fd(attacked: Scene, speaker: wire.Speaker) -> None:
    """A cycle of sockets that hold each other: nothing of it stays with the daemon."""
    before = attacked.fds()
    for _ in range(20):
        a, b = socket.socketpair()
        a.sendmsg(
            [b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", b.fileno()))]
        )
        speaker.ask(wire.POOLS, b"", [a.fileno(), b.fileno(), speaker.socket.fileno()])
        a.close()
        b.close()
    assert soon(lambda: attacked.fds() <= before)


def test_byte_by_byte(speaker: wire.Speaker) -> None:
    for byte in wire.frame(wire.POOLS, b"", 9):
        speaker.send(bytes([byte]))
    assert speaker.answer().status == 0


def test_several_frames_at_once(speaker: wire.Speaker) -> None:
    """No client may; each gets its answer, in order."""
    speaker.send(b"".join(wire.frame(wire.POOLS, b"", i) for i in range(100)))
    assert [speaker.answer().sequence for _ in range(100)] == list(range(100))


def test_random_bytes(attacked: Scene, rng: np.random.Generator) -> None:
    for _ in range(200):
        with wire.Speaker(attacked.socket) as one:
            if rng.random() < 0.7:
                one.hello()
            data = bytearray(
                wire.frame(int(rng.integers(0, 40)), rng.bytes(int(rng.integers(200))))
            )
            for _ in range(int(rng.integers(0, 4))):
                data[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
            with contextlib.suppress(wire.ClosedError):
                one.send(bytes(data))
    attacked.check()


def test_random_requests_of_an_attached_client(
    attacked: Scene, speaker: wire.Speaker, rng: np.random.Generator
) -> None:
    table = speaker.attach("p", "random")
    ops = [op for op in range(4, 18) if op != wire.DROP]
    for _ in range(1500):
        words = rng.integers(0, 2**32, int(rng.integers(1, 60)), dtype=np.uint32)
        small = rng.random(words.size) < 0.6
        words[small] %= 5
        words[0] = table.number
        speaker.ask(int(rng.choice(ops)), words.tobytes()).close()
    table.close()
