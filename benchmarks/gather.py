# SPDX-License-Identifier: Apache-2.0
"""Gather of 2,048 random rows of 1152 B from 4 GiB, against the bare loop, numpy and torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from common import Bare, Section, aligned, interleaved, median, ratio

import libsac

ROW = 1152
COUNT = 2048
PAGE_TOKENS = 64


def run(gib: float, repeats: int) -> Section:
    pages = int(gib * (1 << 30)) // (ROW * PAGE_TOKENS)
    tokens = pages * PAGE_TOKENS
    layout = libsac.Layout([libsac.Plane("latent", [0], ROW)], PAGE_TOKENS)
    section = Section(
        f"gather of {COUNT} random rows of {ROW} B from {tokens * ROW / 2**30:.2f} GiB",
        f"{COUNT * ROW / 1e6:.2f} MB read and as much written a call",
    )
    rng = np.random.default_rng(1)
    picks = [rng.integers(0, tokens, COUNT) for _ in range(1024)]
    turn = itertools.count()

    def fresh(work: Callable[[int], object]) -> Callable[[int], object]:
        """Every call gets rows of its own, so that none finds them in the cache."""
        return lambda _: work(next(turn) % len(picks))

    out = aligned(COUNT * ROW).reshape(COUNT, ROW)
    bare = Bare()
    size = int(pages * ROW * PAGE_TOKENS * 1.02) + (64 << 20)
    with libsac.embedded(size, prefault=True) as pool:
        ns = pool.namespace("bench", layout)
        keys = ns.keys(np.arange(tokens, dtype=np.uint32))
        filler = rng.integers(0, 256, (256, PAGE_TOKENS, ROW), dtype=np.uint8)
        for at in range(0, pages, 256):
            with ns.put(keys[at : at + 256]) as put:
                put.write("latent", 0, filler[: len(put.missing)])
        with ns.pin(keys) as prefix:
            assert prefix.pages == pages
            views = [prefix.view("latent", 0, i).ctypes.data for i in range(pages)]
            bases = np.array(views, np.uint64)
            where = [
                bases[p // PAGE_TOKENS] + (p % PAGE_TOKENS * ROW).astype(np.uint64)
                for p in picks
            ]

            def ours(threads: int, stream: bool) -> Callable[[int], object]:
                return fresh(
                    lambda n: prefix.gather(
                        "latent", 0, picks[n], out=out, threads=threads, stream=stream
                    )
                )

            times = interleaved(
                {
                    "bare": fresh(lambda n: bare.rows(where[n], ROW, out, False)),
                    "ours": ours(1, False),
                    "bare, streaming": fresh(lambda n: bare.rows(where[n], ROW, out, True)),
                    "ours, streaming": ours(1, True),
                    "ours, two threads": ours(2, False),
                    "ours, streaming, two threads": ours(2, True),
                },
                repeats,
            )
            section.add("page size behind the pool", pool.info.page_size_obtained, "B")
    # The same rows from an array of the same size, once the pool's memory is free again.
    # np.empty asks for huge pages too.
    table = np.empty((tokens, ROW), np.uint8)
    table[:] = 1
    works = {
        "numpy.take, default mode": fresh(lambda n: np.take(table, picks[n], axis=0, out=out)),
        "numpy.take, mode clip": fresh(
            lambda n: np.take(table, picks[n], axis=0, out=out, mode="clip")
        ),
    }
    try:
        import torch
    except ImportError:
        section.add("torch.index_select", float("nan"), "", note="torch is not installed")
    else:
        torch.set_num_threads(1)
        tensor, into = torch.from_numpy(table), torch.from_numpy(out)
        index = [torch.from_numpy(p) for p in picks]
        works["torch.index_select"] = fresh(
            lambda n: torch.index_select(tensor, 0, index[n], out=into)
        )
    addresses = [table.ctypes.data + p.astype(np.uint64) * np.uint64(ROW) for p in picks]
    works["bare, on the array"] = fresh(lambda n: bare.rows(addresses[n], ROW, out, False))
    times |= interleaved(works, repeats)

    gb = COUNT * ROW / 1e9
    for name, taken in times.items():
        t = median(taken)
        section.add(name, t * 1e6, "us", note=f"{gb / t:.2f} GB/s")
    section.add("ours / bare", ratio(times, "ours", "bare"), "x", (">=", 0.95))
    section.add(
        "ours / bare, streaming",
        ratio(times, "ours, streaming", "bare, streaming"),
        "x",
        (">=", 0.95),
    )
    section.add(
        "ours / numpy.take, default mode",
        ratio(times, "ours", "numpy.take, default mode"),
        "x",
        (">=", 1.5),
    )
    if "torch.index_select" in times:
        section.add(
            "ours / torch.index_select",
            ratio(times, "ours", "torch.index_select"),
            "x",
            (">=", 1.2),
        )
    section.add(
        "two threads / one", ratio(times, "ours, two threads", "ours"), "x", (">=", 1.7)
    )
    section.add(
        "two threads / one, streaming",
        ratio(times, "ours, streaming, two threads", "ours, streaming"),
        "x",
        (">=", 1.7),
    )
    return section
