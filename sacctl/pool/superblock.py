# SPDX-License-Identifier: Apache-2.0
"""Reads a pool's superblock (docs/format.md), to know a pool without opening it."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass

__all__ = [
    "DATA",
    "META",
    "Superblock",
    "forget_boot",
    "head",
    "identify",
    "marked",
    "pieces",
    "read",
    "read_file",
    "turned",
]

BYTES = 4096
MAGIC = b"SACPOOL\0"
MAJOR = 1
ENTRIES, ENTRY_BYTES = 256, 48
META, DATA = 1, 2
BOOT_ID = 72  # its place in the block
PIECE = 256  # bytes: the smallest granularity of a region
ALIGN = 2 << 20  # of mappings of a DAX device


@dataclass(frozen=True, slots=True)
class Superblock:
    """uuid: lower-case hex. extents: bytes of each data extent. kind: META or DATA.

    position: of a data extent among them.
    """

    uuid: str
    extents: tuple[int, ...]
    incarnation: int
    clean: bool
    kind: int = META
    position: int = 0


def read(fd: int) -> Superblock | None:
    """Of a metadata extent; None where there is no valid one. Raises OSError."""
    found = identify(fd)
    return found if found is not None and found.kind == META else None


def identify(fd: int) -> Superblock | None:
    """Of any extent, a file or a DAX device. None where no copy is valid; raises OSError,
    EIO where the device's memory cannot be read."""
    found = head(fd)
    best, newest = None, -1
    for at in (0, BYTES):
        block = found[at : at + BYTES]
        if len(block) < BYTES or block[:8] != MAGIC:
            continue
        major, _minor, uuid, sequence, kind, position = struct.unpack_from(
            "<II16sQII", block, 8
        )
        (incarnation,) = struct.unpack_from("<Q", block, 64)
        flags, count = struct.unpack_from("<II", block, 88)
        whole = struct.unpack_from("<I", block, BYTES - 4)[0] == crc32c(block[:-4])
        if not whole or major != MAJOR or kind not in (META, DATA) or count > 64:
            continue
        if kind == META and not count:
            continue
        if sequence > newest:
            sizes = [
                struct.unpack_from("<Q", block, ENTRIES + i * ENTRY_BYTES)[0]
                for i in range(count)
            ]
            newest = sequence
            best = Superblock(
                uuid.hex(), tuple(sizes), incarnation, bool(flags & 1), kind, position
            )
    return best


def marked(fd: int) -> bool:
    """Whether an extent begins with a superblock, valid or not. Raises OSError as identify."""
    found = head(fd)
    return any(found[at : at + 8] == MAGIC for at in (0, BYTES))


def head(fd: int, size: int = 2 * BYTES) -> bytes:
    """The first bytes of an extent, at most its first 2 MiB. Raises OSError as identify."""
    if stat.S_ISCHR(os.fstat(fd).st_mode):
        return _mapped(fd, size)
    return os.pread(fd, size, 0)


def pieces(memory: bytes) -> list[tuple[int, str]]:
    """Where beginnings of superblocks stand in the head of an extent, valid or not, and of
    which pools (uuid) they are. Looked for at each multiple of 256 bytes, the smallest that
    memory is spread over devices by."""
    found = []
    for at in range(0, len(memory) - PIECE + 1, PIECE):
        if memory[at : at + 8] == MAGIC:
            found.append((at, memory[at + 16 : at + 32].hex()))
    return found


def turned(memory: bytes) -> list[tuple[int, str]]:
    """As pieces(), of valid copies in the head of an extent that stand in the place of the
    other one: a writer puts copy number "sequence modulo 2" there."""
    found = []
    for number in (0, 1):
        block = memory[number * BYTES :][:BYTES]
        if len(block) < BYTES or block[:8] != MAGIC:
            continue
        (sequence,) = struct.unpack_from("<Q", block, 32)
        whole = struct.unpack_from("<I", block, BYTES - 4)[0] == crc32c(block[:-4])
        if whole and sequence % 2 != number:
            found.append((number * BYTES, block[16:32].hex()))
    return found


def _mapped(fd: int, size: int) -> bytes:
    """As a child reads them from a mapping, for a DAX device knows no read(2), and memory
    that is poisoned or has gone kills whoever touches it."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        with suppress(BaseException):
            with mmap.mmap(fd, ALIGN, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
                left = memoryview(memory[:size])
                while left:
                    left = left[os.write(into, left) :]
            code = 0
        os._exit(code)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        read = pipe.read()
    ended = os.waitpid(pid, 0)[1]
    if ended or len(read) != size:
        raise OSError(errno.EIO, "its memory cannot be read: it is poisoned, or has gone")
    return read


def forget_boot(fd: int) -> None:
    """Clears the boot id in each valid copy: who opens the pool next takes its memory as after
    a reboot, and keeps only what has a checksum that holds. Needs a file open for writing.

    Raises OSError, EIO where the device's memory cannot be written.
    """
    if not stat.S_ISCHR(os.fstat(fd).st_mode):
        with mmap.mmap(fd, 2 * BYTES, mmap.MAP_SHARED) as memory:
            _forget(memory)
        return
    pid = os.fork()  # as _mapped() does, and for the same reason
    if pid == 0:
        code = 1
        with suppress(BaseException):
            with mmap.mmap(fd, ALIGN, mmap.MAP_SHARED) as memory:
                _forget(memory)
            code = 0
        os._exit(code)
    if os.waitpid(pid, 0)[1]:
        raise OSError(errno.EIO, "its memory cannot be written: it is poisoned, or has gone")


def _forget(memory: mmap.mmap) -> None:
    # The older copy first: one that is cut off leaves the other, and the next time begins anew.
    copies = [bytes(memory[at : at + BYTES]) for at in (0, BYTES)]
    order = sorted((0, 1), key=lambda i: struct.unpack_from("<Q", copies[i], 32)[0])
    for index in order:
        block = copies[index]
        sound = struct.unpack_from("<I", block, BYTES - 4)[0] == crc32c(block[:-4])
        if block[:8] == MAGIC and sound:
            new = block[:BOOT_ID] + bytes(16) + block[BOOT_ID + 16 : -4]
            memory[index * BYTES : (index + 1) * BYTES] = new + struct.pack("<I", crc32c(new))


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
