# SPDX-License-Identifier: Apache-2.0
"""Checksums of rows: a byte that changed behind the pool's back is found."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from conformance.backends import OpenPool
from conformance.content import RICH, assert_idle, check, check_stored, page, put
from libsac import errors


def flip(files: list[Path], needle: bytes) -> None:
    """Flips the first bit of the only occurrence of needle, through another mapping."""
    found = 0
    for file in files:
        with file.open("r+b") as f, mmap.mmap(f.fileno(), 0) as memory:
            at = memory.find(needle)
            while at != -1:
                memory[at] ^= 1
                found += 1
                at = memory.find(needle)
    assert found == 1


@pytest.mark.parametrize(("plane", "layer"), [("latent", 2), ("v", 0), ("window", 1)])
def test_a_flipped_bit_is_found(open_pool: OpenPool, plane: str, layer: int) -> None:
    ns = open_pool().namespace("n", layout=RICH, checksum=True)
    keys = ns.keys(range(96))
    put(ns, keys, first_tail=0)
    assert ns.verify() == (12, 0)
    row = page(keys.values[4].tobytes(), RICH.plane(plane), layer)[0, 7].tobytes()
    prefix = ns.pin(keys)
    flip(open_pool.data_files(), row)
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
    row = page(keys.values[1].tobytes(), RICH.plane("latent"), 1)[0, 0].tobytes()
    flip(open_pool.data_files(), row)
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
    row = page(keys.values[1].tobytes(), RICH.plane("latent"), 1)[0, 0].tobytes()
    flip(open_pool.data_files(), row)
    assert ns.verify() == (4, 0)


def test_padding_is_not_checked(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH, checksum=True)
    keys = ns.keys(range(16))
    put(ns, keys)
    row = page(keys.values[0].tobytes(), RICH.plane("latent"), 1)[0, 3].tobytes()
    for file in open_pool.data_files():
        with file.open("r+b") as f, mmap.mmap(f.fileno(), 0) as memory:
            at = memory.find(row)
            if at != -1:
                memory[at + 100 : at + 128] = bytes(range(28))
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
