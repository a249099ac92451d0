# SPDX-License-Identifier: Apache-2.0
"""Frames of docs/protocol.md as far as an administrator's client needs them."""

from __future__ import annotations

import array
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "ADMIN",
    "HELLO",
    "MAX_PAYLOAD",
    "OP_NAMES",
    "VERSION",
    "Frame",
    "FrameError",
    "Refusal",
    "hello",
    "parse_refusal",
    "receive",
    "send",
]

MAGIC = b"SAC1"
VERSION = 1
REPLY = 0x8000
MAX_PAYLOAD = 16 << 20
HELLO, ADMIN = 1, 32
NAME_BYTES = 64

OP_NAMES = {
    1: "HELLO", 2: "POOLS", 4: "ATTACH", 5: "DETACH", 6: "RESERVE", 7: "RENEW", 8: "COMMIT",
    9: "ABORT", 10: "EVENTS", 11: "STATS", 12: "EVICT", 13: "VERIFY", 14: "DEAD",
    15: "POOL_INFO", 16: "NAMES", 17: "DROP", 32: "ADMIN",
}  # fmt: skip

_HEADER = struct.Struct("<4sHHIIQ")
_REFUSAL = struct.Struct("<iIQHHI")


class FrameError(Exception):
    """Bytes that are no frame, or the end of the stream within one."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A reply. op without the reply bit."""

    op: int
    status: int
    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a reply says whose status is not 0."""

    errno: int
    object: str
    message: str


def hello(name: str) -> bytes:
    """The payload of a HELLO of a new client that calls itself so; cut to 63 bytes."""
    return struct.pack("<II16s64s", 0, 0, bytes(16), name.encode()[: NAME_BYTES - 1])


def send(
    to: socket.socket, op: int, sequence: int, payload: bytes, fds: Sequence[int] = ()
) -> None:
    """Sends one request; the fds go with its first byte. Raises OSError, ValueError."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a payload of {len(payload)} bytes; {MAX_PAYLOAD} are allowed")
    frame = _HEADER.pack(MAGIC, VERSION, op, len(payload), 0, sequence) + payload
    sent = 0
    if fds:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        sent = to.sendmsg([frame], [rights])
    to.sendall(memoryview(frame)[sent:])


def receive(source: socket.socket, timeout: float = 30.0) -> Frame:
    """The next reply, all of it within so many seconds.

    Raises FrameError, OSError (TimeoutError among them).
    """
    until = time.monotonic() + timeout
    magic, version, op, length, status, sequence = _HEADER.unpack(
        _exactly(source, _HEADER.size, until)
    )
    if magic != MAGIC:
        raise FrameError("what listens there does not speak this protocol")
    if length > MAX_PAYLOAD:
        raise FrameError(f"a reply of {length} bytes; {MAX_PAYLOAD} are allowed")
    payload = _exactly(source, length, until)
    # A reply of another version is an error that says so: its payload is read as usual.
    if version != VERSION and status == 0:
        raise FrameError(f"the daemon speaks version {version}, this program {VERSION}")
    if not op & REPLY:
        raise FrameError("a request came where a reply was due")
    return Frame(op & ~REPLY, status, sequence, payload)


def parse_refusal(payload: bytes) -> Refusal:
    """The payload of a failed reply; what is missing of it is left empty."""
    if len(payload) < _REFUSAL.size:
        return Refusal(0, "", "the daemon gave no reason")
    code, _, _, object_bytes, message_bytes, _ = _REFUSAL.unpack_from(payload)
    text = payload[_REFUSAL.size :]
    named, message = text[:object_bytes], text[object_bytes : object_bytes + message_bytes]
    return Refusal(code, named.decode(errors="replace"), message.decode(errors="replace"))


def _exactly(source: socket.socket, count: int, until: float) -> bytes:
    out = bytearray(count)
    view, have = memoryview(out), 0
    while have < count:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        source.settimeout(left)
        got = source.recv_into(view[have:])
        if got == 0:
            raise FrameError("the daemon closed the connection")
        have += got
    return bytes(out)
