# SPDX-License-Identifier: Apache-2.0
"""The product at work in a guest: its daemon, its pools' records, pages put and read."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vm.guest import cxl
from vm.guest.kit import host, sacctl, stop, until

__all__ = ["Daemon", "Pages", "daemon", "interleaved", "open_by", "pool", "record"]

SOCKET = Path("/run/sac/sacd.sock")
LOG = Path("/run/daemon.log")
PAGE_TOKENS = 64
ROW = 1024  # bytes; rows lie one behind the other in a page
PIECE = 256  # bytes: the finest granularity of an interleave


class Daemon:
    """As root, without a service manager."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with LOG.open("ab") as log:
            self.process = subprocess.Popen(
                ["sacctl", "daemon", "run"], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        until("the daemon to answer", self.answers, 60)

    def answers(self) -> bool:
        assert self.process
        assert self.process.poll() is None, f"the daemon ended: {LOG.read_text()}"
        return SOCKET.exists() and not sacctl("daemon", "status", code=None).code

    def stop(self) -> None:
        if self.process:
            code = stop(self.process, 40)
            self.process = None
            assert code == 0, f"the daemon ended with {code}"

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()
        self.process = None


@contextmanager
def daemon() -> Iterator[Daemon]:
    """A running daemon; its log is printed at the end."""
    LOG.unlink(missing_ok=True)
    it = Daemon()
    try:
        it.start()
        yield it
        it.stop()
    finally:
        if it.process:
            it.kill()
        print("--- daemon's log\n" + LOG.read_text() + "---", flush=True)


def record(name: str) -> dict[str, Any]:
    """What sacctl says about a pool."""
    found: dict[str, Any] = sacctl("pool", "show", name, "-o", "json").json["pool"]
    return found


@contextmanager
def pool(name: str, *words: str) -> Iterator[None]:
    """A pool made with these words, destroyed at the end; no trace of it may be left."""
    sacctl("pool", "create", name, *words, limit=200)
    yield
    sacctl("pool", "destroy", name, "--yes", limit=300)
    left = [what for what in cxl.leftovers() if not what.startswith("process")]
    assert not left, f"left behind by destroy: {left}"


class Pages:
    """Pages of rows of 1 KiB in a namespace, by this process as a client.

    Each piece of 256 bytes begins with a text of its own, so that it can be found in a
    device's memory.
    """

    def __init__(self, pool: str, namespace: str, count: int = 4, seed: int = 0) -> None:
        import libsac

        plane = libsac.Plane("rows", range(1), ROW)
        self.layout = libsac.Layout([plane], PAGE_TOKENS)
        self.pool = libsac.connect(pool)
        self.ns = self.pool.namespace(namespace, self.layout)
        tokens = range(seed, seed + count * PAGE_TOKENS)
        self.keys = self.ns.keys(tokens, salt=b"vm")
        self.seed = seed
        self.count = count

    def content(self, page: int) -> Any:
        import numpy

        data = bytearray()
        for piece in range(PAGE_TOKENS * ROW // PIECE):
            head = self.head(page, piece)
            data += head + bytes(
                (page * 31 + piece + n) % 251 for n in range(PIECE - len(head))
            )
        return numpy.frombuffer(bytes(data), numpy.uint8).reshape(PAGE_TOKENS, ROW)

    def head(self, page: int, piece: int) -> bytes:
        return f"<{self.seed}/{page}/{piece}>".encode()

    def put(self) -> None:
        import numpy

        with self.ns.put(self.keys) as put:
            rows = numpy.stack([self.content(page) for page in put.missing])
            put.write("rows", 0, rows)

    def found(self) -> int:
        """How many pages of the prefix are there; each is read and compared."""
        with self.ns.pin(self.keys) as prefix:
            tokens = prefix.tokens
            for page in range(tokens // PAGE_TOKENS):
                first = page * PAGE_TOKENS
                rows = prefix.gather("rows", layer=0, tokens=list(range(first, first + 64)))
                assert (rows == self.content(page)).all(), f"page {page} reads back otherwise"
        return int(tokens) // PAGE_TOKENS

    def close(self) -> None:
        self.pool.close()


def interleaved(pages: Pages, order: list[int], granularity: int) -> None:
    """Page 0 of these pages lies over the devices in this order, as seen from outside."""
    seen: list[tuple[int, int]] = []
    pieces = range(0, 4 * len(order) * granularity // PIECE, granularity // PIECE)
    for piece in pieces:
        places = [
            (device, at) for device in order for at in host.find(device, pages.head(0, piece))
        ]
        assert len(places) == 1, f"piece {piece} of the page lies at {places}"
        seen.append(places[0])
    devices = [device for device, _ in seen]
    first = order.index(devices[0])
    turned = order[first:] + order[:first]
    assert devices == turned * (len(devices) // len(order)), f"{devices}, not {turned} in turn"
    steps = {b[1] - a[1] for a, b in zip(seen, seen[len(order) :], strict=False)}
    assert steps == {granularity}, f"offsets in a device differ by {steps}"


def open_by(process: int) -> list[str]:
    """The files that a process has open."""
    fds = Path(f"/proc/{process}/fd")
    return [str(fd.readlink()) for fd in fds.iterdir() if fd.is_symlink()]
