# SPDX-License-Identifier: Apache-2.0
"""A daemon under attack, and the client that must go on being served."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from attacks import wire
from system.daemon import Daemon, daemon


@dataclass
class Scene:
    """A daemon with one pool, "p", and an honest client with a namespace of its own."""

    daemon: Daemon
    speaker: wire.Speaker
    table: wire.Table
    pages: int = 0  # there must be
    keys: int = 0

    @property
    def socket(self) -> str:
        return self.daemon.socket

    def check(self) -> None:
        """The daemon that was there serves, at once, and has lost nothing."""
        begin = time.monotonic()
        self.commit(self.table.reserve(1))
        assert self.table.pages() == self.pages
        with wire.Speaker(self.socket) as new:
            new.hello()
        assert time.monotonic() - begin < 5
        os.kill(self.daemon.pid, 0)

    def commit(self, held: list[wire.Reservation]) -> None:
        """Makes pages of new keys."""
        self.table.commit(held, [wire.key(self.keys + i) for i in range(len(held))])
        self.keys += len(held)
        self.pages += len(held)

    def fds(self) -> int:
        """How many files the daemon has open."""
        return len(list(Path(f"/proc/{self.daemon.pid}/fd").iterdir()))

    def restart(self) -> None:
        """Another daemon after a kill; the honest client connects to it as a new one."""
        self.daemon.restart(kill=True)
        self.close()
        self.speaker = wire.Speaker(self.socket)
        self.speaker.hello()
        self.table = self.speaker.attach("p", "honest")
        assert self.table.pages() == self.pages

    def close(self) -> None:
        self.table.close()
        self.speaker.close()


@contextmanager
def scene() -> Iterator[Scene]:
    with daemon("p", extents=2) as served:
        speaker = wire.Speaker(served.socket)
        speaker.hello()
        table = speaker.attach("p", "honest")
        one = Scene(served, speaker, table)
        try:
            one.check()
            yield one
            one.check()
        finally:
            one.close()


def soon(condition: object, seconds: float = 10.0) -> bool:
    """Whether condition() becomes true in time."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False
