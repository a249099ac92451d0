# SPDX-License-Identifier: Apache-2.0
"""Checksums of rows: a byte that changed behind the pool's back is found."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from conformance.backends import OpenPool
from conformance.content import RICH, Bytes, assert_idle, check, check_stored, page, put

from libsac import Keys, Namespace, errors


def row_at(
    open_pool: OpenPool,
    ns: Namespace,
    keys: Keys,
    number: int,
    plane: str,
    layer: int,
    row: int,
) -> Bytes:
    """A row of a page, and what lies behind it, writable behind the library's back.

    On disk through a second mapping, else where a view says that it lies.
    """
    if open_pool.on_disk:
        want = page(keys.values[number].tobytes(), RICH.plane(plane), layer)[0, row].tobytes()
        for memory in open_pool.data():
            at = memory.tobytes().find(want)
            if at != -1:
                return memory[at : at + 128]
        raise AssertionError("the row is nowhere")
    with ns.pin(keys) as prefix:
        view = prefix.view(plane, layer, number)
        start = (view[0] if view.ndim == 3 else view)[row].ctypes.data
    return np.ctypeslib.as_array((ctypes.c_uint8 * 128).from_address(start))


@pytest.mark.parametrize(("plane", "layer"), [("latent", 2), ("v", 0), ("window", 1)])
def test_a_flipped_bit_is_found(open_pool: OpenPool, plane: str, layer: int) -> None:
    ns = open_pool().namespace("n", layout=RICH, checksum=True)
    keys = ns.keys(range(96))
    put(ns, keys, first_tail=0)
    assert ns.verify() == (12, 0)
    at = row_at(open_pool, ns, keys, 4, plane, layer, 7)
    prefix = ns.pin(keys)
    at[0] ^= 1
    assert ns.verify() == (12, 1)
    stats = ns.stats()
    assert stats.checks_failed == 1
    assert stats.pages + stats.tails == 11
    if RICH.plane(plane).is_tail:
        assert ns.longest(keys) == 4  # two tails are needed: those of pages 2 and 3
    else:
        assert ns.lookup(keys).tolist() == [True] * 4 + [False, True]
    # Who has it pinned is told, and is told before and behind the copy.
    with pytest.raises(errors.StaleError, match="page"):
        prefix.gather("latent", 0, [0])
    with pytest.raises(errors.StaleError):
        prefix.view("latent", 0, 0)
    prefix.close()
    assert_idle(ns)
    assert put(ns, keys, first_tail=0) == (not RICH.plane(plane).is_tail)
    check_stored(ns, keys)
    assert ns.verify() == (12, 0)


def test_prefixes_that_do_not_hold_the_page_go_on(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH, checksum=True)
    keys, others = ns.keys(range(64)), ns.keys(range(500, 564))
    put(ns, keys)
    put(ns, others)
    bad, good = ns.pin(keys), ns.pin(others)
    row_at(open_pool, ns, keys, 1, "latent", 1, 0)[0] ^= 1
    assert ns.verify()[1] == 1
    check(good, others, RICH, 4)
    with pytest.raises(errors.StaleError):
        ns.gather("latent", 0, [good, bad], [[0], [0]])
    # The slot of the bad page is not given out while somebody may still look at it.
    put(ns, keys)
    check_stored(ns, keys)
    bad.close()
    good.close()
    assert_idle(ns)


def test_without_checksums_only_headers_are_checked(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(32))
    put(ns, keys)
    at = row_at(open_pool, ns, keys, 1, "latent", 1, 0)
    at[0] ^= 1
    assert ns.verify() == (4, 0)


def test_padding_is_not_checked(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH, checksum=True)
    keys = ns.keys(range(16))
    put(ns, keys)
    at = row_at(open_pool, ns, keys, 0, "latent", 1, 3)
    at[100:128] = range(28)
    assert ns.verify() == (2, 0)
    check_stored(ns, keys)


def test_checksums_of_sequences_and_views(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH, checksum=True, token_ids=True)
    with ns.sequence() as seq:
        seq.extend(range(16))
        for plane in RICH.planes:
            shape: tuple[int, ...] = (plane.rows, plane.row_bytes)
            shape = (plane.heads, *shape) if plane.heads > 1 else shape
            for layer in plane.layers:
                seq.write(plane.name, layer, np.full(shape, layer + 1, np.uint8))
        assert seq.flush() == 1
    keys = ns.keys(range(32))
    with ns.put(keys) as batch:
        for plane in RICH.planes:
            for layer in plane.layers:
                batch.view(plane.name, layer, 0)[:] = 7
    assert ns.verify() == (4, 0)
    if open_pool.on_disk:
        ns = open_pool.reopen().namespace("n")
        assert ns.verify() == (4, 0)
        with ns.pin(keys) as prefix:
            assert prefix.pages == 2
            assert (prefix.gather("latent", 1)[:16] == 2).all()
            assert (prefix.gather("latent", 1)[16:] == 7).all()
