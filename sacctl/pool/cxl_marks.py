# SPDX-License-Identifier: Apache-2.0
"""Marks which device of a region is which, in the part of a data extent's first slab that the
format leaves alone (docs/format.md): a superblock is small, and lies on the first devices only.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass

from sacctl.pool import superblock
from sacctl.pool.cxl_record import RegionPart

__all__ = ["Mark", "read", "write"]

AT = 1 << 20  # behind the beginning of the extent
MAGIC = b"SACPLACE"
_FORM = struct.Struct("<8s16sII")  # magic, uuid, number, ways; then its CRC


@dataclass(frozen=True, slots=True)
class Mark:
    """uuid: of the pool, lower-case hex. number: of the granule, from AT on, that the mark was
    written to: each granule of a stripe lies on another device."""

    uuid: str
    number: int


def write(fd: int, region: RegionPart, uuid: str) -> None:
    """Writes the marks of an extent whose memory is the region's; none for one device.

    Raises OSError, EIO where the device's memory cannot be written.
    """
    marks = [_FORM.pack(MAGIC, bytes.fromhex(uuid), n, region.ways) for n in _numbers(region)]
    if not marks:
        return
    if not stat.S_ISCHR(os.fstat(fd).st_mode):
        for number, mark in enumerate(marks):
            os.pwrite(fd, _sealed(mark), AT + number * region.granularity)
        return
    pid = os.fork()  # memory that is poisoned or has gone kills whoever touches it
    if pid == 0:
        code = 1
        with suppress(BaseException):
            with mmap.mmap(fd, superblock.ALIGN, mmap.MAP_SHARED) as memory:
                for number, mark in enumerate(marks):
                    at = AT + number * region.granularity
                    memory[at : at + _FORM.size + 4] = _sealed(mark)
            code = 0
        os._exit(code)
    if os.waitpid(pid, 0)[1]:
        raise OSError(errno.EIO, "its memory cannot be written: it is poisoned, or has gone")


def read(fd: int, region: RegionPart) -> list[Mark | None]:
    """The marks where the region's are written, in their order; None where there is none, as
    in a pool of an older version. Raises OSError as superblock.identify."""
    numbers = _numbers(region)
    if not numbers:
        return []
    memory = superblock.head(fd, AT + len(numbers) * region.granularity)
    return [_mark(memory[AT + number * region.granularity :]) for number in numbers]


def _numbers(region: RegionPart) -> range:
    return range(region.ways if region.ways > 1 and region.granularity else 0)


def _sealed(mark: bytes) -> bytes:
    return mark + struct.pack("<I", superblock.crc32c(mark))


def _mark(memory: bytes) -> Mark | None:
    text = memory[: _FORM.size]
    if not text.startswith(MAGIC) or memory[: _FORM.size + 4] != _sealed(text):
        return None
    _, uuid, number, ways = _FORM.unpack(text)
    return Mark(uuid.hex(), number) if number < ways else None
