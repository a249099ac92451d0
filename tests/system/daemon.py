# SPDX-License-Identifier: Apache-2.0
"""A test's own daemon (mini_daemon.py), with a socket and pools in one directory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from system.run import environment

import libsac
from libsac import Pool

MEMORY = Path("/dev/shm")


class DaemonSaidError(Exception):
    """The daemon answered with an error, or died before it answered."""


@dataclass(frozen=True)
class Clients:
    """What a daemon's clients have."""

    clients: int
    tables: int
    pinned: int
    reservations: int


class Daemon:
    """Started and stopped at will; what it keeps is in root. Not thread-safe."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pid = 0
        (root / "pools").mkdir(parents=True)
        # Others may come to the socket; each pool's folder is closed to them.
        root.chmod(0o755)
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "system.mini_daemon", str(root)]
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment()
        )

    @property
    def socket(self) -> str:
        return str(self.root / "sock")

    def tell(self, *words: object) -> list[str]:
        """Says one line to the daemon; the words of its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        if not said.startswith("ok"):
            raise DaemonSaidError(said.strip() or "nothing: it has ended")
        return said.split()[1:]

    def start(self, **environ: str) -> Daemon:
        self.pid = int(self.tell("start", *(f"{k}={v}" for k, v in environ.items()))[0])
        return self

    def stop(self) -> None:
        self.tell("stop")

    def kill(self) -> None:
        self.tell("kill")

    def wait(self, seconds: float) -> int:
        """The signal that ended it by itself; 0: it lives on."""
        return int(self.tell("wait", seconds)[0])

    def restart(self, *, kill: bool, forget: bool = False) -> None:
        """Another daemon over the same files. forget: as if all clients had died as well."""
        if kill:
            self.kill()
        else:
            self.stop()
        if forget:
            shutil.rmtree(self.root / "run")
        self.start()

    def create(self, name: str, size: int, extents: int = 1) -> None:
        self.tell("create", name, size, extents)

    def remove(self, name: str) -> None:
        self.tell("remove", name)

    def lose(self, name: str, extent: int) -> int:
        """How many pages left with the extent."""
        return int(self.tell("lose", name, extent)[0])

    def clients(self) -> Clients:
        return Clients(*map(int, self.tell("clients")))

    def connect(self, pool: str | None = None, **options: Any) -> Pool:
        return libsac.connect(pool, socket=self.socket, **{"timeout": 10.0, **options})

    def close(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        shutil.rmtree(self.root, ignore_errors=True)


def folder() -> Path:
    """A new directory in memory."""
    return Path(tempfile.mkdtemp(prefix="sac-test-", dir=MEMORY if MEMORY.is_dir() else None))


@contextmanager
def daemon(pool: str = "p", size: int = 16 << 20, extents: int = 1) -> Iterator[Daemon]:
    """A running daemon with one pool."""
    one = Daemon(folder())
    try:
        one.start()
        one.create(pool, size, extents)
        yield one
    finally:
        one.close()
