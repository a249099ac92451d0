# SPDX-License-Identifier: Apache-2.0
"""Speaks docs/protocol.md, from that page alone: nothing here uses the library.

A :class:`Speaker` does what it is told, right or wrong; attacks are made of it.
"""

from __future__ import annotations

import array
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MAGIC = b"SAC1"
VERSION = 1
HEADER = struct.Struct("<4sHHIIQ")
LONGEST = 16_777_216
(
    HELLO, POOLS, ATTACH, DETACH, RESERVE, RENEW, COMMIT, ABORT, EVENTS, STATS, EVICT, VERIFY,
    DEAD, POOL_INFO, NAMES, DROP,
) = (1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17)  # fmt: skip
ADMIN = 32
CREATE, READ_ONLY = 1, 2
KEEP = 1
ARG, RANGE, NOT_FOUND, EXISTS, LAYOUT, NO_SPACE, BUSY, STALE, RESERVATION = range(1, 10)
CORRUPT, BAD_VERSION, ACCESS = 11, 12, 19

RESERVATION_ITEM = struct.Struct("<IIQQ")
HELD_ITEM = struct.Struct("<IIQ")
COMMIT_ITEM = struct.Struct("<IIQ32s32sII")
COMMIT_RESULT = struct.Struct("<IIQ")
ATTACH_REPLY = struct.Struct("<IIIIQQQ16s")
EXTENT_INFO = struct.Struct("<Q112sII")
ERROR = struct.Struct("<iIQHHI")
PLANE = struct.Struct("<32s8Q7I20s")

PAGE = 4096
TABLE_HEADER = 8192


def header(
    op: int, length: int, sequence: int = 1, magic: bytes = MAGIC, version: int = VERSION
) -> bytes:
    return HEADER.pack(magic, version, op, length, 0, sequence)


def frame(op: int, payload: bytes = b"", sequence: int = 1) -> bytes:
    return header(op, len(payload), sequence) + payload


def text(value: str, size: int = 64) -> bytes:
    return value.encode().ljust(size, b"\0")


def hello(identity: bytes = bytes(16), name: str = "attacker") -> bytes:
    return struct.pack("<II", 0, 0) + identity + text(name)


def plane(name: str = "kv", row_bytes: int = 256) -> bytes:
    """A plane of kind ROWS for layer 0."""
    return PLANE.pack(text(name, 32), 1, *[0] * 7, 0, 0, 1, 1, row_bytes, 0, 0, text("", 20))


def attach(
    pool: str,
    name: str,
    flags: int = CREATE,
    *,
    mode: int = 0o600,
    have: int = 0,
    planes: int | None = None,
) -> bytes:
    """planes: the count that is announced; one plane follows where the flags say create."""
    follows = plane() if flags & CREATE else b""
    count = (1 if follows else 0) if planes is None else planes
    return (
        text(pool)
        + text(name)
        + struct.pack("<IIIIQ", flags, 0, 0, mode, 0)
        + text("", 128)
        + struct.pack("<IIII", 16 if follows else 0, count, have, 0)
        + follows
    )


def key(n: int) -> bytes:
    return struct.pack("<QQQQ", n + 1, n ^ 0x5555, n * 7919, 1)


@dataclass
class Answer:
    op: int
    status: int
    sequence: int
    payload: bytes
    fds: list[int] = field(default_factory=list)

    def message(self) -> str:
        """Of a reply that says an error."""
        _, _, _, objects, messages, _ = ERROR.unpack_from(self.payload)
        assert len(self.payload) == ERROR.size + objects + messages
        return self.payload[ERROR.size + objects :].decode()

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


@dataclass(frozen=True)
class Reservation:
    slot: int
    part: int
    generation: int
    token: int


class ClosedError(Exception):
    """The daemon closed the connection."""


class Speaker:
    """A connection. Answers are waited for at most 20 s."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)  # waits where the queue is full
        self.socket.settimeout(20)
        self._sequence = 0

    def __enter__(self) -> Speaker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Raises ClosedError where nobody takes it."""
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self.socket.sendmsg([data], control)
            if data[sent:]:
                self.socket.sendall(data[sent:])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ClosedError from error

    def answer(self) -> Answer:
        fds: list[int] = []
        magic, version, op, length, status, sequence = HEADER.unpack(
            self._receive(HEADER.size, fds)
        )
        assert (magic, version) == (MAGIC, VERSION)
        assert length <= LONGEST
        return Answer(op, status, sequence, self._receive(length, fds), fds)

    def ask(self, op: int, payload: bytes = b"", fds: Sequence[int] = ()) -> Answer:
        self._sequence += 1
        self.send(frame(op, payload, self._sequence), fds)
        answer = self.answer()
        assert (answer.op, answer.sequence) == (op + 0x8000, self._sequence)
        return answer

    def status(self, op: int, payload: bytes = b"") -> int:
        answer = self.ask(op, payload)
        answer.close()
        return answer.status

    def closed(self) -> bool:
        """Waits for the end, or a byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive(self, size: int, fds: list[int]) -> bytes:
        data = b""
        while len(data) < size:
            room = socket.CMSG_SPACE(128 * 4)
            try:
                some, control, _, _ = self.socket.recvmsg(
                    size - len(data), room, socket.MSG_CMSG_CLOEXEC
                )
            except ConnectionResetError as error:
                raise ClosedError from error
            for level, kind, what in control:
                assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
                numbers = array.array("i")
                numbers.frombytes(what[: len(what) // 4 * 4])
                fds.extend(numbers)
            if not some:
                raise ClosedError
            data += some
        return data

    # ---------------------------------------------------------------- the right way

    def hello(self, identity: bytes = bytes(16)) -> bytes:
        """The client's id."""
        answer = self.ask(HELLO, hello(identity))
        assert answer.status == 0, answer.message()
        return answer.payload[:16]

    def attach(self, pool: str = "p", name: str = "n", **more: Any) -> Table:
        answer = self.ask(ATTACH, attach(pool, name, **more))
        assert answer.status == 0, answer.message()
        return Table(self, answer)


class Table:
    """A namespace that was attached. Owns the fds that came with it."""

    def __init__(self, speaker: Speaker, answer: Answer) -> None:
        self.speaker = speaker
        (self.number, extents, self.access, first, self.index_bytes, self.capacity, _, _) = (
            ATTACH_REPLY.unpack_from(answer.payload)
        )
        at = ATTACH_REPLY.size
        self.extents = [
            EXTENT_INFO.unpack_from(answer.payload, at + i * EXTENT_INFO.size)[0]
            for i in range(extents)
        ]
        assert len(answer.payload) == at + extents * EXTENT_INFO.size + 32768
        assert len(answer.fds) == 2 + extents - first
        self.index_fd, self.table_fd, *self.data_fds = answer.fds
        size = os.fstat(self.table_fd).st_size
        self.memory = mmap.mmap(self.table_fd, size)
        _, capacity, ring = struct.unpack_from("<8sQQ", self.memory)
        assert capacity == self.capacity
        self.counts_at = TABLE_HEADER + -(-ring * 4 // PAGE) * PAGE
        self.tokens_at = self.counts_at + -(-self.capacity * 4 // PAGE) * PAGE

    def close(self) -> None:
        self.memory.close()
        for fd in (self.index_fd, self.table_fd, *self.data_fds):
            os.close(fd)

    def revoked(self) -> bool:
        return bool(struct.unpack_from("<I", self.memory, 64)[0])

    def count(self, slot: int) -> int:
        return int(struct.unpack_from("<I", self.memory, self.counts_at + 4 * slot)[0])

    def set_count(self, slot: int, value: int) -> None:
        struct.pack_into("<I", self.memory, self.counts_at + 4 * slot, value)

    def token(self, slot: int) -> int:
        return int(struct.unpack_from("<Q", self.memory, self.tokens_at + 8 * slot)[0])

    def number_request(self) -> bytes:
        return struct.pack("<II", self.number, 0)

    def reserve_request(self, bodies: int, tails: int = 0, deadline_ms: int = 0) -> bytes:
        return struct.pack("<IIQQQ", self.number, 0, bodies, tails, deadline_ms)

    def held_request(self, held: Sequence[Reservation], deadline_ms: int = 0) -> bytes:
        return struct.pack("<IIQ", self.number, len(held), deadline_ms) + b"".join(
            HELD_ITEM.pack(r.slot, 0, r.token) for r in held
        )

    def commit_request(
        self, held: Sequence[Reservation], keys: Sequence[bytes], flags: int = 0
    ) -> bytes:
        return struct.pack("<IIII", self.number, flags, len(held), 0) + b"".join(
            COMMIT_ITEM.pack(r.slot, r.part, r.token, k, bytes(32), 0, 0)
            for r, k in zip(held, keys, strict=True)
        )

    def reserve(self, bodies: int, deadline_ms: int = 0) -> list[Reservation]:
        answer = self.speaker.ask(RESERVE, self.reserve_request(bodies, 0, deadline_ms))
        assert answer.status == 0, answer.message()
        return [Reservation(*row) for row in RESERVATION_ITEM.iter_unpack(answer.payload)]

    def commit(self, held: Sequence[Reservation], keys: Sequence[bytes]) -> list[int]:
        """The slots. The pins of the reservations are taken back."""
        answer = self.speaker.ask(COMMIT, self.commit_request(held, keys))
        assert answer.status == 0, answer.message()
        for r in held:
            self.set_count(r.slot, self.count(r.slot) - 1)
        return [slot for slot, _, _ in COMMIT_RESULT.iter_unpack(answer.payload)]

    def pages(self) -> int:
        answer = self.speaker.ask(STATS, self.number_request())
        assert answer.status == 0, answer.message()
        return int(struct.unpack_from("<Q", answer.payload)[0])
