# SPDX-License-Identifier: Apache-2.0
"""A hot buffer on the CPU's CUDA, beside a reference lane for each of its lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import libsac
from libsac import Layout, Plane
from libsac.hotbuffer.buffer import HotBuffer
from libsac.hotbuffer.reference import Lane

Bytes = NDArray[np.uint8]


class CpuBuffer(HotBuffer):
    """Its GPU memory is the CPU's."""

    _kind = "cpu"


def ints(values: Any, device: str = "cpu") -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.int32)).to(device)


class Pool:
    """A pool with one namespace, and what every row of every token is."""

    def __init__(
        self,
        layout: Layout,
        seed: int,
        path: Path | None = None,
        size: str = "64M",
        pool: libsac.Pool | None = None,
        name: str = "hot",
    ) -> None:
        self.pool = libsac.embedded(size, path=path) if pool is None else pool
        self.layout = layout
        self.ns = self.pool.namespace(name, layout)
        self.seed = seed

    def rows(self, plane: Plane, layer: int, salt: int, first: int, end: int) -> Bytes:
        """(heads, rows, row_bytes): rows first .. end-1 of a request called salt."""
        return self.chosen(plane, layer, salt, np.arange(first, end))

    def chosen(self, plane: Plane, layer: int, salt: int, rows: Any) -> Bytes:
        """(heads, rows, row_bytes): these rows."""
        number = self.layout.planes.index(plane)
        of = ((self.seed * 8 + number) * 64 + layer) * 64 + salt
        head = np.arange(plane.heads, dtype=np.uint64)[:, None, None]
        row = np.asarray(rows, np.uint64)[None, :, None]
        byte = np.arange(plane.row_bytes, dtype=np.uint64)[None, None]
        mixed = (row * np.uint64(0x9E3779B97F4A7C15)) ^ (byte * np.uint64(0xC2B2AE3D27D4EB4F))
        mixed = mixed ^ ((head + np.uint64(of * 31 + 1)) * np.uint64(0x165667B19E3779F9))
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        made: Bytes = (mixed >> np.uint64(56)).astype(np.uint8)
        return made

    def tokens(self, salt: int, count: int) -> list[int]:
        return [salt * 100000 + i for i in range(count)]

    def put(self, salt: int, pages: int) -> libsac.Prefix:
        """A pinned prefix of so many pages."""
        keys = self.ns.keys(self.tokens(salt, pages * self.layout.page_tokens))
        if self.ns.longest(keys) == pages:
            return self.ns.pin(keys)
        with self.ns.put(keys) as put:
            for plane in self.layout.planes:
                for layer in plane.layers:
                    made = self.rows(plane, layer, salt, 0, pages * plane.rows)
                    shape = (plane.heads, pages, plane.rows, plane.row_bytes)
                    paged = made.reshape(shape).swapaxes(0, 1)
                    put.write(plane.name, layer, paged if plane.heads > 1 else paged[:, 0])
        return self.ns.pin(keys)

    def write(self, sequence: libsac.Sequence, salt: int, first: int, end: int) -> None:
        """Rows of tokens first .. end-1 by the CPU."""
        for plane in self.layout.planes:
            per = plane.tokens_per_row
            for layer in plane.layers:
                made = self.rows(plane, layer, salt, first // per, end // per)
                sequence.write(
                    plane.name,
                    layer,
                    made if plane.heads > 1 else made[0],
                    start=first // per,
                )


class Beside:
    """Resolves in the buffer and in reference lanes, and compares slots and bytes."""

    def __init__(
        self,
        pool: Pool,
        group: str,
        policy: str = "lru",
        *,
        on: str = "cpu",
        **options: Any,
    ) -> None:
        self.pool, self.group, self.on = pool, group, on
        made = CpuBuffer if on == "cpu" else HotBuffer
        self.buffer = made(pool.ns, policy=policy, **options)
        self.policy = policy
        self.plane = pool.layout.plane(group)
        self.heads = self.plane.heads
        self.planes = [p for p in pool.layout.planes if p.group == self.plane.group]
        self.salts: dict[int, int] = {}
        self.units: dict[int, int] = {}
        self.lanes: dict[tuple[int, int, int], Lane] = {}  # request, head, layer

    def bind(
        self, request: int, salt: int, source: Any, units: int, direct: bool = False
    ) -> None:
        self.buffer.bind(request, source, direct=direct)
        self.salts[request], self.units[request] = salt, units
        for head in range(self.heads):
            for layer in self.plane.layers:
                self.lanes[request, head, layer] = Lane(self.buffer.slots, self.policy)

    def step(
        self,
        layer: int,
        requests: Sequence[int],
        selections: NDArray[np.int32],
        dead: Iterable[int] = (),
        check_bytes: bool = True,
    ) -> None:
        """selections: (B, K), or (B, H, K) where the planes have heads."""
        dead = set(dead)
        lanes = selections.reshape(len(requests), self.heads, -1)
        scores = None
        if self.policy == "lru_score":
            drawn = np.random.default_rng(int(lanes.sum()) & 0xFFFF).random(lanes.shape)
            scores = drawn.astype(np.float32)
        got = self.buffer.resolve(
            self.group,
            layer,
            ints(requests, self.on),
            ints(selections, self.on),
            scores=None
            if scores is None
            else torch.from_numpy(scores.reshape(selections.shape)).to(self.on),
        )
        assert got.shape == selections.shape
        assert got.dtype == torch.int32
        found = got.cpu().numpy().reshape(lanes.shape)
        for b, request in enumerate(requests):
            for head in range(self.heads):
                want = self.lanes[request, head, layer].resolve(
                    lanes[b, head],
                    self.units[request],
                    dead,
                    None if scores is None else scores[b, head],
                )
                lane = request * self.heads + head
                slots = np.where(want.slots < 0, -1, lane * self.buffer.slots + want.slots)
                np.testing.assert_array_equal(found[b, head], slots)
                if check_bytes:
                    self.check(layer, request, head, lanes[b, head], found[b, head])

    def check(self, layer: int, request: int, head: int, selection: Any, slots: Any) -> None:
        """Every row that was selected lies at its slot."""
        block = self.buffer.block
        there = np.asarray(slots) >= 0
        at = torch.from_numpy(np.asarray(slots)[there].astype(np.int64)).to(self.on)
        units = np.asarray(selection)[there].astype(np.int64)
        rows = (units[:, None] * block + np.arange(block)).reshape(-1)
        for plane in self.planes:
            want = self.pool.chosen(plane, layer, self.salts[request], rows)[head]
            got = self.buffer.rows(plane.name, layer)[at].cpu().numpy()
            np.testing.assert_array_equal(got.reshape(want.shape), want)
