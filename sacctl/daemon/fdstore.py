# SPDX-License-Identifier: Apache-2.0
"""Files of pools that the service manager keeps over a restart of the daemon.

The daemon's user may not be able to open them again by their paths, and a device keeps its
claim. What each file was is written beside the roster, for a file that comes back is only
taken where it is still the same one: docs/daemon.md, Files kept over a restart.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sacctl.daemon.log import log
from sacctl.daemon.notify import Notifier, is_writable
from sacctl.files import read_regular, write_whole
from sacctl.pool.record import Record

__all__ = ["FdStore", "file_name", "identity"]

FILE = "kept.json"
META = -1
MOST = 1 << 22  # bytes of FILE


def file_name(pool: str, index: int) -> str:
    """What an extent's file is called in the manager's store: "pool.kv.meta", "pool.kv.0".

    index -1: the metadata. A pool's name may have dots, but not what is behind the last one.
    """
    return f"pool.{pool}.{'meta' if index == META else index}"


def identity(fd: int) -> dict[str, int]:
    """What stays the same as long as it is the same file. Raises OSError."""
    found = os.fstat(fd)
    return {
        "device": found.st_dev,
        "inode": found.st_ino,
        "special": found.st_rdev,
        "size": found.st_size,
    }


class FdStore:
    """What the manager keeps for this daemon. Thread-safe.

    Args:
        notifier: the way to the manager; where there is none, nothing is kept.
        folder: of the daemon's state, 0700; has the file that says what was kept.
        stored: what the manager handed over, by name; owned by this object from now on.
    """

    def __init__(
        self, notifier: Notifier, folder: Path, stored: Mapping[str, Sequence[int]]
    ) -> None:
        self._notifier = notifier
        self._path = folder / FILE
        self._stored = {name: list(fds) for name, fds in stored.items()}
        self._lock = threading.Lock()
        self._known = _read(self._path)
        self._taken: set[str] = set()

    @property
    def there(self) -> bool:
        """Whether anything is kept at all."""
        return self._notifier.there

    def came(self, record: Record) -> bool:
        """Whether any file came under the pool's names."""
        with self._lock:
            return any(self._stored.get(name) for name in _names(record))

    def take(self, record: Record) -> list[int] | None:
        """The pool's files as they came back: metadata first, then data; the caller closes
        them. None: not all of them came, or one is another than it was; those that came are
        closed then, and the manager is told to forget them."""
        with self._lock:
            came = [(name, self._stored.pop(name, [])) for name in _names(record)]
            if not any(fds for _, fds in came):
                return None
            why, right = "", []
            for (name, fds), path in zip(came, (record.meta, *record.data), strict=True):
                wrong = [self._wrong(name, fd, path) for fd in fds]
                right += [fd for fd, bad in zip(fds, wrong, strict=True) if not bad][:1]
                if "" not in wrong:
                    why = why or next(iter(wrong), f"0 came as {name}, one is needed")
            if not why:
                self._taken.add(record.name)
                for (name, fds), fd in zip(came, right, strict=True):
                    self._only(name, fds, fd)
                return right
            self._close(came)
        log.warning(f"kept files of pool {record.name} are not used: {why}", pool=record.name)
        return None

    def _only(self, name: str, fds: Sequence[int], fd: int) -> None:
        """Of several files under one name this one is kept, and the others are closed."""
        others = [other for other in fds if other != fd]
        if others:
            log.warning(f"{len(fds)} files came as {name}: one is right, the rest is dropped")
            self._close([(name, others)])
            self._notifier.keep(name, fd)

    def _wrong(self, name: str, fd: int, path: str) -> str:
        known = self._known.get(name)
        if known is None or known.get("path") != path:
            return f"nothing is known of {name}"
        try:
            found = os.fstat(fd)
            now = identity(fd)
            writable = is_writable(fd)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if any(known.get(key) != value for key, value in now.items()):
            return f"{name} is another file than it was"
        if stat.S_ISREG(found.st_mode) and not found.st_nlink:
            return f"{path} has been removed"
        return "" if writable else f"{name} is not open for writing"

    def keep(self, record: Record, fds: Sequence[int]) -> None:
        """Has the manager keep the pool's files (metadata first) from now on, instead of
        those it kept of a pool of that name. They stay the caller's."""
        if not self.there:
            return
        with self._lock:
            self._forget(record.name)
            paths = (record.meta, *record.data)
            new = {}
            for index, (fd, path) in enumerate(zip(fds, paths, strict=True), META):
                new[file_name(record.name, index)] = {"path": path} | identity(fd)
            # First what they are: a file that nothing is known of would not be taken back.
            self._known |= new
            self._write()
            kept = [self._notifier.keep(*file) for file in zip(new, fds, strict=True)]
            self._taken.add(record.name)
        if not all(kept):
            log.warning(
                "the service manager does not keep the pool's files over a restart",
                pool=record.name,
            )

    def keep_more(self, record: Record, index: int, fd: int) -> None:
        """As keep(), of one data extent that was added to a pool that is kept."""
        if not self.there:
            return
        with self._lock:
            name = file_name(record.name, index)
            self._known[name] = {"path": record.data[index]} | identity(fd)
            self._write()
            kept = self._notifier.keep(name, fd)
        if not kept:
            log.warning("the service manager does not keep a new extent", pool=record.name)

    def drop(self, pool: str) -> None:
        """The pool's files are kept no more."""
        with self._lock:
            if self._forget(pool):
                self._write()

    def settle(self) -> None:
        """After every pool was opened: what came and nobody took is closed and forgotten."""
        with self._lock:
            left = sorted(self._stored.items())
            names = ", ".join(_said(name, fds) for name, fds in left)
            self._stored = {}
            self._close(left)
            dead = {n for n in self._known if _pool_of(n) not in self._taken}
            if dead:
                self._known = {n: v for n, v in self._known.items() if n not in dead}
                self._write()
        if left:
            log.warning(f"files that the service manager kept are of no pool: {names}")

    def close(self) -> None:
        """Closes what nobody took; what the manager keeps stays there."""
        with self._lock:
            for fds in self._stored.values():
                _close_all(fds)
            self._stored = {}

    def _close(self, named: Sequence[tuple[str, Sequence[int]]]) -> None:
        for name, fds in named:
            _close_all(fds)
            if fds and name:
                self._notifier.drop(name)

    def _forget(self, pool: str) -> bool:
        names = [name for name in self._known if _pool_of(name) == pool]
        for name in names:
            del self._known[name]
            self._notifier.drop(name)
        self._taken.discard(pool)
        return bool(names)

    def _write(self) -> None:
        try:
            write_whole(self._path, json.dumps(self._known).encode(), 0o600)
        except OSError as error:
            log.warning(f"the kept files will not be known after a restart: {error}")


def _names(record: Record) -> list[str]:
    return [file_name(record.name, index) for index in range(META, len(record.data))]


def _pool_of(name: str) -> str:
    return name.removeprefix("pool.").rpartition(".")[0]


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def _said(name: str, fds: Sequence[int]) -> str:
    """For the log: the name, and what it is where no file is kept that is such a thing."""
    kinds = set()
    for fd in fds:
        with suppress(OSError):
            mode = os.fstat(fd).st_mode
            kinds.add("" if stat.S_ISREG(mode) or stat.S_ISCHR(mode) else _kind(mode))
    other = ", ".join(sorted(kinds - {""}))
    return (name or "one without a name") + (f" (a {other})" if other else "")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "pipe", stat.S_IFDIR: "folder"}
    return kinds.get(stat.S_IFMT(mode), "descriptor of another kind")


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(read_regular(path, MOST))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(k): v for k, v in found.items() if isinstance(v, dict)}
