# SPDX-License-Identifier: Apache-2.0
"""Records of a benchmark, and how a work is timed against its limit."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Protocol, TypedDict

import libsac

__all__ = [
    "DEFAULT_REPEATS",
    "DEFAULT_SIZE",
    "BenchRecord",
    "Bencher",
    "MeasurementRecord",
    "measure",
    "record",
]

DEFAULT_SIZE = 256 << 20
DEFAULT_REPEATS = 51
WARM = 3


class MeasurementRecord(TypedDict):
    """One work and its limit, timed by turns. Times are of one call.

    unit, units: what a call does and how many ("key", 2048). bytes: moved by a call, 0 where
    none are. ratio: the median of time / limit, round by round: 1.0 is as fast as the limit,
    2.0 takes twice as long.
    """

    name: str
    unit: str
    units: int
    bytes: int
    calls: int
    p50_ns: int
    p99_ns: int
    limit: str
    limit_ns: int
    ratio: float


class BenchRecord(TypedDict):
    """What one bench found. size_bytes: of the pages it wrote, in pages of page_bytes.

    page_size_obtained: of the kernel's pages behind the pool. cpus: that this process may use.
    """

    what: str
    pool: str
    namespace: str
    size_bytes: int
    page_bytes: int
    pages: int
    page_size_obtained: int
    cpus: int
    results: list[MeasurementRecord]


class Bencher(Protocol):
    """A function of ``BENCHES``.

    pool_name: for the record. size: bytes to fill; less where the pool has less room.
    repeats: timed calls of each work. Raises libsac's errors, NoSpaceError where not even a
    small namespace fits.
    """

    def __call__(
        self,
        pool: libsac.Pool,
        *,
        pool_name: str = "",
        size: int = DEFAULT_SIZE,
        repeats: int = DEFAULT_REPEATS,
    ) -> BenchRecord: ...


def measure(
    name: str,
    work: Callable[[int], object],
    limit: Callable[[int], object],
    *,
    limit_name: str,
    unit: str,
    units: int,
    bytes_: int = 0,
    repeats: int = DEFAULT_REPEATS,
    prepare: Callable[[int], object] | None = None,
) -> MeasurementRecord:
    """Calls work and limit by turns, so that what else runs here hits both.

    Both get the number of the round, to take other keys or rows each time; prepare is called
    before each round and not timed.
    """
    taken: list[int] = []
    limits: list[int] = []
    clock = time.perf_counter_ns
    for turn in range(-WARM, repeats):
        if prepare is not None:
            prepare(turn + WARM)
        start = clock()
        work(turn + WARM)
        middle = clock()
        limit(turn + WARM)
        end = clock()
        if turn >= 0:
            taken.append(middle - start)
            limits.append(max(1, end - middle))
    ordered = sorted(taken)
    return MeasurementRecord(
        name=name,
        unit=unit,
        units=units,
        bytes=bytes_,
        calls=repeats,
        p50_ns=int(statistics.median(ordered)),
        p99_ns=ordered[min(repeats - 1, repeats * 99 // 100)],
        limit=limit_name,
        limit_ns=int(statistics.median(limits)),
        ratio=statistics.median(a / b for a, b in zip(taken, limits, strict=True)),
    )


def record(
    what: str,
    pool: libsac.Pool,
    pool_name: str,
    ns: libsac.Namespace,
    pages: int,
    results: list[MeasurementRecord],
) -> BenchRecord:
    """The record of a bench whose namespace is still there."""
    page_bytes = ns.info.body_bytes
    return BenchRecord(
        what=what,
        pool=pool_name,
        namespace=ns.name,
        size_bytes=pages * page_bytes,
        page_bytes=page_bytes,
        pages=pages,
        page_size_obtained=pool.info.page_size_obtained,
        cpus=len(os.sched_getaffinity(0)),
        results=results,
    )
