# SPDX-License-Identifier: Apache-2.0
"""Pool superblocks that are damaged, wrong, or another pool's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from attacks import victim
from attacks.region import META, Region
from conformance.backends import copy_pool

import libsac
from libsac import errors

MAX64 = (1 << 64) - 1


def opened(path: Path) -> libsac.Pool:
    return libsac.embedded(None, path)


@pytest.mark.parametrize("extent", [META, 0, 1])
@pytest.mark.parametrize("which", [0, 1])
def test_one_copy_is_enough(path: Path, extent: int, which: int) -> None:
    with Region(path) as region:
        region.copies(extent)[which].flip(200)
    if extent != META and which == 0:
        # A data extent's superblock is written once: the other copy was never there.
        with pytest.raises(errors.CorruptError, match="checksum"):
            opened(path)
        return
    with opened(path) as pool:
        victim.intact(pool)


@pytest.mark.parametrize("extent", [META, 0, 1])
@pytest.mark.parametrize("how", ["zero", "flip", "magic", "ones"])
def test_no_copy_is_right(path: Path, extent: int, how: str) -> None:
    with Region(path) as region:
        for block in region.copies(extent):
            if how == "zero":
                block.raw = bytes(4096)
            elif how == "ones":
                block.raw = b"\xff" * 4096
            elif how == "flip":
                block.flip(1000)
            else:
                block["magic"] = b"SACPOOL!"
                block.seal()
        before = region.meta[:]
    name = "meta" if extent == META else f"data.{extent}"
    text = "checksum" if how == "flip" else "does not begin with a superblock"
    with pytest.raises(errors.CorruptError, match=text) as caught:
        opened(path)
    assert caught.value.object.endswith(name)
    assert (path / "meta").read_bytes() == before  # what is refused is not written to
    # Asking for a size does not make a new pool over it.
    with pytest.raises(errors.CorruptError):
        libsac.embedded(victim.SIZE, path, extents=victim.EXTENTS)


@pytest.mark.parametrize("extent", [META, 1])
def test_another_version(path: Path, extent: int) -> None:
    with Region(path) as region:
        for block in region.copies(extent):
            block["major"] = 2
            block.seal()
    with pytest.raises(errors.VersionError, match=r"version 2.*knows 1"):
        opened(path)


def test_a_newer_minor_version_is_read(path: Path) -> None:
    with Region(path) as region:
        for extent in (META, 0, 1):
            for block in region.copies(extent):
                block["minor"] = 9
                if block["sequence"]:
                    block.seal()
    with opened(path) as pool:
        victim.intact(pool)


WRONG: list[tuple[str, Any]] = [
    ("kind", 2),
    ("kind", 0),
    ("slab_bytes", 0),
    ("slab_bytes", 4096),
    ("slab_bytes", 1 << 63),
    ("bytes", MAX64),
    ("bytes", 0),
    ("bytes", 4096),
    ("extent_count", 0),
    ("extent_count", 1),
    ("extent_count", 3),
    ("extent_count", 65),
    ("extent_count", 0xFFFFFFFF),
    ("generation_limit", 0),
    ("generation_limit", MAX64),
    ("generation_limit", 1 << 61),
    ("meta_slabs", 0),
    ("meta_slabs", 1 << 40),
    ("meta_slabs", MAX64),
    ("meta_slabs", 1 << 61),
    ("meta_table", 0),
    ("meta_table", 65537),
    ("meta_table", 1 << 63),
    ("meta_table", MAX64 - 65535),
    ("extent0_bytes", 0),
    ("extent0_bytes", MAX64),
    ("extent0_bytes", 1 << 40),
    ("extent0_slabs", 0),
    ("extent0_slabs", 1),
    ("extent0_slabs", MAX64),
    ("extent0_slabs", 1 << 61),
    ("extent0_table", 0),
    ("extent0_table", 8),
    ("extent0_table", MAX64 - 65535),
    ("extent1_table", 0),
    ("pool", b"x" * 16),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{f}-{v}" for f, v in WRONG])
def test_values_that_cannot_be(path: Path, field: str, value: Any) -> None:
    with Region(path) as region:
        block = region.superblock
        block[field] = value
        block.seal()
    with pytest.raises(errors.CorruptError) as caught:
        opened(path)
    assert str(path) in str(caught.value)
    assert caught.value.status == errors.CorruptError.CODE


def test_tables_that_lie_elsewhere(path: Path) -> None:
    """A table of zeros says that all is free: then even the superblock's slab would be."""
    with Region(path) as region:
        last = (len(region.meta) // 65536 - 1) * 65536
        tables = ["meta_table", "extent0_table", "extent1_table"]
        was = {name: region.superblock[name] for name in tables}
    for name in tables:
        with Region(path) as region:
            for other in tables:
                region.superblock[other] = last if other == name else was[other]
            region.superblock.seal()
        with pytest.raises(errors.CorruptError):
            opened(path)
        with Region(path) as region:  # two tables in one place
            for other in tables:
                region.superblock[other] = was[tables[0]] if other == name else was[other]
            region.superblock.seal()
        if name != tables[0]:
            with pytest.raises(errors.CorruptError):
                opened(path)


@pytest.mark.parametrize(
    ("field", "value"), [("position", 1), ("position", 7), ("pool", b"y" * 16), ("kind", 1)]
)
def test_a_data_extent_of_another_place(path: Path, field: str, value: Any) -> None:
    with Region(path) as region:
        for block in region.copies(0):
            block[field] = value
            block.seal()
    with pytest.raises(errors.CorruptError, match=r"another pool or place") as caught:
        opened(path)
    assert caught.value.object.endswith("data.0")


def test_extents_swapped(path: Path) -> None:
    (path / "data.0").rename(path / "other")
    (path / "data.1").rename(path / "data.0")
    (path / "other").rename(path / "data.1")
    with pytest.raises(errors.CorruptError, match="another pool or place"):
        opened(path)


def test_an_extent_of_another_pool(path: Path, tmp_path: Path) -> None:
    victim.build(tmp_path / "second")
    shutil.copy(tmp_path / "second" / "data.1", path / "data.1")
    with pytest.raises(errors.CorruptError, match="another pool or place") as caught:
        opened(path)
    assert caught.value.object.endswith("data.1")


def test_the_metadata_of_another_pool(path: Path, tmp_path: Path) -> None:
    victim.build(tmp_path / "second")
    shutil.copy(tmp_path / "second" / "meta", path / "meta")
    with pytest.raises(errors.CorruptError, match="another pool or place"):
        opened(path)


def test_generations_go_on_after_the_newest_copy_was_lost(path: Path, tmp_path: Path) -> None:
    """The older copy has an older limit, and the pages beyond it must neither vanish nor
    see their generations given again."""
    image = tmp_path / "image"
    with opened(path) as pool:
        ns = pool.namespace("b")
        fresh = ns.keys(range(10**6, 10**6 + 160))
        victim.put(ns, fresh)
        copy_pool(path, image)
    with Region(image) as region:
        used = {h["generation"] for h in region.pages(region.namespace("b")).values()}
        region.superblock.flip(300)
    with opened(image) as pool:
        victim.intact(pool)
        ns = pool.namespace("b")
        victim.check_stored(ns, fresh)
        more = ns.keys(range(2 * 10**6, 2 * 10**6 + 160))
        victim.put(ns, more)
        copy_pool(image, tmp_path / "second")
    with Region(tmp_path / "second") as region:
        pages = region.pages(region.namespace("b"))
        new = {pages[0, key.tobytes()]["generation"] for key in more.values}
    assert min(new) > max(used)
