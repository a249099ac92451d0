# SPDX-License-Identifier: Apache-2.0
"""libsac: connected to a daemon with an emulated pool, and embedded in files on /dev/shm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from house import House
from peers.work import Array, Figures, buffers, pool_bytes, run

import libsac

ROWS = 64


class SacSession:
    """A namespace whose pages have the size of the values, as 64 rows."""

    def __init__(
        self, ns: libsac.Namespace, source: Array, target: Array, count: int, stream: bool
    ) -> None:
        ring, size = source.shape
        self.stream = stream
        self.ns, self.ring = ns, ring
        self.keys = ns.keys(np.arange(count * ROWS, dtype=np.uint32))
        self.source = source.reshape(ring, ROWS, size // ROWS)
        self.target = target.reshape(ring, ROWS, size // ROWS)

    def batch(self, numbers: list[int]) -> Any:
        first, count = numbers[0], len(numbers)
        at = first % self.ring
        keys = self.keys[first : first + count]
        out = self.target[at : at + count].reshape(-1, self.target.shape[2])
        return keys, self.source[at : at + count], out

    def put(self, batch: Any) -> None:
        keys, source, _ = batch
        with self.ns.put(keys) as put:
            put.write("kv", 0, source)

    def get(self, batch: Any) -> None:
        keys, _, out = batch
        with self.ns.pin(keys) as prefix:
            prefix.gather("kv", 0, out=out, stream=self.stream)

    def exists(self, batch: Any) -> Any:
        return self.ns.lookup(batch[0])

    def found(self, answer: Any) -> int:
        return int(answer.sum())

    def clear(self) -> None:
        self.ns.evict(1 << 30)


class Sac:
    """One pool, reached one way or the other.

    stream: get with streaming stores, which suit a target that is larger than the caches and
    is not read at once, as the one here.
    """

    def __init__(self, name: str, pool: libsac.Pool, stream: bool = True) -> None:
        self.name, self._pool, self._stream = name, pool, stream

    def buffers(self, size: int, ring: int) -> tuple[Array, Array]:
        return buffers(size, ring)

    @contextmanager
    def session(self, source: Array, target: Array, count: int) -> Iterator[SacSession]:
        size = source.shape[1]
        layout = libsac.Layout([libsac.Plane("kv", [0], size // ROWS)], ROWS)
        name = f"values-{size}"
        ns = self._pool.namespace(name, layout)
        try:
            yield SacSession(ns, source, target, count, self._stream)
        finally:
            self._pool.drop(name)


def measure(repeats: int, sizes: list[int], folder: Path) -> list[Figures]:
    """Both ways, one after the other, each with a pool of the same size in folder."""
    size = pool_bytes(sizes, repeats)
    with libsac.embedded(size, folder / "embedded") as pool:
        embedded = run(Sac("libsac, embedded", pool), repeats, sizes)
    with House(folder / "daemon") as house:
        house.pool("peers", [size])
        with house.connect("peers") as pool:
            connected = run(Sac("libsac, daemon", pool), repeats, sizes)
    return [connected, embedded]
