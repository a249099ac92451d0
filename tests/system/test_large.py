# SPDX-License-Identifier: Apache-2.0
"""Sizes past 32 bits: bytes, rows and long sequences. The files are sparse."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from attacks.region import BODY, DATA_SLAB, Region
from conformance.content import page

import libsac
from libsac import Keys, Layout, Namespace, Plane, errors

GIB = 1 << 30


def put_sparsely(ns: Namespace, keys: Keys, written: list[int]) -> None:
    """Puts all pages; only these hold anything but the zeros of fresh memory."""
    (plane,) = ns.layout.planes
    with ns.put(keys) as batch:
        assert len(batch.missing) == len(keys)
        for i in range(len(keys)):
            batch.view(plane.name, 0, i)  # counts as written, and touches nothing
        for i in written:
            batch.write(plane.name, 0, page(keys.values[i].tobytes(), plane, 0), first=i)


def some_keys(ns: Namespace, count: int) -> Keys:
    return ns.engine_keys(
        np.random.default_rng(7).integers(1, 256, (count, 32), dtype=np.uint8)
    )


def need_disk(folder: Path, size: int) -> None:
    if shutil.disk_usage(folder).free < size:
        pytest.skip(f"{folder} has less than the {size >> 30} GiB free that this test needs")


@pytest.mark.parametrize("extents", [1, 3])
def test_more_than_4_gib(tmp_path: Path, extents: int) -> None:
    need_disk(tmp_path, 7 * GIB)
    path = tmp_path / "pool"
    layout = Layout([Plane("kv", [0], 16384)], page_tokens=64)
    assert layout.page_bytes == 1 << 20
    pool = libsac.embedded(6 * GIB, path, extents=extents)
    ns = pool.namespace("n", layout=layout, key_scheme="engine")
    keys = some_keys(ns, 6000)
    marks = [0, 1, 2047, 2048, 4095, 4096, 4097, 5000, 5999]
    put_sparsely(ns, keys, marks)
    for reopened in (False, True):
        if reopened:
            pool.close()
            pool = libsac.embedded(None, path)
            ns = pool.namespace("n")
        with ns.pin(keys) as prefix:
            assert prefix.tokens == 6000 * 64
            for i in marks:
                want = page(keys.values[i].tobytes(), layout.planes[0], 0)[0]
                got = prefix.gather("kv", 0, np.arange(i * 64, i * 64 + 64, dtype=np.int32))
                assert np.array_equal(got, want)
                assert np.array_equal(prefix.view("kv", 0, i), want)
            assert not prefix.gather("kv", 0, [5001 * 64, 3 * 64]).any()
    pool.close()
    # And they lie where the format says: past 2^32 bytes of the pool, in one extent also of
    # the file.
    furthest = 0
    with Region(path) as region:
        block = region.namespace("n")
        pages = region.pages(block)
        where = {p: (e, i) for p, e, i in region.owned(block["id"], BODY)}
        for i in marks:
            slot = pages[0, keys.values[i].tobytes()]["slot"]
            extent, slab = where[slot // block["chunk_slots"]]
            offset = slab * DATA_SLAB + slot % block["chunk_slots"] * block["body_bytes"]
            furthest = max(furthest, offset)
            row = page(keys.values[i].tobytes(), layout.planes[0], 0)[0, 0].tobytes()
            assert region.data[extent][offset : offset + 16384] == row
    assert furthest > 4 * GIB // extents
    # What was given out is really there, though most of it was never written.
    assert sum(f.stat().st_blocks * 512 for f in path.iterdir()) >= 6000 << 20
    shutil.rmtree(path)


def test_more_than_2_to_the_32_rows(tmp_path: Path) -> None:
    need_disk(tmp_path, 6 * GIB)
    layout = Layout([Plane("kv", [0], 1)], page_tokens=65536)
    pages = 65536 + 40
    pool = libsac.embedded(5 * GIB, tmp_path / "pool")
    ns = pool.namespace("n", layout=layout, key_scheme="engine")
    keys = some_keys(ns, pages)
    marks = [0, 1, 32767, 32768, 65535, 65536, 65537, pages - 1]
    put_sparsely(ns, keys, marks)
    with ns.pin(keys) as prefix:
        assert prefix.tokens == pages * 65536 > 1 << 32
        rng = np.random.default_rng(3)
        number = rng.choice(marks, 4000)
        within = rng.integers(0, 65536, 4000)
        rows = {i: page(keys.values[i].tobytes(), layout.planes[0], 0)[0] for i in marks}
        want = np.array([rows[n][w] for n, w in zip(number, within, strict=True)])
        assert np.array_equal(prefix.gather("kv", 0, number * 65536 + within), want)
        assert not prefix.gather("kv", 0, [2 * 65536, (1 << 32) - 65537, -1]).any()
        with pytest.raises(errors.RangeError, match=str(prefix.tokens)):
            prefix.gather("kv", 0, [prefix.tokens])
    pool.close()
    shutil.rmtree(tmp_path / "pool")


@pytest.mark.parametrize("appended", [False, True])
def test_a_million_tokens(appended: bool, rng: np.random.Generator) -> None:
    layout = Layout([Plane("kv", [0], 16)], page_tokens=64)
    ns = libsac.embedded("64M").namespace("n", layout=layout)
    tokens = np.arange(1_000_000, dtype=np.uint32)
    rows = rng.integers(0, 256, (1_000_000, 16), dtype=np.uint8)
    if appended:
        with ns.sequence() as seq:
            seq.extend(tokens)
            seq.write("kv", 0, rows)
            assert seq.flush() == 15625
            index = rng.integers(0, 1_000_000, 20_000)
            assert np.array_equal(seq.gather("kv", 0, index), rows[index])
    keys = ns.keys(tokens)
    assert len(keys) == 15625
    with ns.put(keys) as batch:
        assert len(batch.missing) == (0 if appended else 15625)
        batch.write("kv", 0, rows.reshape(-1, 64, 16)[batch.missing])
    with ns.pin(keys) as prefix:
        assert prefix.tokens == 1_000_000
        for kind in (np.int32, np.int64):
            index = rng.integers(0, 1_000_000, 50_000).astype(kind)
            assert np.array_equal(prefix.gather("kv", 0, index), rows[index])
    with ns.sequence(tokens) as seq:
        assert seq.tokens == 1_000_000
        assert seq.extend([5]) == 1_000_000
        seq.write("kv", 0, rows[:1])
        assert np.array_equal(seq.gather("kv", 0, [1_000_000])[0], rows[0])
