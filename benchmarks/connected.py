# SPDX-License-Identifier: Apache-2.0
"""Lookup, pin, gather and view: connected to a daemon against embedded, in one run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from common import Section, interleaved, median, ratio
from house import House, pool_size, shm
from numpy.typing import NDArray
from pages import BATCH, fill, small_layout

import libsac

GATHER_ROWS, GATHER_ROW, GATHER_TOKENS = 2048, 1152, 64
INDEX_PAGES = 1 << 18
SIDES = ("embedded", "connected")


class Picks:
    """What both sides ask for in a round, drawn beforehand."""

    def __init__(self, rounds: int, pages: int, rows: int) -> None:
        rng = np.random.default_rng(7)
        self.starts = rng.integers(0, pages - BATCH, rounds)
        self.pages = [rng.integers(0, pages, BATCH) for _ in range(rounds)]
        self.rows = [rng.integers(0, rows, GATHER_ROWS) for _ in range(rounds)]


class Side:
    """The same two namespaces, filled alike, in one pool; their calls by name."""

    def __init__(self, pool: libsac.Pool, pages: int, rows: int, picks: Picks) -> None:
        self.small = pool.namespace("small", small_layout())
        keys = fill(self.small, pages)
        layout = libsac.Layout([libsac.Plane("latent", [0], GATHER_ROW)], GATHER_TOKENS)
        large = pool.namespace("large", layout)
        count = rows // GATHER_TOKENS
        chain = large.keys(np.arange(count * GATHER_TOKENS, dtype=np.uint32))
        block = np.ones((64, GATHER_TOKENS, GATHER_ROW), np.uint8)
        for at in range(0, count, 64):
            with large.put(chain[at : at + 64]) as put:
                put.write("latent", 0, block[: len(put.missing)])
        self.prefix = large.pin(chain)
        assert self.prefix.pages == count
        self.out = np.zeros((GATHER_ROWS, GATHER_ROW), np.uint8)
        self.scattered = [
            libsac.Keys(values, np.zeros_like(values))
            for values in (keys.values[p] for p in picks.pages)
        ]
        self.chains = [keys[a : a + BATCH] for a in picks.starts]
        self.rows: list[NDArray[np.int64]] = picks.rows

    def works(self) -> dict[str, Callable[[int], object]]:
        small, prefix, one = self.small, self.prefix, self.chains[0][0]
        return {
            "lookup": lambda n: small.lookup(self.scattered[n]),
            "longest": lambda n: small.longest(self.chains[n]),
            "lookup of one key": lambda n: small.lookup(one),
            "pin": lambda n: small.pin(self.chains[n]).close(),
            "pin, random pages": lambda n: small.pin(self.scattered[n]).close(),
            "gather": lambda n: prefix.gather(
                "latent", 0, self.rows[n], out=self.out, threads=1
            ),
            "view of a page": lambda n: prefix.view("latent", 0, n % 9),
        }


# Unit, what a call has of it, calls in a row.
KINDS = {
    "lookup": ("us/key", BATCH, 1),
    "longest": ("us/key", BATCH, 1),
    "lookup of one key": ("us", 1, 200),
    "pin": ("us/page", BATCH, 1),
    "pin, random pages": ("us/page", BATCH, 1),
    "gather": ("us/row", GATHER_ROWS, 5),
    "view of a page": ("us", 1, 200),
}


def run(repeats: int, pages: int = INDEX_PAGES, rows: int = 1 << 19) -> Section:
    """Both pools are files on /dev/shm, filled alike; their calls take turns."""
    data = pages * 4096 + rows * GATHER_ROW
    section = Section(
        f"connected against embedded, {pages} pages and {rows * GATHER_ROW >> 20} MiB of rows",
        "embedded: the same calls, the same kind of memory, in the same run",
    )
    picks = Picks(repeats, pages, rows)
    with shm() as folder, House(folder / "house") as house:
        house.pool("bench", [pool_size(data)])
        own = libsac.embedded(pool_size(data), folder / "embedded")
        with own, house.connect("bench") as served:
            sides = [Side(pool, pages, rows, picks) for pool in (own, served)]
            for what, (unit, units, burst) in KINDS.items():
                works = dict(zip(SIDES, (side.works()[what] for side in sides), strict=True))
                times = interleaved(works, repeats, burst=burst)
                for name in SIDES:
                    section.add(f"{what}, {name}", median(times[name]) / units * 1e6, unit)
                share = ratio(times, "connected", "embedded")
                section.add(f"{what}: embedded / connected", share, "x", (">=", 0.95))
            for side in sides:
                side.prefix.close()
    return section
