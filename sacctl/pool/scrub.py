# SPDX-License-Identifier: Apache-2.0
"""Zeroes memory that held pages before it changes its owner: the kernel never does that to
a DAX device's."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from libsac.errors import SacError
from sacctl.errors import from_libsac
from sacctl.pool import superblock
from sacctl.pool.steps import Step

__all__ = ["ScrubExtent", "Untouched", "zero"]

PIECE = 1 << 30


def zero(fd: int, path: str, size: int, progress: Callable[[int], None] | None = None) -> None:
    """Zeroes so many bytes. progress is told how many are done, after each GiB.

    Raises CtlError, also where the memory cannot be written because it is poisoned.
    """
    if stat.S_ISREG(os.fstat(fd).st_mode):
        # A device of a simulated machine: what is cut off reads as zeros, and takes no room.
        whole = os.fstat(fd).st_size
        os.ftruncate(fd, 0)
        os.ftruncate(fd, whole)
        return
    from libsac.server import Extent, scrub

    done = 0
    try:
        while done < size:
            piece = min(PIECE, size - done)
            scrub(Extent(fd, path), done, piece)
            done += piece
            if progress is not None:
                progress(done)
    except SacError as error:
        raise from_libsac(error) from error


class Untouched(Step):
    """Looks whether anybody has opened the pool since it was made: until then it has nothing
    but superblocks in its data. yes: what it found."""

    what = "look whether the pool was ever opened"

    def __init__(self, fd: Callable[[], int], uuid: str) -> None:
        self._fd, self._uuid = fd, uuid
        self.yes = False

    def apply(self) -> None:
        try:
            found = superblock.read(self._fd())
        except OSError:
            return  # memory that cannot be read may hold anything
        # Written and checked, which counts as opened twice.
        self.yes = found is not None and found.uuid == self._uuid and found.incarnation <= 2


class ScrubExtent(Step):
    """Zeroes an open device of a pool. There is no way back, and none is needed to go on: the
    same again does the rest."""

    final = True

    def __init__(
        self, fd: Callable[[], int], path: str, size: int, *, used: Callable[[], int]
    ) -> None:
        """used: how many of the size bytes can hold something of the pool's."""
        self._fd, self._path, self._size, self._used = fd, path, size, used

    @property
    def what(self) -> str:
        return f"scrub {self._path} ({self._size >> 20} MiB)"

    def apply(self) -> None:
        zero(self._fd(), self._path, min(self._size, self._used()))
