# SPDX-License-Identifier: Apache-2.0
"""The ways to a pool that the conformance suite runs over.

A test asks for ``open_pool`` and gets each of them in turn. A new way to reach a pool joins
by an entry in BACKENDS; the tests stay as they are.
"""

from __future__ import annotations

import atexit
import functools
import gc
import itertools
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from system.daemon import Daemon, DaemonSaidError, folder

import libsac
from libsac import Pool
from libsac.sizes import parse_size


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
    """One way to a pool.

    where: in memory of this process, in files of this process, or in files of a daemon. All
    but the first are there again when they are opened again.
    """

    name: str
    where: Literal["memory", "path", "daemon"] = "memory"
    extents: int = 1
    prefault: bool = False

    @property
    def on_disk(self) -> bool:
        return self.where != "memory"

    @property
    def exclusive(self) -> bool:
        """Whether a pool that is open can be opened by nobody else."""
        return self.where == "path"


BACKENDS = (
    Backend("memory"),
    Backend("memory-prefault", prefault=True),
    Backend("path", "path"),
    Backend("path-3-extents", "path", extents=3),
    Backend("daemon", "daemon"),
    Backend("daemon-3-extents", "daemon", extents=3),
)


class OpenPool:
    """Makes pools of one back end under one directory; closes them at the end.

    Calling it creates a pool (on disk: opens the one that is there). One pool is there at a
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
        pool = self._make(size)
        self._open.append(pool)
        return pool

    def _make(self, size: int | str | None) -> Pool:
        return libsac.embedded(
            size,
            self.path if self.on_disk else None,
            extents=None if size is None else self.backend.extents,
            prefault=self.backend.prefault,
        )

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

    def end(self) -> None:
        """Closes what is open, for good."""
        self.close()

    def data(self) -> list[NDArray[np.uint8]]:
        """The bytes of each data extent through mappings of their own. On disk only."""
        assert self.on_disk
        names = [f"data.{i}" for i in range(self.backend.extents)]
        return [np.memmap(self.path / name, np.uint8, "r+") for name in names]


@functools.cache
def shared_daemon() -> Daemon:
    """One daemon for all tests: each has a pool of its own."""
    one = Daemon(folder()).start()
    atexit.register(one.close)
    return one


class DaemonPool(OpenPool):
    """A pool of the daemon, and each call another client of it in this process."""

    numbers = itertools.count()

    def __init__(self, backend: Backend) -> None:
        self.daemon = shared_daemon()
        self.name = f"pool{next(self.numbers)}"
        super().__init__(backend, self.daemon.root / "pools")
        self.path = self.daemon.root / "pools" / self.name

    def _make(self, size: int | str | None) -> Pool:
        if not self.path.exists():
            assert size is not None
            self.daemon.create(self.name, parse_size(size), self.backend.extents)
        return self.daemon.connect(self.name)

    def reopen(self) -> Pool:
        """Closes the pool, and has another daemon open it."""
        self.close()
        self.daemon.restart(kill=False)
        return self(None)

    def crash(self) -> Pool:
        """The daemon is killed, and all its clients are taken for dead with it."""
        self.daemon.restart(kill=True, forget=True)
        self.close()
        return self(None)

    def end(self) -> None:
        self.close()
        gc.collect()
        # Refused where a failed test's traceback keeps something attached.
        with suppress(DaemonSaidError):
            if self.path.exists():
                self.daemon.remove(self.name)
