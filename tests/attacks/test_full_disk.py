# SPDX-License-Identifier: Apache-2.0
"""Pools on a file system that is, or becomes, full."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from attacks import victim
from conformance.content import LARGE, check_stored, put
from system.daemon import Daemon

import libsac
from libsac import errors

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8M", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("mounting needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_more_than_the_disk_has(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    size = disk.f_bavail * disk.f_frsize + (64 << 30)
    with pytest.raises(errors.NoSpaceError, match=r"needs \d+ MiB.* has \d+ MiB"):
        libsac.embedded(size, tmp_path / "pool")
    assert not (tmp_path / "pool").exists()


def test_a_small_disk(small_disk: Path) -> None:
    with pytest.raises(errors.NoSpaceError, match="8 MiB"):
        libsac.embedded("64M", small_disk / "pool")
    with libsac.embedded("4M", small_disk / "pool", metadata="1M") as pool:
        ns = pool.namespace("n", layout=LARGE, checksum=True)
        keys = ns.keys(range(16 * 12))
        put(ns, keys[:4])
        # Others fill the disk up: pages that have no memory behind them fail, and say so.
        with suppress(OSError), (small_disk / "others").open("wb") as file:
            while True:
                file.write(bytes(MIB))
                file.flush()
        with pytest.raises((errors.MediaError, errors.NoSpaceError)):
            put(ns, keys)
        assert ns.longest(keys) <= 4
        with ns.pin(keys) as prefix:
            victim.check(prefix, keys, LARGE, prefix.pages)
        (small_disk / "others").unlink()
    with libsac.embedded(None, small_disk / "pool") as pool:
        ns = pool.namespace("n")
        found = ns.longest(keys)
        check_stored(ns, keys, found)
        assert ns.verify()[1] == 0
        put(ns, keys[:8])
        check_stored(ns, keys[:8])


def test_a_full_disk(small_disk: Path) -> None:
    with suppress(OSError), (small_disk / "others").open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    # What passes the look at the free space may still find none: no half-made pool is left.
    for size in ("4M", "64M"):
        with pytest.raises((errors.NoSpaceError, errors.MediaError, errors.SystemCallError)):
            libsac.embedded(size, small_disk / "pool")
    (small_disk / "others").unlink()
    with libsac.embedded("4M", small_disk / "pool", metadata="1M") as pool:
        ns = pool.namespace("n", layout=LARGE)
        keys = ns.keys(range(64))
        put(ns, keys)
        check_stored(ns, keys)


def test_a_disk_that_fills_up_during_creation(small_disk: Path) -> None:
    """Room for the sizes asked, none behind some of the pages: never a pool that lies."""
    for room in range(0, 40, 4):
        with suppress(OSError), (small_disk / "others").open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        os.truncate(small_disk / "others", (small_disk / "others").stat().st_size - room * 4096)
        for size, metadata in (("2M", "256K"), (f"{max(room, 1) * 4}K", "256K")):
            with suppress(errors.SacError):
                with libsac.embedded(size, small_disk / "pool", metadata=metadata) as pool:
                    ns = pool.namespace("n", layout=LARGE)
                    rows = np.zeros((1, 16, 8192), np.uint8)
                    with ns.put(ns.keys(range(16))) as batch:
                        for layer in range(2):
                            batch.write("kv", layer, rows)
                with libsac.embedded(None, small_disk / "pool") as pool:
                    assert pool.namespace("n").verify()[0] == 1
        for file_ in (small_disk / "pool").glob("*"):
            file_.unlink()
        (small_disk / "others").unlink()


@contextmanager
def filled(disk: Path, room: int = 0) -> Iterator[None]:
    """Others take all of the disk but room bytes."""
    file = disk / "others"
    with suppress(OSError), file.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(4096))
    os.truncate(file, file.stat().st_size - room)
    try:
        yield
    finally:
        file.unlink()


SMALL_PAGES = libsac.Layout([libsac.Plane("k", [0], 256)], 16)  # 4 KiB a page, 512 a slab


def fill(ns: libsac.Namespace, keys: libsac.Keys, value: int) -> None:
    with ns.put(keys) as batch:
        batch.write("k", 0, np.full((len(batch.missing), 16, 256), value, np.uint8))


def holds(ns: libsac.Namespace, keys: libsac.Keys, value: int) -> bool:
    with ns.pin(keys) as prefix:
        return prefix.pages == len(keys) and bool((prefix.gather("k", 0) == value).all())


def test_a_full_disk_costs_no_page_that_is_stored(small_disk: Path) -> None:
    """Neither data beside which a put writes, nor metadata, is lost to a hole."""
    path = small_disk / "pool"
    with libsac.embedded("6M", path, metadata="1M") as pool:
        ns = pool.namespace("n", layout=SMALL_PAGES)
        first = ns.keys(range(16 * 100))
        fill(ns, first, 7)
        with filled(small_disk):
            # The rest of the slab is there: it was allocated with the first page.
            second = ns.keys(range(10**6, 10**6 + 16 * 400))
            fill(ns, second, 9)
            big = ns.keys(range(2 * 10**6, 2 * 10**6 + 16 * 1200))
            with pytest.raises(errors.NoSpaceError):
                fill(ns, big, 1)
            with pytest.raises(errors.NoSpaceError, match="file system"):
                pool.namespace("other", layout=SMALL_PAGES)
            assert pool.info.dead_blocks == 0
            assert holds(ns, first, 7)
            assert holds(ns, second, 9)
        fill(ns, big[:600], 1)
        assert holds(ns, big[:600], 1)
        assert pool.namespaces() == ["n"]
    with libsac.embedded(None, path) as pool:
        ns = pool.namespace("n")
        assert holds(ns, big[:600], 1)
        assert pool.info.dead_blocks == 0


def test_no_room_while_it_is_created(small_disk: Path) -> None:
    """Whatever the files still get: NoSpaceError and nothing left, or a pool that works."""
    for room in range(0, 80 * 4096, 8 * 4096):
        with filled(small_disk, room), pytest.raises(errors.NoSpaceError):
            libsac.embedded("2M", small_disk / "pool")
        assert not (small_disk / "pool").exists()
    # Enough by what the file system says, not for superblocks, tables or a prefault.
    for room in (64 * 1024, 192 * 1024, MIB):
        for prefault in (False, True):
            with filled(small_disk, 2 * MIB + room):
                with suppress(errors.NoSpaceError):
                    libsac.embedded(
                        "2M", small_disk / "pool", metadata="256K", prefault=prefault
                    ).close()
                    assert not prefault
                    assert libsac.embedded(None, small_disk / "pool").namespaces() == []
                    shutil.rmtree(small_disk / "pool")
                assert not (small_disk / "pool").exists()


def test_a_full_run_directory_costs_no_pin(small_disk: Path, tmp_path: Path) -> None:
    """Where a pin finds no memory in the client's table the daemon would not see it."""
    one = Daemon(small_disk / "daemon")
    (tmp_path / "pools").mkdir()
    (one.root / "pools").rmdir()
    (one.root / "pools").symlink_to(tmp_path / "pools")
    try:
        one.start()
        one.create("p", 16 << 20)
        with one.connect("p") as pool, one.connect("p") as other:
            ns = pool.namespace("n", layout=SMALL_PAGES, quota="8M")
            keys = ns.keys(range(16 * 100))
            fill(ns, keys, 7)
            mine, fresh = other.namespace("n"), pool.namespace("n")
            with mine.pin(keys) as prefix, filled(small_disk):
                assert ns.stats().pinned == 100
                with pytest.raises(errors.SystemCallError, match="No space left"):
                    other.namespace("n").pin(keys)  # in a table of its own, without memory
                ns.evict(1 << 30)
                assert (prefix.gather("k", 0) == 7).all()
                assert ns.stats().pinned == 100
                assert holds(mine, keys, 7)
            assert ns.stats().pinned == 0
            fill(ns, ns.keys(range(10**6, 10**6 + 16 * 500)), 9)
            assert holds(pool.namespace("n"), keys, 7)
            assert fresh.longest(keys) == 100
    finally:
        one.close()
