# SPDX-License-Identifier: Apache-2.0
"""Gather of 2,048 random rows of 1152 B from 4 GiB, against the bare loop, numpy and torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from common import Bare, Section, aligned, interleaved, median, ratio
from numpy.typing import NDArray

import libsac

Work = Callable[[int], object]

ROW = 1152
COUNT = 2048
PAGE_TOKENS = 64
REQUEST_TOKENS = 131072
BURST = 5  # calls in a row, each of other rows
SETS = 64  # of rows: more than the cache holds, and the index arrays still in it


class Rows:
    """Random rows of readers in one pool, as indices for us and as addresses for the limit.

    Every call takes the next set, so that none finds its rows in the cache.
    """

    def __init__(self, prefixes: list[libsac.Prefix], seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.prefixes = prefixes
        self.tokens = [rng.integers(0, prefixes[0].tokens, COUNT) for _ in range(SETS)]
        bases = [
            np.array([p.view("latent", 0, i).ctypes.data for i in range(p.pages)], np.uint64)
            for p in prefixes
        ]
        self.addresses = [
            bases[n % len(bases)][t // PAGE_TOKENS] + (t % PAGE_TOKENS * ROW).astype(np.uint64)
            for n, t in enumerate(self.tokens)
        ]
        self._turn = itertools.count()

    def next(self) -> int:
        return next(self._turn) % SETS


def fill(ns: libsac.Namespace, keys: libsac.Keys) -> libsac.Prefix:
    filler = np.random.default_rng(1).integers(0, 256, (256, PAGE_TOKENS, ROW), dtype=np.uint8)
    for at in range(0, len(keys), 256):
        with ns.put(keys[at : at + 256]) as put:
            put.write("latent", 0, filler[: len(put.missing)])
    prefix = ns.pin(keys)
    assert prefix.pages == len(keys)
    return prefix


def target() -> NDArray[np.uint8]:
    """Each work has a target of its own: it stays in the caches of the cores that write it."""
    return aligned(COUNT * ROW).reshape(COUNT, ROW)


def pool_works(rows: Rows, bare: Bare) -> dict[str, Work]:
    def limit(stream: bool) -> Work:
        out = target()
        return lambda _: bare.rows(rows.addresses[rows.next()], ROW, out, stream)

    def ours(threads: int, stream: bool) -> Work:
        out = target()

        def work(_: int) -> None:
            n = rows.next()
            rows.prefixes[n % len(rows.prefixes)].gather(
                "latent", 0, rows.tokens[n], out=out, threads=threads, stream=stream
            )

        return work

    return {
        "bare": limit(False),
        "ours": ours(1, False),
        "bare, streaming": limit(True),
        "ours, streaming": ours(1, True),
        "ours, two threads": ours(2, False),
        "ours, streaming, two threads": ours(2, True),
    }


def array_works(tokens: int) -> dict[str, Work]:
    """The same rows from one array, by what else there is. np.empty asks for huge pages too."""
    rng = np.random.default_rng(1)
    table = np.empty((tokens, ROW), np.uint8)
    table[:] = 1
    picks = [rng.integers(0, tokens, COUNT) for _ in range(SETS)]
    turn = itertools.count()
    out = target()

    def pick() -> NDArray[np.int64]:
        return picks[next(turn) % SETS]

    works: dict[str, Work] = {
        "numpy.take, default mode": lambda _: np.take(table, pick(), axis=0, out=out),
        "numpy.take, mode clip": lambda _: np.take(table, pick(), axis=0, out=out, mode="clip"),
    }
    try:
        import torch
    except ImportError:
        return works
    torch.set_num_threads(1)
    tensor, into = torch.from_numpy(table), torch.from_numpy(out)
    works["torch.index_select"] = lambda _: torch.index_select(
        tensor, 0, torch.from_numpy(pick()), out=into
    )
    return works


def report(section: Section, times: dict[str, list[float]]) -> None:
    gb = COUNT * ROW / 1e9
    for name, taken in times.items():
        t = median(taken)
        section.add(name, t * 1e6, "us", note=f"{gb / t:.2f} GB/s")
    for mode in ("", ", streaming"):
        section.add(
            f"ours / bare{mode}", ratio(times, f"ours{mode}", f"bare{mode}"), "x", (">=", 0.95)
        )
        section.add(
            f"two threads / one{mode}",
            ratio(times, f"ours{mode}, two threads", f"ours{mode}"),
            "x",
            (">=", 1.7),
        )
    for peer, goal in (("numpy.take, default mode", 1.5), ("torch.index_select", 1.2)):
        if peer in times:
            section.add(f"ours / {peer}", ratio(times, "ours", peer), "x", (">=", goal))


def run(gib: float, repeats: int) -> list[Section]:
    total = int(gib * (1 << 30)) // (ROW * PAGE_TOKENS) * PAGE_TOKENS
    requests = max(1, total // REQUEST_TOKENS)
    layout = libsac.Layout([libsac.Plane("latent", [0], ROW)], PAGE_TOKENS)
    floor = f"{COUNT * ROW / 1e6:.2f} MB read and as much written a call"
    what = f"gather of {COUNT} random rows of {ROW} B from {total * ROW / 2**30:.2f} GiB"
    bare = Bare()
    one = Section(f"{what}, one request of {total} tokens", floor)
    many = Section(f"{what}, {requests} requests of {REQUEST_TOKENS} tokens in turn", floor)
    with libsac.embedded(int(total * ROW * 1.02) + (64 << 20), prefault=True) as pool:
        ns = pool.namespace("one", layout)
        with fill(ns, ns.keys(np.arange(total, dtype=np.uint32))) as prefix:
            one.add("page size behind the pool", pool.info.page_size_obtained, "B")
            times = interleaved(pool_works(Rows([prefix], 1), bare), repeats, burst=BURST)
        pool.drop("one")
        ns = pool.namespace("many", layout)
        ids = np.arange(REQUEST_TOKENS, dtype=np.uint32)
        prefixes = [fill(ns, ns.keys(ids, salt=b"%d" % n)) for n in range(requests)]
        report(many, interleaved(pool_works(Rows(prefixes, 2), bare), repeats, burst=BURST))
        for prefix in prefixes:
            prefix.close()
    report(one, times | interleaved(array_works(total), repeats, burst=BURST))
    return [one, many]
