# SPDX-License-Identifier: Apache-2.0
"""One of many processes that gather at once; processes.py tells it when, by lines on stdin."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from common import Bare, aligned

import libsac

COUNT, ROW, PAGE_TOKENS = 2048, 1152, 64
SETS = 32
PLANE = "latent"


def layout() -> libsac.Layout:
    return libsac.Layout([libsac.Plane(PLANE, [0], ROW)], PAGE_TOKENS)


def main(socket: str, pool_name: str, name: str, library: str, seed: str) -> None:
    """Reads "ours END" or "bare END", the end in nanoseconds of the clock that all processes
    have; answers as spend() says, in JSON."""
    share_the_cores()
    bare = Bare(Path(library))
    rng = np.random.default_rng(int(seed))
    with libsac.connect(pool_name, socket=socket) as pool:
        ns = pool.namespace(name)
        pages = ns.stats().pages
        keys = ns.keys(np.arange(pages * PAGE_TOKENS, dtype=np.uint32))
        with ns.pin(keys) as prefix:
            bases = np.array(
                [prefix.view(PLANE, 0, i).ctypes.data for i in range(prefix.pages)], np.uint64
            )
            picks = [rng.integers(0, prefix.tokens, COUNT) for _ in range(SETS)]
            addresses = [
                bases[t // PAGE_TOKENS] + (t % PAGE_TOKENS * ROW).astype(np.uint64)
                for t in picks
            ]
            out = aligned(COUNT * ROW).reshape(COUNT, ROW)

            def ours(n: int) -> None:
                prefix.gather(PLANE, 0, picks[n % SETS], out=out, threads=1)

            def limit(n: int) -> None:
                bare.rows(addresses[n % SETS], ROW, out, False)

            works: dict[str, Callable[[int], None]] = {"ours": ours, "bare": limit}
            for work in works.values():
                for n in range(SETS):
                    work(n)
            print("ready", flush=True)
            for line in sys.stdin:
                what, end = line.split()
                print(json.dumps(spend(works[what], int(end))), flush=True)


def share_the_cores() -> None:
    """Under SCHED_FIFO (chrt -f) the processes would run one after the other: SCHED_RR gives
    each its turn."""
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_getparam(0))


def spend(work: Callable[[int], None], end: int) -> list[int]:
    """Calls work until the end: the time of each call, in nanoseconds."""
    taken: list[int] = []
    clock = time.monotonic_ns
    now = clock()
    while now < end:
        work(len(taken))
        then = clock()
        taken.append(then - now)
        now = then
    return taken


if __name__ == "__main__":
    main(*sys.argv[1:6])
