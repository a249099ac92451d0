# SPDX-License-Identifier: Apache-2.0
"""Files that are missing, short, something else, foreign, forbidden, or on a full disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from attacks import victim
from conformance.content import LARGE, check_stored, put

import libsac
from libsac import errors

MIB = 1 << 20


def opened(path: Path, size: int | None = None) -> libsac.Pool:
    extents = None if size is None else victim.EXTENTS
    return libsac.embedded(size, path, extents=extents)


@pytest.mark.parametrize("name", ["meta", "data.0", "data.1"])
@pytest.mark.parametrize("size", [0, 1, 4096, 65535, 65536, 131072, -65536, -4096, -1])
def test_truncated(path: Path, name: str, size: int) -> None:
    full = (path / name).stat().st_size
    os.truncate(path / name, size if size >= 0 else full + size)
    with pytest.raises(errors.CorruptError) as caught:
        opened(path)
    assert name in caught.value.object or name in str(caught.value)


def test_longer_files_are_read(path: Path) -> None:
    for name in ("meta", "data.0"):
        os.truncate(path / name, (path / name).stat().st_size + 4 * MIB)
    with opened(path) as pool:
        victim.intact(pool)


def test_missing(path: Path, tmp_path: Path) -> None:
    (path / "data.1").rename(tmp_path / "data.1")
    with pytest.raises(errors.CorruptError, match="2 data extents"):
        opened(path)
    (path / "data.0").rename(tmp_path / "data.0")
    with pytest.raises(errors.CorruptError, match=r"data\.0"):
        opened(path)
    (tmp_path / "data.0").rename(path / "data.0")
    (tmp_path / "data.1").rename(path / "data.1")
    (path / "meta").rename(tmp_path / "meta")
    with pytest.raises(errors.NotFoundError):
        opened(path)
    # Without metadata the data files may be anybody's: they are not overwritten.
    before = (path / "data.0").read_bytes()
    with pytest.raises(errors.ExistsError, match=r"data\.0"):
        opened(path, victim.SIZE)
    assert (path / "data.0").read_bytes() == before
    (tmp_path / "meta").rename(path / "meta")
    with opened(path) as pool:
        victim.intact(pool)


def test_one_extent_too_many(path: Path) -> None:
    (path / "data.2").write_bytes(bytes(4 * MIB))
    with pytest.raises(errors.CorruptError, match="2 data extents"):
        opened(path)


def test_a_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "dir"
    path.mkdir()
    (path / "data.0").write_bytes(b"precious")
    with pytest.raises(errors.ExistsError, match="another directory"):
        opened(path, victim.SIZE)
    assert (path / "data.0").read_bytes() == b"precious"
    assert sorted(p.name for p in path.iterdir()) == ["data.0"]


@pytest.mark.parametrize("name", ["meta", "data.0"])
@pytest.mark.parametrize("kind", ["directory", "symlink", "dangling", "fifo", "device"])
def test_not_a_file(path: Path, name: str, kind: str, tmp_path: Path) -> None:
    moved = (path / name).rename(tmp_path / "moved")
    if kind == "directory":
        (path / name).mkdir()
    elif kind == "symlink":
        (path / name).symlink_to(moved)
    elif kind == "dangling":
        (path / name).symlink_to(tmp_path / "nowhere")
    elif kind == "fifo":
        os.mkfifo(path / name)
    else:
        (path / name).symlink_to("/dev/zero")
    for size in (None, victim.SIZE):
        with pytest.raises((errors.CorruptError, errors.SystemCallError, errors.NotFoundError,
                            errors.ExistsError)):  # fmt: skip
            opened(path, size)
    assert not (tmp_path / "nowhere").exists()


def test_the_path_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    for size in (None, victim.SIZE):
        with pytest.raises(errors.SystemCallError, match="directory") as caught:
            opened(file, size)
        assert caught.value.errno == 20
        assert caught.value.filename == str(file)
    with pytest.raises((errors.SystemCallError, errors.NotFoundError)):
        opened(tmp_path / "no" / "such" / "parent", victim.SIZE)
    assert file.read_text() == "text"


def test_a_creation_that_was_cut_off(path: Path) -> None:
    """meta.new says that the data files are the rest of one: it is done again."""
    (path / "meta").rename(path / "meta.new")
    with pytest.raises(errors.NotFoundError):
        opened(path)
    with opened(path, victim.SIZE) as pool:
        assert pool.namespaces() == []
        assert pool.info.free_bytes == victim.SIZE
        ns = pool.namespace("n", layout=LARGE)
        put(ns, ns.keys(range(64)))
        check_stored(ns, ns.keys(range(64)))
    assert not (path / "meta.new").exists()


def test_truncated_while_it_is_open(path: Path) -> None:
    """Memory that goes away under a reader fails by name and place, and only there."""
    with opened(path) as pool:
        keys = {name: victim.keys_of(pool, name) for name in "abc"}
        prefixes = {name: pool.namespace(name).pin(keys[name]) for name in "abc"}
        for file in ("data.0", "data.1"):
            os.truncate(path / file, 2 * MIB)
        for name, prefix in prefixes.items():
            layout = victim.LAYOUTS[name]
            with pytest.raises(errors.MediaError, match="dead") as caught:
                victim.check(prefix, keys[name], layout, prefix.pages)
            assert "data." in caught.value.object
            assert caught.value.offset is not None
            assert caught.value.offset >= 2 * MIB
            prefix.close()
            assert pool.namespace(name).longest(keys[name]) == 0
            ns = pool.namespace(name)
            with pytest.raises((errors.MediaError, errors.NoSpaceError)):
                victim.put(ns, ns.keys(range(10**6, 10**6 + 10 * layout.page_tokens)))
        assert pool.info.dead_blocks > 0
        assert pool.namespaces() == ["a", "b", "c"]


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's rights, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.parametrize("name", ["meta", "data.1", "."])
def test_permission_denied(path: Path, name: str) -> None:
    for parent in path.parents[:3]:
        with suppress(PermissionError):
            parent.chmod(0o755)
    path.chmod(0o755)
    for file in path.iterdir():
        file.chmod(0o666)
    (path / name).chmod(0)
    with as_nobody(), pytest.raises(errors.SystemCallError, match=r"[Pp]ermission") as caught:
        opened(path)
    assert caught.value.errno == 13
    assert isinstance(caught.value, OSError)
    path.chmod(0o755)


def test_files_are_private(path: Path, tmp_path: Path) -> None:
    victim.build(tmp_path / "new")
    for file in (tmp_path / "new").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_pool_whose_metadata_went_takes_no_writes(path: Path) -> None:
    """Errors name the file as it is called now."""
    with opened(path) as pool:
        os.truncate(path / "meta", 65536)
        with pytest.raises(errors.MediaError, match="meta ") as caught:
            pool.namespace("new", layout=LARGE)
        assert caught.value.object == str(path / "meta")
        with pytest.raises(errors.MediaError):
            pool.drop("a")
    with pytest.raises(errors.CorruptError):
        opened(path)
