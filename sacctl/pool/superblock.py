# SPDX-License-Identifier: Apache-2.0
"""Reads a pool's superblock (docs/format.md), to know a pool without opening it."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

__all__ = ["Superblock", "read", "read_file"]

BYTES = 4096
MAGIC = b"SACPOOL\0"
MAJOR = 1
ENTRIES, ENTRY_BYTES = 256, 48


@dataclass(frozen=True, slots=True)
class Superblock:
    """uuid: lower-case hex. extents: bytes of each data extent."""

    uuid: str
    extents: tuple[int, ...]
    incarnation: int
    clean: bool


def read(fd: int) -> Superblock | None:
    """Of a metadata extent; None where there is no valid one. Raises OSError."""
    best, newest = None, -1
    for at in (0, BYTES):
        block = os.pread(fd, BYTES, at)
        if len(block) < BYTES or block[:8] != MAGIC:
            continue
        major, _minor, uuid, sequence, kind = struct.unpack_from("<II16sQI", block, 8)
        (incarnation,) = struct.unpack_from("<Q", block, 64)
        flags, count = struct.unpack_from("<II", block, 88)
        whole = struct.unpack_from("<I", block, BYTES - 4)[0] == crc32c(block[:-4])
        if not whole or major != MAJOR or kind != 1 or not 1 <= count <= 64:
            continue
        if sequence > newest:
            sizes = [
                struct.unpack_from("<Q", block, ENTRIES + i * ENTRY_BYTES)[0]
                for i in range(count)
            ]
            newest = sequence
            best = Superblock(uuid.hex(), tuple(sizes), incarnation, bool(flags & 1))
    return best


def read_file(path: str) -> Superblock | None:
    """As read; None also where there is no file. Raises OSError for any other reason."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return read(fd)
    finally:
        os.close(fd)


def _table() -> tuple[int, ...]:
    values = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        values.append(value)
    return tuple(values)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Castagnoli's, reflected."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
