# SPDX-License-Identifier: Apache-2.0
"""A load on a daemon that checks every byte it reads: ``python -m system.load SOCKET FOLDER``.

The process that is started keeps the modules loaded and forks the workers. Lines on stdin,
one answer each: ``spawn SEED``, ``kill PID``, ``stop`` (all, after what they are at). A worker
writes to FOLDER/SEED what was acknowledged ("page CHAIN PAGES"), and at its end "slowest
SECONDS", or "fault" and a traceback.

Every row carries its page's key, a counter drawn for each put, its number and layer, and bytes
that follow from them: a row of another page, of another put of the same page, or of two puts at
once is found out.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import struct
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from system.mini_daemon import answer

import libsac
from libsac import Keys, Layout, Namespace, Plane, Pool, Prefix, Put, Sequence, errors

Bytes = NDArray[np.uint8]

ROWS = 8
WIDE, NARROW = 256, 64
LAYOUT = Layout(
    [
        Plane("kv", [0, 1], WIDE),
        Plane("window", [1], NARROW, kind="window", window_tokens=2 * ROWS),
    ],
    page_tokens=ROWS,
)
POOL_BYTES = 64 << 20
QUOTA = "6M"  # of the namespace in which pages leave all the time
CHAINS, PAGES = 150, 20  # of it: four times what it holds
KEPT = 250  # pages that a worker may leave where none ever leaves
POOL, CROWDED, KEPT_NAME = "p", "crowded", "kept"


def key(kind: int, chain: int, page: int) -> bytes:
    return struct.pack("<QQQQ", 0x5AC0 + kind, chain, page, chain * 31 + page + 1)


def keys_of(kind: int, chain: int, pages: int) -> Keys:
    names = [key(kind, chain, i) for i in range(pages)]
    return Keys.of_engine(names, [bytes(32), *names[:-1]])


def rows(keys: Keys, counters: NDArray[np.uint64], layer: int, width: int) -> Bytes:
    """(pages, ROWS, width): what the pages' rows of a layer are."""
    out = np.empty((len(keys), ROWS, width), np.uint8)
    out[:, :, :32] = keys.values[:, None, :]
    numbers = np.empty((len(keys), ROWS, 2), np.uint64)
    numbers[..., 0] = counters[:, None]
    numbers[..., 1] = np.arange(ROWS, dtype=np.uint64) + np.uint64(layer << 32)
    out[:, :, 32:48] = numbers.view(np.uint8)
    rest = np.arange(width - 48, dtype=np.uint64)
    seeds = (numbers[..., 0] ^ numbers[..., 1]) * np.uint64(0x9E3779B97F4A7C15)
    out[:, :, 48:] = (seeds[..., None] >> (rest % np.uint64(57))).astype(np.uint8)
    return out


def check(prefix: Prefix | Sequence, keys: Keys, pages: int) -> None:
    """Every byte of the first pages is of one put of that page."""
    if pages == 0:
        return
    counters = None
    for layer in (0, 1):
        got = prefix.gather("kv", layer, rows=np.arange(pages * ROWS)).reshape(-1, ROWS, WIDE)
        if counters is None:
            counters = np.ascontiguousarray(got[:, 0, 32:40]).view(np.uint64).ravel()
        want = rows(keys[:pages], counters, layer, WIDE)
        if not np.array_equal(got, want):
            bad = np.argwhere((got != want).any(axis=2))[0]
            raise AssertionError(
                f"foreign bytes: page {bad[0]}, row {bad[1]}, layer {layer}: "
                f"{got[bad[0], bad[1], :48].tobytes().hex()} is not "
                f"{want[bad[0], bad[1], :48].tobytes().hex()}"
            )
    first = max(0, pages - LAYOUT.tail_pages)
    tail = prefix.gather("window", 1, rows=np.arange(first * ROWS, pages * ROWS))
    tail = tail.reshape(-1, ROWS, NARROW)
    # A tail may be of another put than its body: it is a part of its own.
    counters = np.ascontiguousarray(tail[:, 0, 32:40]).view(np.uint64).ravel()
    if not np.array_equal(tail, rows(keys[first:pages], counters, 1, NARROW)):
        raise AssertionError("foreign bytes in a window")


class Worker:
    """One client at work until it is told to stop."""

    def __init__(self, socket: str, seed: int, ledger: Path) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.ledger = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.stopped = False
        signal.signal(signal.SIGTERM, self.stop)
        self.pool: Pool = libsac.connect(POOL, socket=socket, timeout=60, reconnect=60)
        self.crowded, self.kept = open_spaces(self.pool)
        self.mine: list[tuple[int, int]] = []  # chains that are there for good, with pages
        self.pages = 0
        self.slowest = 0.0
        self.late = 0.0  # how long this process did not run although it wanted to
        threading.Thread(target=self.watch, daemon=True).start()

    def stop(self, *_: object) -> None:
        self.stopped = True

    def say(self, text: str) -> None:
        os.write(self.ledger, (text + "\n").encode())

    def watch(self) -> None:
        while True:
            begin = time.monotonic()
            time.sleep(0.01)
            self.late = max(self.late, time.monotonic() - begin - 0.01)

    def run(self) -> None:
        steps = (self.put, self.read, self.read, self.sequence, self.give_up, self.evict)
        weights = (6, 8, 4, 3, 1, 1)
        while not self.stopped:
            with contextlib.suppress(errors.NoSpaceError):
                self.random.choices(steps, weights)[0]()
            with contextlib.suppress(errors.NoSpaceError):
                self.keep()
            self.read_kept()
        self.pool.close()
        self.say(f"slowest {self.slowest} {self.late}")

    def chain(self) -> tuple[Keys, int]:
        # Some are used far more than others.
        chain = int(self.random.triangular(0, CHAINS, 0))
        pages = self.random.randint(1, PAGES)
        return keys_of(0, chain, pages), pages

    def fill(self, batch: Put, keys: Keys) -> None:
        drawn = np.array([self.random.getrandbits(63) for _ in range(len(keys))], np.uint64)
        for which, plane, layers in (
            (batch.missing, "kv", (0, 1)),
            (batch.missing_tails, "window", (1,)),
        ):
            at = np.asarray(which, np.int64)
            if not at.size:
                continue
            some = Keys.of_engine([keys.values[i].tobytes() for i in at], None)
            width = WIDE if plane == "kv" else NARROW
            for layer in layers:
                batch.write(plane, layer, rows(some, drawn[at], layer, width))

    def put(self) -> None:
        keys, _ = self.chain()
        with self.crowded.put(keys, timeout=self.random.choice((0, 0, 0.02))) as batch:
            self.fill(batch, keys)
            batch.commit()

    def give_up(self) -> None:
        keys, _ = self.chain()
        with self.crowded.put(keys) as batch:
            self.fill(batch, keys)
            batch.close()

    def evict(self) -> None:
        self.crowded.evict(self.random.randint(1, 20))

    def timed_pin(self, ns: Namespace, keys: Keys) -> Prefix:
        begin = time.monotonic()
        prefix = ns.pin(keys)
        check(prefix, keys, prefix.pages)
        self.slowest = max(self.slowest, time.monotonic() - begin)
        return prefix

    def read(self) -> None:
        keys, _ = self.chain()
        with self.timed_pin(self.crowded, keys) as prefix:
            for _ in range(self.random.randint(0, 3)):
                time.sleep(self.random.random() * 0.003)
                check(prefix, keys, prefix.pages)

    def sequence(self) -> None:
        """Whole chains, page by page. Keys of tokens: a namespace of its own."""
        space = self.tokens_space()
        chain = int(self.random.triangular(0, CHAINS, 0))
        ids = range(chain * 1000, chain * 1000 + self.random.randint(1, PAGES) * ROWS)
        keys = space.keys(ids)
        with space.sequence(ids) as seq:
            check(seq, keys, seq.pages)
            while seq.tokens < len(ids):
                first = seq.tokens
                seq.extend(ids[first : first + ROWS])
                some = keys[first // ROWS : first // ROWS + 1]
                drawn = np.array([self.random.getrandbits(63)], np.uint64)
                for layer in (0, 1):
                    seq.write("kv", layer, rows(some, drawn, layer, WIDE)[0])
                seq.write("window", 1, rows(some, drawn, 1, NARROW)[0])
                seq.flush()
            check(seq, keys, seq.pages)

    def tokens_space(self) -> Namespace:
        if not hasattr(self, "_tokens"):
            self._tokens = self.pool.namespace("tokens", LAYOUT, quota=QUOTA)
        return self._tokens

    def keep(self) -> None:
        """What is acknowledged here is there for ever."""
        if self.pages >= KEPT:
            return
        chain, pages = self.seed * 1000 + len(self.mine), self.random.randint(1, 5)
        keys = keys_of(1, chain, pages)
        with self.kept.put(keys) as batch:
            self.fill(batch, keys)
            assert batch.commit() == pages
        self.say(f"page {chain} {pages}")
        self.mine.append((chain, pages))
        self.pages += pages

    def read_kept(self) -> None:
        if not self.mine:
            return
        chain, pages = self.random.choice(self.mine)
        keys = keys_of(1, chain, pages)
        with self.timed_pin(self.kept, keys) as prefix:
            assert prefix.pages == pages, f"of chain {chain} {prefix.pages} of {pages} are left"


def open_spaces(pool: Pool) -> tuple[Namespace, Namespace]:
    return (
        pool.namespace(CROWDED, LAYOUT, key_scheme="engine", quota=QUOTA),
        pool.namespace(KEPT_NAME, LAYOUT, key_scheme="engine"),
    )


def work(socket: str, seed: int, ledger: Path) -> int:
    try:
        Worker(socket, seed, ledger).run()
    except BaseException:
        with ledger.open("a") as file:
            file.write("fault\n" + traceback.format_exc())
        return 3
    return 0


def main(socket: str, folder: Path) -> None:
    alive: set[int] = set()
    for line in sys.stdin:
        words = line.split()
        if words[0] == "spawn":
            pid = os.fork()
            if pid == 0:
                code = 4
                try:
                    code = work(socket, int(words[1]), folder / words[1])
                finally:
                    os._exit(code)
            alive.add(pid)
            answer(f"ok {pid}")
        elif words[0] == "kill":
            pid = int(words[1])
            alive.discard(pid)
            os.kill(pid, signal.SIGKILL)
            answer(f"ok {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
        else:
            for pid in alive:
                os.kill(pid, signal.SIGTERM)
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in alive]
            alive.clear()
            answer("ok " + " ".join(map(str, codes)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
