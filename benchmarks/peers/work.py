# SPDX-License-Identifier: Apache-2.0
"""The work that every store gets, the same for all: needs Python and numpy only.

One client puts and gets values of 64 KiB to 4 MiB, one key a call and 32 keys a call, and asks
which keys exist. Values are copied from and to memory of the client that is larger than the
caches. memcpy of the same bytes takes turns with every call: it is the limit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.uint8]

BATCH = 32
EXIST_BYTES = 4096
EXIST_COUNTS = (1, 64, 2048)
SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
RING_BYTES = 128 << 20  # of each side's memory
WARM = 2
SINGLES = 8  # calls with one key for each with BATCH


class Session(Protocol):
    """A store open for values of one size. Numbers name the keys: 0 to count-1.

    batch() prepares the keys and buffers of a call, which is not timed; its result is handed to
    the others. put() and get() raise where a value is not stored or not whole. found() counts
    the keys in an answer of exists(), not timed.
    """

    def batch(self, numbers: list[int]) -> Any: ...
    def put(self, batch: Any) -> None: ...
    def get(self, batch: Any) -> None: ...
    def exists(self, batch: Any) -> Any: ...
    def found(self, answer: Any) -> int: ...
    def clear(self) -> None: ...


class Store(Protocol):
    """name: for the table. session(): source and target are (ring, size) arrays; value n is
    copied from source[n % ring] and to target[n % ring]. A store that must have memory of its
    own for them gives it from buffers()."""

    name: str

    def buffers(self, size: int, ring: int) -> tuple[Array, Array]: ...
    def session(
        self, source: Array, target: Array, count: int
    ) -> AbstractContextManager[Session]: ...


@dataclass
class Figures:
    """What one store did. Keys of the dicts are sizes or counts; values us a key (us a call
    for exists)."""

    name: str
    memcpy: dict[int, float] = field(default_factory=dict)
    put: dict[int, float] = field(default_factory=dict)
    get: dict[int, float] = field(default_factory=dict)
    put_batch: dict[int, float] = field(default_factory=dict)
    get_batch: dict[int, float] = field(default_factory=dict)
    exists: dict[int, float] = field(default_factory=dict)
    # Against memcpy, the median of the rounds' ratios.
    put_ratio: dict[int, float] = field(default_factory=dict)
    get_ratio: dict[int, float] = field(default_factory=dict)
    put_batch_ratio: dict[int, float] = field(default_factory=dict)
    get_batch_ratio: dict[int, float] = field(default_factory=dict)


def counts(repeats: int) -> tuple[int, int, int]:
    """Calls with one key, calls with BATCH keys, and values that both need."""
    singles, many = WARM + repeats * SINGLES, WARM + repeats
    return singles, many, max(singles, many * BATCH)


def pool_bytes(sizes: Iterable[int], repeats: int) -> int:
    """Room for all values of the largest size, and a rest for what a store keeps beside."""
    values = max(sizes) * counts(repeats)[2]
    return (values + values // 16 + (96 << 20)) >> 21 << 21


def buffers(size: int, ring: int) -> tuple[Array, Array]:
    """Touched memory for a source, each value with bytes of its own, and a target."""
    source, target = np.empty((ring, size), np.uint8), np.empty((ring, size), np.uint8)
    return source, target


def mark(source: Array, target: Array) -> None:
    """Fills a source so that values differ, and touches the target."""
    source[:] = (np.arange(source.shape[1]) % 251).astype(np.uint8)
    source[:, :8].view("<u8")[:, 0] = np.arange(len(source)) + 1
    target[:] = 0


def rounds(
    work: Callable[[Any], None],
    batches: Iterable[Any],
    limit: Callable[[int], None],
) -> tuple[list[float], list[float]]:
    """Seconds of each call, and of the limit's call after it."""
    taken, limits = [], []
    for n, batch in enumerate(batches):
        start = time.perf_counter()
        work(batch)
        middle = time.perf_counter()
        limit(n)
        end = time.perf_counter()
        taken.append(middle - start)
        limits.append(end - middle)
    return taken[WARM:], limits[WARM:]


def sized(store: Store, figures: Figures, size: int, repeats: int) -> None:
    """Puts and gets of values of one size: one key a call, then BATCH keys a call.

    The store is filled with all of them once before, so that its memory has been touched.
    """
    ring = max(BATCH, RING_BYTES // size)
    singles, many, count = counts(repeats)
    source, target = store.buffers(size, ring)
    mark(source, target)
    from_, to = buffers(size, ring)
    mark(from_, to)

    def copier(keys: int) -> Callable[[int], None]:
        def copy(n: int) -> None:
            for i in range(n * keys, (n + 1) * keys):
                np.copyto(to[i % ring], from_[i % ring])

        return copy

    with store.session(source, target, count) as session:
        one = [session.batch([n]) for n in range(singles)]
        batches = [session.batch(list(range(n * BATCH, (n + 1) * BATCH))) for n in range(many)]
        for batch in batches:
            session.put(batch)
        session.clear()

        def pair(
            calls: list[Any], keys: int, to_put: dict[int, float], to_get: dict[int, float]
        ) -> tuple[list[float], list[float], list[float]]:
            puts, limit_a = rounds(session.put, calls, copier(keys))
            target[:] = 0
            gets, limit_b = rounds(session.get, calls, copier(keys))
            last = [i % ring for i in range((len(calls) - 1) * keys, len(calls) * keys)]
            if not np.array_equal(target[last], source[last]):
                raise RuntimeError(f"{store.name}: got other bytes than were put")
            to_put[size] = statistics.median(puts) / keys * 1e6
            to_get[size] = statistics.median(gets) / keys * 1e6
            session.clear()
            ratios = [
                [a / b for a, b in zip(*pair_, strict=True)]
                for pair_ in ((puts, limit_a), (gets, limit_b))
            ]
            return ratios[0], ratios[1], limit_a + limit_b

        put, get, limits = pair(one, 1, figures.put, figures.get)
        figures.put_ratio[size] = statistics.median(put)
        figures.get_ratio[size] = statistics.median(get)
        figures.memcpy[size] = statistics.median(limits) * 1e6
        put, get, _ = pair(batches, BATCH, figures.put_batch, figures.get_batch)
        figures.put_batch_ratio[size] = statistics.median(put)
        figures.get_batch_ratio[size] = statistics.median(get)


def existing(store: Store, figures: Figures, repeats: int) -> None:
    """Asks for keys that are there, of small values."""
    most = max(EXIST_COUNTS)
    source, target = store.buffers(EXIST_BYTES, most)
    mark(source, target)
    with store.session(source, target, most) as session:
        for at in range(0, most, BATCH):
            session.put(session.batch(list(range(at, at + BATCH))))
        for count in EXIST_COUNTS:
            batch = session.batch(list(range(count)))
            taken = []
            for _ in range(WARM + repeats * SINGLES):
                start = time.perf_counter()
                answer = session.exists(batch)
                taken.append(time.perf_counter() - start)
                if session.found(answer) != count:
                    raise RuntimeError(f"{store.name}: not all of {count} keys were found")
            figures.exists[count] = statistics.median(taken[WARM:]) * 1e6
        session.clear()


def run(store: Store, repeats: int, sizes: Iterable[int] = SIZES) -> Figures:
    """All of it, for one store."""
    figures = Figures(store.name)
    for size in sizes:
        sized(store, figures, size, repeats)
    existing(store, figures, repeats)
    return figures
