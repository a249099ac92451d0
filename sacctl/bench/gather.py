# SPDX-License-Identifier: Apache-2.0
"""``sacctl bench gather``: rows picked at random, against copying as many bytes in order."""

from __future__ import annotations

import numpy as np

import libsac
from libsac.errors import CorruptError
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

__all__ = ["gather"]

TOKENS, ROW = 64, 1152  # MLA latents
COUNT = 2048
LIMIT = "memcpy of the same bytes, in order"


def gather(
    pool: libsac.Pool,
    *,
    pool_name: str = "",
    size: int = DEFAULT_SIZE,
    repeats: int = DEFAULT_REPEATS,
) -> BenchRecord:
    """Gathers of 2,048 random rows of 1152 B; see ``Bencher``.

    Raises CorruptError if a row that comes out is not the one that was written.
    """
    layout = libsac.Layout([libsac.Plane("latent", [0], ROW)], TOKENS)
    pages = fitting_pages(pool, layout, size)
    count = min(COUNT, pages * TOKENS)
    rng = np.random.default_rng(1)
    with temporary(pool, layout) as ns:
        keys = ns.keys(np.arange(pages * TOKENS, dtype=np.uint32))
        fill(ns, keys)
        turns = repeats + WARM
        picks = [rng.integers(0, pages * TOKENS, count) for _ in range(turns)]
        # As large as the pages, so that the limit reads memory too and not the cache.
        flat = buffer(max(1, pages * TOKENS // count) * count * ROW).reshape(-1, count, ROW)
        target, limit_target = (
            buffer(count * ROW).reshape(count, ROW),
            buffer(count * ROW).reshape(count, ROW),
        )
        with ns.pin(keys) as prefix:
            if prefix.pages < pages:
                raise CorruptError(
                    f"of {pages} pages put only {prefix.pages} are there", object=ns.name
                )
            prefix.gather("latent", 0, picks[0], out=target)
            if not (target == target[0]).all() or target[0, 0] != 1:
                raise CorruptError("a row is not the one that was written", object=ns.name)

            def rows(threads: int, stream: bool) -> MeasurementRecord:
                def work(n: int) -> None:
                    prefix.gather(
                        "latent", 0, picks[n], out=target, threads=threads, stream=stream
                    )

                def copy(n: int) -> None:
                    np.copyto(limit_target, flat[n % len(flat)])

                how = "one thread" if threads == 1 else "threads by size"
                return measure(
                    f"{how}, streaming stores" if stream else how,
                    work,
                    copy,
                    limit_name=LIMIT,
                    unit="row",
                    units=count,
                    bytes_=count * ROW,
                    repeats=repeats,
                )

            results = [rows(threads, stream) for threads in (1, 0) for stream in (False, True)]
        return record("gather", pool, pool_name, ns, pages, results)
