# SPDX-License-Identifier: Apache-2.0
"""Gathering rows: every kind of plane, index and target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conformance.backends import OpenPool
from conformance.content import PLAIN, RICH, put, stream, tail_start

from libsac import Keys, Namespace, Prefix, errors

PAGES = 9
TOKENS = PAGES * 16


@pytest.fixture
def ns(open_pool: OpenPool) -> Namespace:
    return open_pool().namespace("n", layout=RICH)


@pytest.fixture
def keys(ns: Namespace) -> Keys:
    keys = ns.keys(range(TOKENS))
    put(ns, keys)
    return keys


@pytest.fixture
def prefix(ns: Namespace, keys: Keys) -> Iterator[Prefix]:
    with ns.pin(keys) as prefix:
        yield prefix


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint16, list, tuple, range])
def test_kinds_of_index(prefix: Prefix, keys: Keys, kind: Any) -> None:
    tokens = range(1, TOKENS, 7)
    index: Any = tokens
    if issubclass(kind, np.generic):
        index = np.array(tokens, kind)
    elif kind is not range:
        index = kind(tokens)
    got = prefix.gather("latent", 1, index)
    assert got.dtype == np.uint8
    assert np.array_equal(got, stream(keys, RICH.plane("latent"), 1)[list(tokens)])


@pytest.mark.parametrize("threads", [0, 1, 2, 7])
@pytest.mark.parametrize("stream_stores", [False, True])
def test_any_order_with_repeats_and_holes(
    prefix: Prefix, keys: Keys, rng: np.random.Generator, threads: int, stream_stores: bool
) -> None:
    index = rng.integers(-1, TOKENS, 3000)
    all_rows = stream(keys, RICH.plane("latent"), 2)
    want = np.where(index[:, None] < 0, 0, all_rows[index]).astype(np.uint8)
    out = np.full((3000, 100), 0xAB, np.uint8)
    got = prefix.gather("latent", 2, index, out=out, threads=threads, stream=stream_stores)
    assert got is out
    assert np.array_equal(out, want)


def test_strided_index(prefix: Prefix, keys: Keys) -> None:
    index = np.arange(TOKENS)[::-3]
    got = prefix.gather("latent", 0, index)
    assert np.array_equal(got, stream(keys, RICH.plane("latent"), 0)[::-3])


def test_heads(prefix: Prefix, keys: Keys, rng: np.random.Generator) -> None:
    plane = RICH.plane("v")
    rows = stream(keys, plane, 2)  # (heads, tokens, row)
    index = rng.integers(0, TOKENS, (3, 50))
    got = prefix.gather("v", 2, index)
    assert got.shape == (3, 50, 48)
    assert np.array_equal(got, np.stack([rows[h][index[h]] for h in range(3)]))
    for head in range(3):
        assert np.array_equal(prefix.gather("v", 2, index[0], head=head), rows[head][index[0]])
    assert np.array_equal(prefix.gather("v", 2), rows)
    assert np.array_equal(prefix.gather("v", 2, head=1), rows[1])
    # One selection for all heads costs no copy of the index.
    shared = np.broadcast_to(index[0], (3, 50))
    assert np.array_equal(prefix.gather("v", 2, shared), rows[:, index[0]])


def test_compressed_planes(prefix: Prefix, keys: Keys) -> None:
    rows = stream(keys, RICH.plane("packed"), 1)
    tokens = np.array([0, 3, 4, -1, TOKENS - 1, 17])
    want = rows[tokens // 4]
    want[3] = 0
    assert np.array_equal(prefix.gather("packed", 1, tokens), want)
    assert np.array_equal(prefix.gather("packed", 1, rows=[0, TOKENS // 4 - 1]), rows[[0, -1]])
    assert np.array_equal(prefix.gather("packed", 1), rows)
    for bad in (-2, -4, -5, TOKENS):
        with pytest.raises(errors.RangeError, match="packed"):
            prefix.gather("packed", 1, [bad])


def test_window_and_state_planes(prefix: Prefix, keys: Keys) -> None:
    first = tail_start(RICH, PAGES) * 16
    rows = stream(keys, RICH.plane("window"), 1)
    tokens = np.arange(first, TOKENS)
    assert np.array_equal(prefix.gather("window", 1, tokens), rows[first:])
    with pytest.raises(errors.RangeError, match="window"):
        prefix.gather("window", 1, [first - 1])
    state = stream(keys, RICH.plane("state"), 2)
    assert np.array_equal(prefix.gather("state", 2, rows=[PAGES - 1]), state[-1:])
    with pytest.raises(errors.ArgumentError, match="rows, not tokens"):
        prefix.gather("state", 2, [TOKENS - 1])


@pytest.mark.parametrize("plane", ["latent", "k", "packed"])
def test_out_with_strides(prefix: Prefix, keys: Keys, plane: str) -> None:
    spec = RICH.plane(plane)
    lead = (3,) if spec.heads > 1 else ()
    index = np.arange(spec.rows * PAGES)[::2]
    shape = (*lead, len(index), spec.row_bytes)
    room = np.full((*(n * 2 for n in shape[:-1]), shape[-1] + 3), 0xCD, np.uint8)
    window = (*(slice(1, None, 2) for _ in shape[:-1]), slice(2, 2 + spec.row_bytes))
    got = prefix.gather(
        plane, spec.layers[0], rows=np.broadcast_to(index, shape[:-1]), out=room[window]
    )
    want = stream(keys, spec, spec.layers[0])[..., ::2, :]
    assert np.array_equal(got, want)
    assert np.array_equal(room[window], want)
    room[window] = 0xCD
    assert (room == 0xCD).all()  # nothing beside the rows was touched


def test_out_of_another_dtype(prefix: Prefix, keys: Keys) -> None:
    out = np.empty((2, 5, 10), np.uint16)
    prefix.gather("latent", 0, [5, 8], out=out)
    want = stream(keys, RICH.plane("latent"), 0)[[5, 8]]
    assert np.array_equal(out.view(np.uint8).reshape(2, 100), want)


def test_a_batch_of_requests(ns: Namespace, rng: np.random.Generator) -> None:
    batch = [ns.keys(range(i, i + 16 * n)) for i, n in ((0, 1), (5000, 8), (9000, 3))]
    for keys in batch:
        put(ns, keys)
    prefixes = [ns.pin(keys) for keys in batch]
    index = np.stack([rng.integers(-1, keys_.tokens, 40) for keys_ in prefixes])
    got = ns.gather("latent", 1, prefixes, index.astype(np.int32))
    assert got.shape == (3, 40, 100)
    for b, keys in enumerate(batch):
        rows = stream(keys, RICH.plane("latent"), 1)
        want = np.where(index[b][:, None] < 0, 0, rows[index[b]])
        assert np.array_equal(got[b], want)
    heads = np.stack([rng.integers(0, p.tokens, (3, 10)) for p in prefixes])
    out = np.empty((3, 3, 10, 64), np.uint8)[..., 7:55]
    ns.gather("v", 2, prefixes, heads, out=out)
    one = ns.gather("v", 2, prefixes, heads[:, 1], head=1)
    for b, keys in enumerate(batch):
        rows = stream(keys, RICH.plane("v"), 2)
        assert np.array_equal(out[b], np.stack([rows[h][heads[b, h]] for h in range(3)]))
        assert np.array_equal(one[b], rows[1][heads[b, 1]])
    packed = ns.gather("packed", 1, prefixes[1:], [[0, 5], [9, -1]])
    assert np.array_equal(packed[0], stream(batch[1], RICH.plane("packed"), 1)[[0, 1]])
    assert not packed[1, 1].any()
    assert ns.gather("latent", 1, [], np.empty((0, 4), np.int64)).shape == (0, 4, 100)
    with pytest.raises(errors.ArgumentError, match=r"prefixes"):
        ns.gather("latent", 1, prefixes, index[:2])
    with pytest.raises(errors.ArgumentError, match=r"prefixes, heads, k"):
        ns.gather("v", 2, prefixes[:2], np.zeros((3, 2, 4), np.int64))
    with pytest.raises(errors.RangeError, match="request 1"):
        ns.gather("latent", 1, prefixes, np.full((3, 1), 16) * [[0], [99], [0]])
    with pytest.raises(errors.ArgumentError, match="tokens or rows"):
        ns.gather("latent", 1, prefixes)


def test_a_batch_with_a_foreign_prefix(open_pool: OpenPool) -> None:
    pool = open_pool()
    a, b = pool.namespace("a", layout=PLAIN), pool.namespace("b", layout=PLAIN)
    keys = a.keys(range(16))
    put(a, keys)
    with a.pin(keys) as prefix, pytest.raises(errors.ArgumentError, match="another namespace"):
        b.gather("kv", 0, [prefix], [[0]])


def test_counted_bytes(ns: Namespace, prefix: Prefix) -> None:
    before = ns.stats()
    prefix.gather("latent", 0, [1, -1, 2])
    prefix.gather("k", 0, np.zeros((3, 4), np.int64))
    after = ns.stats()
    assert after.rows_gathered - before.rows_gathered == 2 + 12
    assert after.bytes_gathered - before.bytes_gathered == 2 * 100 + 12 * 32


def test_views(ns: Namespace, keys: Keys) -> None:
    prefix = ns.pin(keys)
    latent = prefix.view("latent", 2, 4)
    heads = prefix.view("k", 0, 8)
    assert np.array_equal(latent, stream(keys, RICH.plane("latent"), 2)[64:80])
    assert np.array_equal(heads, stream(keys, RICH.plane("k"), 0)[:, 128:144])
    for array in (latent, heads):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match=r"WRITEABLE|writeable"):
            array.flags.writeable = True
    with pytest.raises(errors.RangeError):
        prefix.view("latent", 2, PAGES)
    with pytest.raises(errors.ArgumentError):
        prefix.view("latent", 2, -1)
    with pytest.raises(errors.RangeError):
        prefix.view("window", 1, 0)
    prefix.close()
    with pytest.raises(errors.ClosedError):
        prefix.gather("latent", 0, [0])
    # The views keep the pages: nothing of them can be evicted.
    pinned = ns.stats().pinned
    assert pinned == PAGES + 2
    ns.evict(1000)
    assert np.array_equal(latent, stream(keys, RICH.plane("latent"), 2)[64:80])
    del latent, heads, array
    assert ns.stats().pinned == 0


def test_what_gather_refuses(prefix: Prefix) -> None:
    with pytest.raises(errors.NotFoundError, match="'nope'"):
        prefix.gather("nope", 0, [0])
    for layer in (9, -1, 1 << 33):
        with pytest.raises((errors.RangeError, errors.ArgumentError), match="layer"):
            prefix.gather("latent", layer, [0])
    for bad in (TOKENS, -2, 1 << 40, -(1 << 40)):
        with pytest.raises(errors.RangeError, match=str(bad)):
            prefix.gather("latent", 0, np.array([0, bad]))
    for head in (3, -1):
        with pytest.raises((errors.RangeError, errors.ArgumentError), match="head"):
            prefix.gather("k", 0, [0], head=head)
    with pytest.raises(errors.ArgumentError, match="float64"):
        prefix.gather("latent", 0, [0.5])
    with pytest.raises(errors.ArgumentError, match="uint64"):
        prefix.gather("latent", 0, np.array([1], np.uint64))
    with pytest.raises(errors.ArgumentError, match=r"shape \(k\)"):
        prefix.gather("latent", 0, [[0]])
    with pytest.raises(errors.ArgumentError, match=r"shape \(heads, k\)"):
        prefix.gather("k", 0, [0])
    with pytest.raises(errors.ArgumentError, match=r"heads"):
        prefix.gather("k", 0, np.zeros((2, 5), np.int64))
    with pytest.raises(errors.ArgumentError, match="not both"):
        prefix.gather("latent", 0, [0], rows=[0])
    with pytest.raises(errors.ArgumentError, match="99"):
        prefix.gather("latent", 0, [0], out=np.empty((1, 99), np.uint8))
    with pytest.raises(errors.ArgumentError, match="shape"):
        prefix.gather("latent", 0, [0, 1], out=np.empty((1, 100), np.uint8))
    with pytest.raises(errors.ArgumentError, match="contiguous"):
        prefix.gather("latent", 0, [0], out=np.empty((1, 200), np.uint8)[:, ::2])
    with pytest.raises(errors.ArgumentError, match="backwards"):
        prefix.gather("latent", 0, [0, 1], out=np.empty((2, 100), np.uint8)[::-1])
    shared = np.lib.stride_tricks.as_strided(np.empty(100, np.uint8), (2, 100), (0, 1))
    with pytest.raises(errors.ArgumentError, match="share memory"):
        prefix.gather("latent", 0, [0, 1], out=shared)
    with pytest.raises(errors.ArgumentError, match="threads"):
        prefix.gather("latent", 0, [0], threads=-1)
