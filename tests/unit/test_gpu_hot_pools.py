# SPDX-License-Identifier: Apache-2.0
"""Hot buffers over every way to a pool, on a CUDA for tests: what other processes do to the
pages that a request is bound to."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# Late, as what follows: skipped without torch, and the driver is chosen first.
from unit import fake_gpu  # noqa: E402

fake_gpu.use()

from system.daemon import Daemon, folder  # noqa: E402
from unit.hot_model import CpuBuffer, Pool, ints  # noqa: E402

import libsac  # noqa: E402
from libsac import Layout, Plane, errors, gpu  # noqa: E402

LAYOUT = Layout([Plane("latent", range(2), 8192)], 16)
PLANE = LAYOUT.planes[0]
numbers = itertools.count()


class Ways:
    """One pool; each call another way to it. daemon: None where it is embedded."""

    def __init__(self, kind: str, root: Path, daemon: Daemon | None) -> None:
        self.daemon, self.kind = daemon, kind
        self.name = f"hot{next(numbers)}"
        self._open: list[libsac.Pool] = []
        if daemon is None:
            path = None if kind == "memory" else root / "pool"
            extents = 2 if path else 1
            self._open.append(libsac.embedded("32M", path=path, extents=extents))
        else:
            daemon.create(self.name, 32 << 20, 2)

    def __call__(self) -> libsac.Pool:
        if self.daemon is not None:
            self._open.append(self.daemon.connect(self.name))
        return self._open[-1]

    def lose(self, extent: int) -> int:
        if self.daemon is not None:
            return self.daemon.lose(self.name, extent)
        return int(self._open[0]._native.lose(extent))

    def end(self) -> None:
        while self._open:
            self._open.pop().close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    one = Daemon(folder()).start()
    yield one
    one.close()


@pytest.fixture(params=["memory", "files", "daemon"])
def ways(request: pytest.FixtureRequest, tmp_path: Path, shared: Daemon) -> Iterator[Ways]:
    kind = request.param
    made = Ways(kind, tmp_path, shared if kind == "daemon" else None)
    yield made
    made.end()


@pytest.fixture(params=["gpu", "cpu"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def grown(pool: Pool, salt: int, tokens: int, content: int | None = None) -> Any:
    """A sequence of one request's tokens, its rows (those of salt content) written."""
    sequence = pool.ns.sequence()
    sequence.extend(pool.tokens(salt, tokens))
    pool.write(sequence, salt if content is None else content, 0, tokens)
    return sequence


def row(buffer: Any, layer: int, request: int, unit: int) -> Any:
    """Bytes of a unit's row by way of resolve; None: it is not to be had."""
    at = int(buffer.resolve("latent", layer, ints([request]), ints([[unit]]))[0, 0])
    return None if at < 0 else buffer.rows("latent", layer)[at].numpy().copy()


def want(pool: Pool, layer: int, salt: int, unit: int) -> Any:
    return pool.rows(PLANE, layer, salt, unit, unit + 1)[0, 0]


def test_another_writer_commits_the_same_page_first(ways: Ways, path: str, seed: int) -> None:
    """The page that is bound gives way to another's, and stays the GPU's until release."""
    pool, other = (Pool(LAYOUT, seed % 1000, pool=ways()) for _ in range(2))
    buffer = CpuBuffer(pool.ns, requests=2, slots=24, top_k=8, path=path)
    ours = grown(pool, 1, 40)
    buffer.bind(0, ours, direct=False)
    np.testing.assert_array_equal(row(buffer, 0, 0, 3), want(pool, 0, 1, 3))

    # The same tokens, with other bytes, so that it can be seen whose page is read.
    theirs = grown(other, 1, 40, content=2)
    assert theirs.flush() == 2
    before = pool.ns.stats()
    assert (before.pages, before.reserved) == (2, 4)  # our two, and each one's third
    assert ours.flush() == 2
    now = pool.ns.stats()
    assert now.pages == 2
    assert now.reserved == 4  # not given to anybody: the GPU may be reading them

    # Before an extend the GPU reads our page, after it theirs; what is in slots stays.
    np.testing.assert_array_equal(row(buffer, 1, 0, 20), want(pool, 1, 1, 20))
    buffer.extend(0)
    np.testing.assert_array_equal(row(buffer, 1, 0, 21), want(pool, 1, 2, 21))
    np.testing.assert_array_equal(row(buffer, 0, 0, 3), want(pool, 0, 1, 3))
    np.testing.assert_array_equal(row(buffer, 1, 0, 39), want(pool, 1, 1, 39))  # still open

    # Others fill the pool: nobody gets the pages that were kept.
    filler = Pool(LAYOUT, seed % 1000, pool=ways())
    held = []
    for salt in itertools.count(10):
        try:
            held.append(filler.put(salt, 3))
        except errors.NoSpaceError:
            break
    assert len(held) > 10
    np.testing.assert_array_equal(row(buffer, 1, 0, 38), want(pool, 1, 1, 38))
    assert pool.ns.stats().reserved == 4

    ours.close()
    assert pool.ns.stats().reserved == 4  # bound still
    buffer.release(0)
    buffer.stats()  # looks whether the GPU is done
    assert pool.ns.stats().reserved == 1  # the other's third page
    theirs.close()
    assert pool.ns.stats().reserved == 0
    assert buffer.errors() == {}
    buffer.close()


def test_a_page_that_nobody_else_wrote_is_not_kept_twice(ways: Ways, seed: int) -> None:
    pool = Pool(LAYOUT, seed % 1000, pool=ways())
    buffer = CpuBuffer(pool.ns, requests=1, slots=24, top_k=8)
    ours = grown(pool, 1, 40)
    buffer.bind(0, ours, direct=False)
    assert ours.flush() == 2
    assert (pool.ns.stats().pages, pool.ns.stats().reserved) == (2, 1)
    np.testing.assert_array_equal(row(buffer, 1, 0, 17), want(pool, 1, 1, 17))
    ours.close()
    assert pool.ns.evict(9) == 0  # pinned by what the GPU borrowed
    np.testing.assert_array_equal(row(buffer, 0, 0, 39), want(pool, 0, 1, 39))
    buffer.close()
    assert pool.ns.stats().reserved == 0
    assert pool.ns.evict(9) == 2


def test_a_dead_process_leaves_nothing_kept(ways: Ways, seed: int) -> None:
    """A client that goes with pages kept for its GPU: the daemon has them back."""
    if ways.daemon is None:
        pytest.skip("the pool is the process'")
    mine, other = ways(), ways()
    pool, second = Pool(LAYOUT, seed % 1000, pool=mine), Pool(LAYOUT, seed % 1000, pool=other)
    buffer = CpuBuffer(pool.ns, requests=1, slots=24, top_k=8)
    ours = grown(pool, 1, 16)
    buffer.bind(0, ours)
    with grown(second, 1, 16) as theirs:
        assert theirs.flush() == 1
    assert ours.flush() == 1
    assert second.ns.stats().reserved == 1
    del buffer, ours  # not closed: as a program that ends leaves them
    gc.collect()
    assert second.ns.stats().reserved == 0


def test_a_daemon_begins_anew_while_requests_are_bound(ways: Ways, seed: int) -> None:
    if ways.daemon is None:
        pytest.skip("there is no daemon")
    pool = Pool(LAYOUT, seed % 1000, pool=ways())
    buffer = CpuBuffer(pool.ns, requests=2, slots=24, top_k=8)
    ours = grown(pool, 1, 40)
    buffer.bind(0, ours, direct=False)
    buffer.bind(1, pool.put(5, 3), direct=False)
    for kill in (False, True):
        ways.daemon.restart(kill=kill)
        for salt, request in ((1, 0), (5, 1)):
            unit = 30 + kill
            got = row(buffer, int(kill), request, unit)
            np.testing.assert_array_equal(got, want(pool, int(kill), salt, unit))
    first = ours.extend(pool.tokens(1, 41)[40:])
    pool.write(ours, 1, first, 41)
    buffer.extend(0)
    np.testing.assert_array_equal(row(buffer, 0, 0, 40), want(pool, 0, 1, 40))
    assert pool.ns.stats().pages == 2 + 3  # extend has committed those that were full
    buffer.close()
    assert pool.ns.stats().reserved == 1
    ours.close()


def test_an_extent_is_lost(ways: Ways, path: str, seed: int) -> None:
    """Requests with pages there say so, at the latest after a look; others go on."""
    pool = Pool(LAYOUT, seed % 1000, pool=ways())
    if ways.kind == "memory":
        pytest.skip("one extent, which would be all of it")
    pages, requests = 10, 6
    buffer = CpuBuffer(pool.ns, requests=requests, slots=16, top_k=16, path=path)
    prefixes = [pool.put(salt, pages) for salt in range(requests)]
    for i, prefix in enumerate(prefixes):
        buffer.bind(i, prefix, direct=False)
    device = gpu.Device(0)
    registered = device.register(pool.ns) if path == "gpu" else None
    left = ways.lose(1)
    assert 0 < left < pages * requests
    for i in range(requests):  # no look yet: nothing crashes
        row(buffer, 0, i, 5)
    assert buffer.refresh() == left
    missing = 0
    for i in range(requests):
        for page in range(pages):
            got = row(buffer, 1, i, page * 16 + 7)
            if got is None:
                missing += 1
            else:
                np.testing.assert_array_equal(got, want(pool, 1, i, page * 16 + 7))
    assert missing == left
    assert set().union(*buffer.errors().values()) == {"page"}
    assert 0 < len(buffer.errors()) <= requests
    # What is bound now lies where memory is.
    prefixes[0].close()
    buffer.release(0)
    buffer.bind(0, pool.put(50, 2), direct=False)
    np.testing.assert_array_equal(row(buffer, 0, 0, 31), want(pool, 0, 50, 31))
    assert 0 not in buffer.errors()
    if registered is not None:
        registered.unregister()  # before the device is unbound: in a client it is ours to do
        assert registered.info().bytes_done == 0
        assert row(buffer, 1, 0, 30) is None
        assert buffer.errors()[0] == {"page"}
        buffer.release(5)
        with pytest.raises(errors.GpuError, match="not registered with CUDA any more"):
            buffer.bind(5, pool.put(51, 1))
        assert buffer.resolve("latent", 0, ints([5]), ints([[1]]))[0, 0] == -1
    buffer.close()
