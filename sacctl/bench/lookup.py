# SPDX-License-Identifier: Apache-2.0
"""``sacctl bench lookup``: keys found and pages pinned, against random reads of memory."""

from __future__ import annotations

import numpy as np

import libsac
from sacctl.bench.record import (
    DEFAULT_REPEATS,
    DEFAULT_SIZE,
    WARM,
    BenchRecord,
    MeasurementRecord,
    measure,
    record,
)
from sacctl.bench.space import buffer, fill, fitting_pages, temporary

__all__ = ["lookup"]

BATCH = 2048
ONE = 64  # calls of one key that are timed together: one alone is near the clock's own cost
LINE = 64
LIMIT = "two random cache lines a key, numpy.take"


def lookup(
    pool: libsac.Pool,
    *,
    pool_name: str = "",
    size: int = DEFAULT_SIZE,
    repeats: int = DEFAULT_REPEATS,
) -> BenchRecord:
    """Lookups of hits and misses and pins, in pages of 4 KiB; see ``Bencher``."""
    layout = libsac.Layout([libsac.Plane("row", [0], 1024)], 4)
    pages = fitting_pages(pool, layout, size)
    batch = min(BATCH, pages)
    rng = np.random.default_rng(1)
    with temporary(pool, layout) as ns:
        keys = ns.keys(np.arange(pages * 4, dtype=np.uint32))
        fill(ns, keys)
        turns = repeats + WARM
        picks = [keys.values[rng.integers(0, pages, batch)] for _ in range(turns)]
        hits = [libsac.Keys(values, np.zeros_like(values)) for values in picks]
        absent = rng.integers(0, 256, (batch, 32), dtype=np.uint8)
        misses = libsac.Keys(absent, np.zeros_like(absent))
        chains = [keys[a : a + batch] for a in rng.integers(0, pages - batch + 1, turns)]
        lines = buffer(max(LINE * batch, ns.info.index_bytes // LINE * LINE)).reshape(-1, LINE)
        wide = lines.view(np.uint64)
        where = [rng.integers(0, len(wide), 2 * batch) for _ in range(turns)]
        out = np.empty((2 * batch, wide.shape[1]), np.uint64)

        def random_lines(n: int) -> None:
            np.take(wide, where[n], axis=0, out=out, mode="clip")

        def random_pairs(n: int) -> None:
            for i in range(ONE):
                np.take(wide, where[n][i : i + 2], axis=0, out=out[:2], mode="clip")

        def pin(n: int) -> None:
            ns.pin(chains[n]).close()

        singles = [hit[0] for hit in hits]

        def one(n: int) -> None:
            for _ in range(ONE):
                ns.lookup(singles[n])

        def by_key(name: str, work: object, units: int = batch) -> MeasurementRecord:
            assert callable(work)
            return measure(
                name,
                work,
                random_lines if units == batch else random_pairs,
                limit_name=LIMIT,
                unit="key",
                units=units,
                repeats=repeats,
            )

        results = [
            by_key("hits", lambda n: ns.lookup(hits[n])),
            by_key("misses", lambda n: ns.lookup(misses)),
            by_key("longest prefix", lambda n: ns.longest(chains[n])),
            by_key("pin and unpin", pin),
            by_key(f"hits, one key a call, {ONE} calls", one, ONE),
        ]
        return record("lookup", pool, pool_name, ns, pages, results)
