# SPDX-License-Identifier: Apache-2.0
"""Pools of a daemon's process: memory that had an owner, bad memory, weights, scrubbing."""

from __future__ import annotations

import _thread
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from libsac import errors
from libsac.client import connect
from libsac.keys import Keys
from libsac.layout import Layout
from libsac.plane import Plane
from libsac.server import Extent, Server, SharedPool, open_pool, scrub

MIB = 1 << 20
PAGE = Layout([Plane("kv", [0], 65536)], 16)  # of 1 MiB, two to a slab


@contextmanager
def memory(size: int, byte: int = 0) -> Iterator[int]:
    """A memfd, all of one byte."""
    fd = os.memfd_create("extent")
    try:
        os.ftruncate(fd, size)
        for at in range(0, size if byte else 0, MIB):
            os.pwrite(fd, bytes([byte]) * MIB, at)
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def pool() -> Iterator[SharedPool]:
    with (
        memory(8 * MIB) as meta,
        memory(20 * MIB) as one,
        memory(20 * MIB) as two,
        open_pool(
            Extent(meta, "meta"), [Extent(one, "one", 3), Extent(two, "two")], create=True
        ) as made,
    ):
        yield made


def put(pool: SharedPool, name: str, count: int) -> Keys:
    ns = pool.namespace(name, PAGE, key_scheme="engine")
    for i in range(count):
        with ns.put(keys(i, 1)) as writing:
            writing.write("kv", 0, np.full((1, 16, 65536), i + 1, np.uint8))
    return keys(0, count)


def keys(first: int, count: int) -> Keys:
    """Of pages that do not follow each other."""
    hashes = [bytes([i + 1]) * 32 for i in range(first, first + count)]
    return Keys.of_engine(hashes, [bytes(32)] * count)


def test_scrub_tells_and_ends() -> None:
    with memory(200 * MIB, 7) as fd:
        seen: list[int] = []
        scrub(Extent(fd, "it"), MIB, 150 * MIB, seen.append)
        assert seen == [64 * MIB, 128 * MIB, 150 * MIB]
        assert os.pread(fd, 2, MIB - 1) == b"\x07\x00"
        assert os.pread(fd, 2, 151 * MIB - 1) == b"\x00\x07"
        with pytest.raises(errors.RangeError):
            scrub(Extent(fd, "it"), 200 * MIB, 1)


def test_scrub_ends_with_what_progress_raises() -> None:
    class EnoughError(Exception):
        pass

    def progress(done: int) -> None:
        raise EnoughError(done)

    with memory(192 * MIB, 7) as fd:
        with pytest.raises(EnoughError, match=str(64 * MIB)):
            scrub(Extent(fd, "it"), 0, 192 * MIB, progress)
        assert os.pread(fd, 1, 64 * MIB - 1) == b"\x00"
        assert os.pread(fd, 1, 128 * MIB) == b"\x07"


def test_ctrl_c_ends_scrub() -> None:
    with memory(256 * MIB, 7) as fd, mmap.mmap(fd, MIB) as first:

        def interrupt() -> None:
            while first[MIB - 1]:
                pass
            _thread.interrupt_main()

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            scrub(Extent(fd, "it"), 0, 256 * MIB)
        thread.join()


def test_a_pool_has_its_memory_to_itself(pool: SharedPool, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(8 * MIB))
    with memory(4 * MIB) as meta, path.open("r+b") as one, path.open("r+b") as two:
        mine = open_pool(Extent(meta, "meta"), [Extent(one.fileno(), "data")], create=True)
        with mine, pytest.raises(errors.BusyError):
            scrub(Extent(two.fileno(), "data"), 0, MIB)
        scrub(Extent(two.fileno(), "data"), 0, MIB)


def test_dirty_memory_is_cleared_before_use() -> None:
    with (
        memory(4 * MIB, 7) as meta,
        memory(8 * MIB, 7) as data,
        open_pool(
            Extent(meta, "meta"), [Extent(data, "data")], create=True, dirty=True
        ) as pool,
    ):
        assert pool.info.free_bytes == 6 * MIB
        put(pool, "ns", 1)
        slab = os.pread(data, 2 * MIB, 2 * MIB)
        assert set(slab) <= {0, 1}
        assert os.pread(data, 1, 6 * MIB) == b"\x07"


@pytest.mark.parametrize("weight", [0, 65536, -1, "a"])
def test_weights_that_are_none(weight: int) -> None:
    with memory(4 * MIB) as meta, memory(8 * MIB) as data, pytest.raises(errors.ArgumentError):
        open_pool(Extent(meta, "meta"), [Extent(data, "data", weight)], create=True)


def test_extents_by_weight(pool: SharedPool) -> None:
    put(pool, "ns", 16)
    one, two = pool.extents()
    assert (one.weight, two.weight) == (3, 1)
    assert (one.bytes - one.free_bytes, two.bytes - two.free_bytes) == (12 * MIB, 4 * MIB)
    pool.set_weights([1, 2])
    assert [e.weight for e in pool.extents()] == [1, 2]
    for wrong in ([1], [0, 1], [1, 2, 3]):
        with pytest.raises(errors.ArgumentError):
            pool.set_weights(wrong)


def test_quarantine(pool: SharedPool) -> None:
    stored = put(pool, "ns", 4)
    ns = pool.namespace("ns")
    prefix = ns.pin(keys(0, 1))
    assert pool.quarantine(0, 2 * MIB, 1) == 2
    assert pool.quarantine(0, 2 * MIB, 1) == 0
    with pytest.raises(errors.MediaError) as caught:
        prefix.gather("kv", 0, [0])
    assert (caught.value.object, caught.value.offset) == ("one", 2 * MIB)
    assert list(ns.lookup(stored)) == [False, False, True, True]
    assert pool.extents()[0].bad_bytes == 2 * MIB
    assert pool.info.dead_blocks == 1
    with pytest.raises(errors.RangeError):
        pool.quarantine(0, 20 * MIB, 1)
    for extent in (-2, 2, 64):
        with pytest.raises(errors.ArgumentError):
            pool.quarantine(extent, 0, 1)


def test_dead_metadata_is_read_on(pool: SharedPool) -> None:
    stored = put(pool, "ns", 4)
    assert pool.read_only == ""
    pool.quarantine(-1, 0, 1)
    assert "is dead" in pool.read_only
    assert "destroyed and created" in pool.read_only
    assert list(pool.namespace("ns").lookup(stored)) == [True] * 4
    with pytest.raises(errors.MediaError, match="cannot be changed"):
        put(pool, "other", 1)


def test_lose(pool: SharedPool) -> None:
    stored = put(pool, "ns", 16)
    ns = pool.namespace("ns")
    assert not pool.metadata_lost
    assert pool.lose(1) == 4
    assert [e.lost for e in pool.extents()] == [False, True]
    assert sum(ns.lookup(stored)) == 12
    assert pool.lose() == 12
    assert pool.metadata_lost
    with pytest.raises(errors.MediaError):
        put(pool, "ns", 1)


def test_a_pool_is_taken_from_its_clients_and_given_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir(0o700)
    with (
        memory(8 * MIB) as meta,
        memory(20 * MIB) as data,
        memory(8 * MIB) as other_meta,
        memory(20 * MIB) as other_data,
        Server(run, tmp_path / "socket") as server,
    ):
        pool = open_pool(Extent(meta, "meta"), [Extent(data, "data")], create=True)
        server.add_pool("p", pool)
        server.serve()
        with connect("p", socket=tmp_path / "socket") as client:
            ns = client.namespace("ns", PAGE, key_scheme="engine")
            with pytest.raises(errors.BusyError):
                server.remove_pool("p")
            pool.lose()
            server.remove_pool("p", force=True)
            pool.close()
            with pytest.raises(errors.MediaError, match="pool 'p'"):
                client.namespace("ns")
            with pytest.raises(errors.MediaError):
                ns.evict(1)
            extents = Extent(other_meta, "meta"), [Extent(other_data, "data")]
            with open_pool(*extents, create=True) as back:
                server.add_pool("p", back)
                again = client.namespace("ns", PAGE, key_scheme="engine")
                with again.put(keys(9, 1)) as writing:
                    writing.write("kv", 0, np.full((1, 16, 65536), 9, np.uint8))
                assert list(back.namespace("ns").lookup(keys(9, 1))) == [True]
                assert list(again.lookup(keys(9, 1))) == [True]
