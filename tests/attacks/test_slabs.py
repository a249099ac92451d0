# SPDX-License-Identifier: Apache-2.0
"""Slab tables that are garbled, and tables that are sealed right but say what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from attacks import victim
from attacks.region import BODY, FREE, HEADERS, META, NAMESPACE, SYSTEM, TAIL, Region, Slab

import libsac
from libsac import errors


def opened(path: Path) -> libsac.Pool:
    return libsac.embedded(None, path)


@pytest.mark.parametrize("extent", [META, 0, 1])
@pytest.mark.parametrize("bit", [0, 9, 16, 31, 33, 40, 63])
def test_a_flipped_bit(path: Path, extent: int, bit: int) -> None:
    with Region(path) as region:
        index = next(i for i, slab in region.slabs(extent) if slab.owner)
        at = region.slab_at(extent, index)
        region.meta[at + bit // 8] ^= 1 << bit % 8
    with pytest.raises(errors.CorruptError, match=f"entry {index} ") as caught:
        opened(path)
    assert caught.value.offset == 8 * index


@pytest.mark.parametrize("extent", [META, 0, 1])
def test_an_entry_in_two_places(path: Path, extent: int) -> None:
    with Region(path) as region:
        source = next(i for i, slab in region.slabs(extent) if slab.owner)
        target = next(i for i, slab in region.slabs(extent) if slab.role == FREE)
        at, to = region.slab_at(extent, source), region.slab_at(extent, target)
        region.meta[to : to + 8] = region.meta[at : at + 8]
    with pytest.raises(errors.CorruptError, match=f"entry {target} "):
        opened(path)


@pytest.mark.parametrize("extent", [META, 0, 1])
@pytest.mark.parametrize("role", [7, 9, 10, 11, 12, 15])
def test_a_role_that_there_is_not(path: Path, extent: int, role: int) -> None:
    with Region(path) as region:
        region.set_slab(extent, 3, Slab(1, role, 0))
    with pytest.raises(errors.CorruptError, match="entry 3 "):
        opened(path)


@pytest.mark.parametrize("extent", [META, 0, 1])
def test_the_superblocks_slab_is_never_free(path: Path, extent: int) -> None:
    for slab in (Slab(0, 0, 0), Slab(0, 1, 0), Slab(1, BODY, 9)):
        with Region(path) as region:
            region.set_slab(extent, 0, slab)
        with pytest.raises(errors.CorruptError):
            opened(path)


def test_a_slab_of_the_tables_is_never_free(path: Path) -> None:
    with Region(path) as region:
        tables = [i for i, slab in region.slabs(META) if slab.role == SYSTEM]
        assert len(tables) == 4
        region.set_slab(META, tables[-1], Slab(0, 0, 0))
    with pytest.raises(errors.CorruptError):
        opened(path)


def damaged(path: Path, name: str, text: str, others: str) -> None:
    """The namespace is damaged and says so, the others are whole, and it can be dropped."""
    with opened(path) as pool:
        assert sorted(pool.namespaces()) == ["a", "b", "c"]
        with pytest.raises(errors.CorruptError, match=text) as caught:
            pool.namespace(name)
        assert caught.value.object == name
        victim.intact(pool, others)
        pool.drop(name)
    with opened(path) as pool:
        victim.intact(pool, others)
        ns = pool.namespace(name, layout=victim.LAYOUTS[name])
        victim.put(ns, victim.keys_of(pool, name))
        victim.check_stored(ns, victim.keys_of(pool, name))
        victim.intact(pool, others)


def test_two_chunks_of_one_position(path: Path) -> None:
    with Region(path) as region:
        ns = region.namespace("b")
        ((_, extent, index),) = region.owned(ns["id"], BODY)
        other = 1 - extent
        free = next(i for i, slab in region.slabs(other) if slab.role == FREE)
        region.set_slab(other, free, region.slab(extent, index))
    damaged(path, "b", "same position", "ac")


def test_a_chunk_of_too_many_slabs(path: Path) -> None:
    with Region(path) as region:
        ns = region.namespace("c")
        owned = region.owned(ns["id"], BODY)
        position, extent, index = owned[0]
        for n in (index + 2, index + 3, index - 1):
            if region.slab(extent, n).role == FREE:
                region.set_slab(extent, n, Slab(ns["id"], BODY, position))
                break
        else:
            pytest.fail("no free slab beside the chunk")
    damaged(path, "c", "too many slabs|same position", "ab")


def test_a_chunk_beyond_the_pool(path: Path) -> None:
    with Region(path) as region:
        ns = region.namespace("b")
        free = next(i for i, slab in region.slabs(0) if slab.role == FREE)
        region.set_slab(0, free, Slab(ns["id"], BODY, (1 << 28) - 1))
    damaged(path, "b", "out of range", "ac")


def test_a_chunk_without_headers(path: Path) -> None:
    with Region(path) as region:
        ns = region.namespace("b")
        free = next(i for i, slab in region.slabs(0) if slab.role == FREE)
        region.set_slab(0, free, Slab(ns["id"], BODY, 3))
    damaged(path, "b", "no headers", "ac")


def test_a_tail_chunk_without_tails(path: Path) -> None:
    with Region(path) as region:
        ns = region.namespace("b")
        free = next(i for i, slab in region.slabs(0) if slab.role == FREE)
        region.set_slab(0, free, Slab(ns["id"], TAIL, 1))
    damaged(path, "b", "without tails", "ac")


@pytest.mark.parametrize("which", [0, -1])
def test_a_header_slab_is_gone(path: Path, which: int) -> None:
    with Region(path) as region:
        slabs = region.owned(region.namespace("a")["id"], HEADERS)
        assert len(slabs) > 1
        region.set_slab(META, slabs[which][2], Slab(0, FREE, 0))
    damaged(path, "a", "header", "bc")


def test_a_header_slab_twice(path: Path) -> None:
    with Region(path) as region:
        slabs = region.owned(region.namespace("a")["id"], HEADERS)
        free = next(i for i, slab in region.slabs(META) if slab.role == FREE)
        region.set_slab(META, free, region.slab(META, slabs[0][2]))
    damaged(path, "a", "header slab", "bc")


def test_two_superblocks_of_one_namespace(path: Path) -> None:
    with Region(path) as region:
        ns = region.namespace("a")
        free = next(i for i, slab in region.slabs(META) if slab.role == FREE)
        at = ns.at // 65536 * 65536
        region.meta[free * 65536 : free * 65536 + 65536] = region.meta[at : at + 65536]
        region.set_slab(META, free, Slab(ns["id"], NAMESPACE, 0))
    damaged(path, "a", "superblock", "bc")


def test_a_cut_off_chunk_is_freed(path: Path) -> None:
    with Region(path) as region:
        ns = region.namespace("c")
        _, extent, index = region.owned(ns["id"], BODY)[0]
        region.set_slab(extent, index, Slab(0, FREE, 0))
    with opened(path) as pool:
        victim.intact(pool, "ab")
        ns_c = pool.namespace("c")
        assert ns_c.stats().pages == 1
        assert victim.found_is_right(pool) == 12 + 20 + 1
        assert ns_c.info.assigned_bytes == 4 << 20
        keys = victim.keys_of(pool, "c")
        victim.put(ns_c, keys)
        victim.check_stored(ns_c, keys)


def test_pages_of_a_chunk_that_was_lost_never_come_back(path: Path, tmp_path: Path) -> None:
    """Its headers are still there, sealed right; what lies in its slots later is not theirs."""
    with Region(path) as region:
        ns = region.namespace("b")
        for _, extent, index in region.owned(ns["id"], BODY):
            region.set_slab(extent, index, Slab(0, FREE, 0))
    with opened(path) as pool:
        space = pool.namespace("b")
        assert space.stats().pages == 0
        fresh = space.keys(range(10**6, 10**6 + 16))
        victim.put(space, fresh)
    for _ in range(2):
        with opened(path) as pool:
            assert pool.namespace("b").stats().pages == 1
            victim.check_stored(pool.namespace("b"), fresh)
            assert not pool.namespace("b").lookup(victim.keys_of(pool, "b")).any()


def test_slabs_of_nobody_are_freed(path: Path) -> None:
    with Region(path) as region:
        free = [i for i, slab in region.slabs(0) if slab.role == FREE][:2]
        region.set_slab(0, free[0], Slab(999, BODY, 0))
        region.set_slab(0, free[1], Slab(0, TAIL, 5))
        spare = next(i for i, slab in region.slabs(META) if slab.role == FREE)
        region.set_slab(META, spare, Slab(999, HEADERS, 0))
    with opened(path) as pool:
        victim.intact(pool)
        held = sum(pool.namespace(n).info.assigned_bytes for n in pool.namespaces())
        assert pool.info.free_bytes == pool.info.data_bytes - held
    with Region(path) as region:
        assert all(
            slab.owner != 999 for extent in (META, 0, 1) for _, slab in region.slabs(extent)
        )


def test_freed_slabs_are_scrubbed(path: Path) -> None:
    """What another namespace left is not to be seen in a new page."""
    with opened(path) as pool:
        for name in "abc":
            pool.drop(name)
        ns = pool.namespace("n", layout=victim.BIG)
        batches = []
        for n in range(pool.info.data_bytes // (4 << 20) - 1):
            batch = ns.put(ns.keys(range(n * 1000, n * 1000 + 64)))
            assert not batch.view("kv", 0, 0).any()
            batches.append(batch)
        assert len(batches) >= 4
