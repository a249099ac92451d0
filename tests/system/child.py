# SPDX-License-Identifier: Apache-2.0
"""Work of child processes: ``python -m system.child WHAT PATH ...``."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from conformance.content import RICH, check, put, stream

import libsac
from libsac import Namespace

CHAIN_PAGES = 6
SIZE = "256M"
MOST = 3000  # parts of a run; no page ever has to leave


def say(*words: object) -> None:
    """One line, out at once: a killed process keeps no buffer."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def tokens(seed: int, chain: int) -> range:
    start = (seed * 4000 + chain) * 200
    return range(start, start + 16 * CHAIN_PAGES)


def append(ns: Namespace, seed: int, chain: int, rng: np.random.Generator) -> None:
    """Grows a sequence in steps of odd sizes; each page is said when it is flushed."""
    ids = tokens(seed, chain)
    keys = ns.keys(ids)
    said = 0
    with ns.sequence(ids[: 16 * int(rng.integers(0, CHAIN_PAGES))]) as seq:
        said = seq.pages
        while seq.tokens < len(ids):
            start = seq.extend(ids[seq.tokens : seq.tokens + int(rng.integers(1, 40))])
            stop = seq.tokens
            for plane in RICH.planes:
                step = 16 if plane.kind == "state" else plane.tokens_per_row
                first, last = start // step, -(-stop // step)
                for layer in plane.layers:
                    rows = stream(keys, plane, layer)[..., first:last, :]
                    seq.write(plane.name, layer, rows)
            seq.flush()
            for key in keys.values[said : stop // 16]:
                say("page", key.tobytes().hex())
            said = stop // 16


def work(path: str, seed: int) -> None:
    """Puts and appends until killed; says "page KEY" when a page was acknowledged."""
    rng = np.random.default_rng(seed)
    pool = libsac.embedded(SIZE, path)
    ns = pool.namespace("n", layout=RICH, checksum=True, token_ids=True)
    say("ready")
    chain = 0
    while ns.stats().commits < MOST:
        keys = ns.keys(tokens(seed, chain))
        what = rng.integers(0, 4)
        if what == 0:
            batch = ns.put(keys)  # given up
            batch.close()
        elif what == 1:
            append(ns, seed, chain, rng)
        else:
            for n in sorted(rng.integers(1, CHAIN_PAGES + 1, 2)):
                put(ns, keys[: int(n)])
                for key in keys.values[: int(n)]:
                    say("page", key.tobytes().hex())
        with ns.pin(keys) as prefix:
            check(prefix, keys, RICH, prefix.pages)
        chain += 1
    say("done")
    time.sleep(600)


def hold(path: str) -> None:
    """Opens the pool and keeps it until stdin ends."""
    with libsac.embedded(SIZE, path) as pool:
        say("ready", pool.info.incarnation)
        sys.stdin.read()


def hold_and_fork(path: str) -> None:
    """As hold, and with a forked child that lives on; says the child's pid."""
    pool = libsac.embedded(SIZE, path)
    ns = pool.namespace("n", layout=RICH)
    put(ns, ns.keys(range(64)))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, b"x")
        time.sleep(600)
        os._exit(0)
    os.read(read, 1)
    say("ready", pid)
    sys.stdin.read()


if __name__ == "__main__":
    name, path = sys.argv[1:3]
    if name == "work":
        work(path, int(sys.argv[3]))
    elif name == "hold":
        hold(path)
    else:
        hold_and_fork(path)
