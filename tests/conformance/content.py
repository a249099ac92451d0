# SPDX-License-Identifier: Apache-2.0
"""Rows that follow from a page's key: who knows the key knows which bytes are right."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libsac import Keys, Layout, Namespace, Plane, Prefix, Put, Sequence

Bytes = NDArray[np.uint8]

# One plane of each kind: padding behind rows, heads, compression, a window, a state.
RICH = Layout(
    [
        Plane("latent", range(3), 100, row_pitch=128),
        Plane("k", [0, 2], 32, heads=3, group="kv"),
        Plane("v", [0, 2], 48, heads=3, group="kv"),
        Plane("packed", [1], 40, tokens_per_row=4),
        Plane("window", [0, 1], 24, kind="window", window_tokens=20),
        Plane("state", [2], 72, kind="state"),
    ],
    page_tokens=16,
)
PLAIN = Layout([Plane("kv", range(2), 64)], page_tokens=16)
# Few pages fill a small pool.
LARGE = Layout([Plane("kv", range(2), 8192)], page_tokens=16)


def page(key: bytes, plane: Plane, layer: int) -> Bytes:
    """(heads, rows, row_bytes): what the plane and layer of the page of this key hold."""
    size = plane.heads * plane.rows * plane.row_bytes
    start = (
        int.from_bytes(key[:8], "little") ^ zlib.crc32(f"{plane.name}.{layer}".encode()) << 20
    )
    words = np.arange(-(-size // 8), dtype=np.uint64) + np.uint64(start)
    words *= np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(29)
    return words.view(np.uint8)[:size].reshape(plane.heads, plane.rows, plane.row_bytes)


def _one(rows: Bytes, plane: Plane, axis: int) -> Bytes:
    """Without the axis of heads where the plane has one head."""
    return rows if plane.heads > 1 else rows.squeeze(axis)


def pages(keys: Keys, plane: Plane, layer: int, which: Iterable[int]) -> Bytes:
    """(m, rows, row_bytes) or (m, heads, rows, row_bytes), as Put.write takes them."""
    chosen = [page(keys.values[i].tobytes(), plane, layer) for i in which]
    shape = (0, plane.heads, plane.rows, plane.row_bytes)
    return _one(np.stack(chosen) if chosen else np.empty(shape, np.uint8), plane, 1)


def stream(keys: Keys, plane: Plane, layer: int) -> Bytes:
    """(rows, row_bytes) or (heads, rows, row_bytes): all pages' rows one after the other."""
    chosen = [page(key.tobytes(), plane, layer) for key in keys.values]
    shape = (plane.heads, 0, plane.row_bytes)
    return _one(np.concatenate(chosen, 1) if chosen else np.empty(shape, np.uint8), plane, 0)


def write(put: Put, keys: Keys, layout: Layout) -> None:
    """Writes all that is missing."""
    for plane in layout.planes:
        which = put.missing_tails if plane.is_tail else put.missing
        for layer in plane.layers:
            put.write(plane.name, layer, pages(keys, plane, layer, which))


def put(ns: Namespace, keys: Keys, **options: Any) -> int:
    """Puts the pages with their content; how many were brought."""
    with ns.put(keys, **options) as batch:
        write(batch, keys, ns.layout)
        return batch.commit()


def tail_start(layout: Layout, pages_: int) -> int:
    """The first of so many pages whose window and state rows a prefix holds."""
    return max(0, pages_ - layout.tail_pages)


def check(prefix: Prefix | Sequence, keys: Keys, layout: Layout, pages_: int) -> None:
    """Every byte of the first pages_ pages of keys is what it must be."""
    for plane in layout.planes:
        first = tail_start(layout, pages_) * plane.rows if plane.is_tail else 0
        index = np.arange(first, pages_ * plane.rows)
        if plane.heads > 1:
            index = np.tile(index, (plane.heads, 1))
        for layer in plane.layers:
            got = prefix.gather(plane.name, layer, rows=index)
            want = stream(keys[:pages_], plane, layer)[..., first:, :]
            assert np.array_equal(got, want), f"plane {plane.name}, layer {layer}"


def check_stored(ns: Namespace, keys: Keys, pages_: int | None = None) -> None:
    """The prefix of so many pages (None: all) is stored, whole and right."""
    expected = len(keys) if pages_ is None else pages_
    with ns.pin(keys) as prefix:
        assert prefix.pages == expected
        check(prefix, keys, ns.layout, expected)


def assert_idle(ns: Namespace) -> None:
    """Nothing is pinned or being written."""
    stats = ns.stats()
    assert (stats.reserved, stats.pinned, stats.quarantined) == (0, 0, 0)
