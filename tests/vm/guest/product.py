# SPDX-License-Identifier: Apache-2.0
"""The product at work in a guest: its daemon, its pools' records, pages put and read."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vm.guest import cxl
from vm.guest.kit import host, sacctl, stop, until

__all__ = [
    "Daemon",
    "Pages",
    "daemon",
    "interleaved",
    "layout",
    "open_by",
    "pool",
    "record",
    "room",
]

SOCKET = Path("/run/sac/sacd.sock")
LOG = Path("/run/daemon.log")
PAGE_TOKENS = 64
ROW = 1024  # bytes; rows lie one behind the other in a page
PIECE = ROW // 4  # bytes: the finest granularity of an interleave


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
        with socket.socket(socket.AF_UNIX) as one:
            # Faster than a command; what it then does not answer at once is waited for.
            return one.connect_ex(str(SOCKET)) == 0

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


def room(own: int = 64) -> tuple[str, str]:
    """Words of a pool's creation that leave it so many MiB of the first region: zeroing it at
    its end takes the most time of all."""
    each = min(cxl.number(f"{device.name}/ram/size") for device in cxl.devices().values())
    return "--isolated-room", str(each * len(cxl.devices()) - own * cxl.MIB)


@contextmanager
def pool(name: str, *words: str) -> Iterator[None]:
    """A pool made with these words, destroyed at the end; no trace of it may be left."""
    sacctl("pool", "create", name, *words, limit=200)
    yield
    sacctl("pool", "destroy", name, "--yes", limit=300)
    left = [what for what in cxl.leftovers() if not what.startswith("process")]
    assert not left, f"left behind by destroy: {left}"


class Pages:
    """Pages of 64 rows in a namespace, by this process as a client.

    A page has 256 pieces of the same size; each begins with a text of its own, so that it can
    be found in a device's memory.
    """

    def __init__(
        self,
        pool: str,
        namespace: str,
        count: int = 4,
        seed: int = 0,
        *,
        row: int = ROW,
        checksum: bool = False,
        exists: bool = False,
    ) -> None:
        """row: bytes, a multiple of 1 KiB. exists: take the namespace as it is, make none."""
        import libsac

        self.pool = libsac.connect(pool)
        if exists:
            self.ns = self.pool.namespace(namespace)
        else:
            self.ns = self.pool.namespace(namespace, layout(row), checksum=checksum)
        tokens = range(seed, seed + count * PAGE_TOKENS)
        self.keys = self.ns.keys(tokens, salt=b"vm")
        self.seed = seed
        self.count = count
        self.row = row

    def content(self, page: int) -> Any:
        import numpy

        size = self.row // 4
        pieces = numpy.arange(4 * PAGE_TOKENS)
        bytes_of = (31 * page + pieces[:, None] + numpy.arange(size)) % 251
        data = bytes_of.astype(numpy.uint8)
        for piece in pieces:
            head = self.head(page, int(piece))
            data[piece, : len(head)] = numpy.frombuffer(head, numpy.uint8)
        return data.reshape(PAGE_TOKENS, self.row)

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
                self._same(prefix, page, page)
        return int(tokens) // PAGE_TOKENS

    def intact(self) -> list[int]:
        """The pages that are there, whatever others are; each is read and compared."""
        there = [page for page, yes in enumerate(self.ns.lookup(self.keys)) if yes]
        for page in there:
            with self.ns.pin(self.keys[page : page + 1]) as prefix:
                self._same(prefix, 0, page)
        return there

    def _same(self, prefix: Any, at: int, page: int) -> None:
        tokens = list(range(at * PAGE_TOKENS, (at + 1) * PAGE_TOKENS))
        rows = prefix.gather("rows", layer=0, tokens=tokens)
        assert (rows == self.content(page)).all(), f"page {page} reads back otherwise"

    def close(self) -> None:
        self.pool.close()


def layout(row: int = ROW) -> Any:
    """Of Pages: rows of so many bytes."""
    import libsac

    return libsac.Layout([libsac.Plane("rows", range(1), row)], PAGE_TOKENS)


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
