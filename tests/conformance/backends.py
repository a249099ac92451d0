# SPDX-License-Identifier: Apache-2.0
"""The ways to a pool that the conformance suite runs over.

A test asks for ``open_pool`` and gets each of them in turn. A new way to reach a pool joins
by an entry in BACKENDS; the tests stay as they are.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import libsac
from libsac import Pool


def copy_pool(source: Path, target: Path) -> None:
    """Copies a directory of sparse files; what was never written stays a hole."""
    target.mkdir()
    for file in source.iterdir():
        with file.open("rb") as old, (target / file.name).open("wb") as new:
            size = os.fstat(old.fileno()).st_size
            new.truncate(size)
            end = 0
            while end < size:
                try:
                    start = os.lseek(old.fileno(), end, os.SEEK_DATA)
                except OSError:  # only a hole is left
                    break
                end = os.lseek(old.fileno(), start, os.SEEK_HOLE)
                os.lseek(new.fileno(), start, os.SEEK_SET)
                os.lseek(old.fileno(), start, os.SEEK_SET)
                left = end - start
                while left:
                    left -= os.sendfile(new.fileno(), old.fileno(), None, left)


@dataclass(frozen=True)
class Backend:
    """One way to a pool. on_disk: it is there again when it is opened again."""

    name: str
    on_disk: bool = False
    extents: int = 1
    prefault: bool = False


BACKENDS = (
    Backend("memory"),
    Backend("memory-prefault", prefault=True),
    Backend("path", on_disk=True),
    Backend("path-3-extents", on_disk=True, extents=3),
)


class OpenPool:
    """Makes pools of one back end under one directory; closes them at the end.

    Calling it creates a pool (on disk: opens the one that is there). One pool is open at a
    time on disk; in memory each call gives another one.
    """

    def __init__(self, backend: Backend, root: Path) -> None:
        self.backend = backend
        self.path = root / "pool"
        self._open: list[Pool] = []

    @property
    def on_disk(self) -> bool:
        return self.backend.on_disk

    def __call__(self, size: int | str | None = "16M") -> Pool:
        pool = libsac.embedded(
            size,
            self.path if self.on_disk else None,
            extents=None if size is None else self.backend.extents,
            prefault=self.backend.prefault,
        )
        self._open.append(pool)
        return pool

    def reopen(self) -> Pool:
        """Closes the pool and opens it again. On disk only."""
        assert self.on_disk
        self.close()
        return self(None)

    def crash(self) -> Pool:
        """The pool as another process would find it had its owner died now. On disk only.

        What is on memory at this moment is copied; the pool that was open is closed and put
        away, and the copy is opened in its place.
        """
        assert self.on_disk
        image = self.path.with_name("image")
        copy_pool(self.path, image)
        self.close()
        shutil.rmtree(self.path)
        image.rename(self.path)
        return self(None)

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def data(self) -> list[NDArray[np.uint8]]:
        """The bytes of each data extent through mappings of their own. On disk only."""
        assert self.on_disk
        names = [f"data.{i}" for i in range(self.backend.extents)]
        return [np.memmap(self.path / name, np.uint8, "r+") for name in names]
