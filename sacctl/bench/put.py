# SPDX-License-Identifier: Apache-2.0
"""``sacctl bench put``: pages written, reserve to commit, against memcpy."""

from __future__ import annotations

import numpy as np

import libsac
from sacctl.bench.record import (
    DEFAULT_REPEATS,
    DEFAULT_SIZE,
    WARM,
    BenchRecord,
    measure,
    record,
)
from sacctl.bench.space import buffer, fill, fitting_pages, temporary

__all__ = ["put"]

ROWS, ROW = 64, 4096  # a page of 256 KiB
BATCH = 32
SOURCES = 4  # batches to copy from by turns
LIMIT = "memcpy of the same bytes"


def put(
    pool: libsac.Pool,
    *,
    pool_name: str = "",
    size: int = DEFAULT_SIZE,
    repeats: int = DEFAULT_REPEATS,
) -> BenchRecord:
    """Puts of pages of 256 KiB, one a call and in batches; see ``Bencher``.

    The room is touched beforehand: one fill of all pages, which are then evicted.
    """
    layout = libsac.Layout([libsac.Plane("kv", [0], ROW)], ROWS)
    page = layout.page_bytes
    pages = fitting_pages(pool, layout, size)
    batch = min(BATCH, pages // 2)
    with temporary(pool, layout) as ns:
        keys = ns.keys(np.arange(pages * ROWS, dtype=np.uint32))
        fill(ns, keys)
        source = buffer(SOURCES * batch * page).reshape(SOURCES, batch, ROWS, ROW)
        target = buffer(SOURCES * batch * page).reshape(source.shape)
        slots = pages // batch

        def make_room(n: int) -> None:
            if n % slots == 0:
                ns.evict(pages)

        def many(n: int) -> None:
            at = n % slots * batch
            with ns.put(keys[at : at + batch]) as p:
                p.write("kv", 0, source[n % SOURCES])

        def copy_many(n: int) -> None:
            np.copyto(target[n % SOURCES], source[n % SOURCES])

        def one(n: int) -> None:
            with ns.put(keys[n]) as p:
                p.write("kv", 0, source[n // batch % SOURCES, n % batch : n % batch + 1])

        def copy_one(n: int) -> None:
            at = n // batch % SOURCES, n % batch
            np.copyto(target[at], source[at])

        many_result = measure(
            f"put, batches of {batch}",
            many,
            copy_many,
            limit_name=LIMIT,
            unit="page",
            units=batch,
            bytes_=batch * page,
            repeats=repeats,
            prepare=make_room,
        )
        ns.evict(pages)
        one_result = measure(
            "put, one page a call",
            one,
            copy_one,
            limit_name=LIMIT,
            unit="page",
            units=1,
            bytes_=page,
            repeats=min(repeats, pages - WARM),
        )
        return record("put", pool, pool_name, ns, pages, [one_result, many_result])
