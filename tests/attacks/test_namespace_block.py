# SPDX-License-Identifier: Apache-2.0
"""Namespaces' superblocks: damage stays with the namespace, which can be dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attacks import victim
from attacks.region import NAMESPACE, Region

import libsac
from libsac import errors


def opened(path: Path) -> libsac.Pool:
    return libsac.embedded(None, path)


def the_others_go_on(path: Path, name: str, status: type[errors.SacError]) -> None:
    """One of three namespaces, now called name, is refused; it can be dropped for good."""
    with opened(path) as pool:
        assert sorted(pool.namespaces()) == sorted(["b", "c", name])
        for layout in (None, victim.LAYOUTS["a"]):
            with pytest.raises(status):
                pool.namespace(name, layout=layout)
        victim.intact(pool, "bc")
        before = pool.info.free_bytes
        pool.drop(name)
        assert pool.info.free_bytes > before
    with opened(path) as pool:
        assert sorted(pool.namespaces()) == ["b", "c"]
        victim.intact(pool, "bc")
        ns = pool.namespace("a", layout=victim.LAYOUTS["a"], checksum=True, token_ids=True)
        assert ns.stats().pages == 0
        victim.put(ns, victim.keys_of(pool, "a"))
        victim.intact(pool)


@pytest.mark.parametrize("how", ["flip", "zero", "magic", "ones"])
def test_unreadable(path: Path, how: str) -> None:
    with Region(path) as region:
        number = region.namespace("a")["id"]
        ((_, _, index),) = region.owned(number, NAMESPACE)
        for block in region.namespace_copies(index):
            if how == "flip":
                block.flip(700)
            elif how == "zero":
                block.raw = bytes(32768)
            elif how == "ones":
                block.raw = b"\xff" * 32768
            else:
                block["magic"] = b"SACPOOL\0"
                block.seal()
    the_others_go_on(path, f"damaged.{number}", errors.CorruptError)


WRONG: list[tuple[str, Any]] = [
    ("id", 77),
    ("flags", 0xFF),
    ("flags", 1),  # without token ids the headers would be shorter
    ("key_scheme", 2),
    ("page_tokens", 0),
    ("page_tokens", 32),
    ("page_tokens", 1 << 20),
    ("plane_count", 0),
    ("plane_count", 1),
    ("plane_count", 65),
    ("plane_count", 0xFFFFFFFF),
    ("header_pitch", 0),
    ("header_pitch", 128),
    ("header_pitch", 1 << 20),
    ("body_bytes", 0),
    ("body_bytes", 1 << 62),
    ("tail_bytes", 0),
    ("body_slabs", 0),
    ("body_slabs", 0xFFFFFFFF),
    ("body_slabs", 1 << 31),
    ("body_pages", 0),
    ("body_pages", 1 << 20),
    ("body_pages", 0xFFFFFFFF),
    ("tail_slabs", 0),
    ("tail_pages", 0xFFFFFFFF),
    ("chunk_slots", 0),
    ("chunk_slots", 1),
    ("chunk_slots", 0xFFFFFFFF),
    ("layout_hash", bytes(32)),
    ("plane0_name", b"Bad Name"),
    ("plane0_name", b"x" * 32),
    ("plane0_heads", 0),
    ("plane0_row_bytes", 0xFFFFFFFF),
    ("model", b"m" * 128),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{f}-{v!r:.12}" for f, v in WRONG])
def test_values_that_cannot_be(path: Path, field: str, value: Any) -> None:
    with Region(path) as region:
        block = region.namespace("a")
        block[field] = value
        block.seal()
    the_others_go_on(path, "a", errors.CorruptError)


def test_chunks_as_large_as_nothing_is(path: Path) -> None:
    """Slabs and pages that fit each other, but no memory of this world."""
    with Region(path) as region:
        block = region.namespace("a")
        pages = 0xFFFF0000
        block["body_slabs"] = pages * block["body_bytes"] // (2 << 20) + 1
        block["body_pages"] = pages
        block["chunk_slots"] = pages
        block.seal()
    the_others_go_on(path, "a", errors.CorruptError)


def test_another_version(path: Path) -> None:
    with Region(path) as region:
        block = region.namespace("a")
        block["major"] = 2
        block.seal()
    the_others_go_on(path, "a", errors.VersionError)


@pytest.mark.parametrize("name", [b"", b"a/b", b"\xff\xfe", b"n" * 64])
def test_a_name_that_is_none(path: Path, name: bytes) -> None:
    with Region(path) as region:
        block = region.namespace("a")
        number = block["id"]
        block["name"] = name
        block.seal()
    the_others_go_on(path, f"damaged.{number}", errors.CorruptError)


def test_of_another_pool(path: Path) -> None:
    with Region(path) as region:
        block = region.namespace("a")
        number = block["id"]
        block["pool"] = b"p" * 16
        block.seal()
    the_others_go_on(path, f"damaged.{number}", errors.CorruptError)


def test_two_of_one_name(path: Path) -> None:
    with Region(path) as region:
        block = region.namespace("a")
        block["name"] = b"b"
        block.seal()
        first = block["id"] < region.namespace("c")["id"]
    assert first
    with opened(path) as pool:
        names = pool.namespaces()
        assert len(names) == 3
        assert {"b", "c"} < set(names)
        victim.intact(pool, "c")
        assert victim.found_is_right(pool) >= 2
        for name in names:
            pool.drop(name)
        assert pool.info.free_bytes == pool.info.data_bytes


def test_a_drop_that_was_cut_off(path: Path) -> None:
    with Region(path) as region:
        block = region.namespace("a")
        block["state"] = 2
        block.seal()
    with opened(path) as pool:
        assert pool.namespaces() == ["b", "c"]
        victim.intact(pool, "bc")
        with pytest.raises(errors.NotFoundError):
            pool.namespace("a")


def test_a_state_that_there_is_not(path: Path) -> None:
    with Region(path) as region:
        block = region.namespace("a")
        block["state"] = 0
        block.seal()
    with opened(path) as pool:
        victim.intact(pool, "bc")
        try:
            victim.intact(pool, "a")
        except errors.CorruptError:
            pool.drop("a")


def test_a_quota_smaller_than_what_is_held(path: Path) -> None:
    with Region(path) as region:
        block = region.namespace("a")
        block["max_bytes"] = 1
        block.seal()
    with opened(path) as pool:
        victim.intact(pool, "bc")
        try:
            victim.found_is_right(pool)
        except errors.CorruptError:
            pool.drop("a")
