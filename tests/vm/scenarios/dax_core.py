# SPDX-License-Identifier: Apache-2.0
"""The core on DAX devices, without sacctl: memory that had an owner, locks, what is refused,
clearing, and a device whose driver is taken away under an open pool."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from vm.guest import cxl
from vm.guest.kit import equal
from vm.scenarios.split import divided

from libsac import errors
from libsac.keys import Keys
from libsac.layout import Layout
from libsac.plane import Plane
from libsac.server import Extent, SharedPool, open_pool, scrub

TOPOLOGIES = ("1hb1",)
PAGE = Layout([Plane("kv", [0], 4096)], 16)
COUNT = 64


@contextmanager
def opened(names: list[str]) -> Iterator[list[Extent]]:
    """Files of devices, to read and write."""
    with ExitStack() as stack:
        found = []
        for name in names:
            fd = os.open(f"/dev/{name}", os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            found.append(Extent(fd, f"/dev/{name}"))
        yield found


def keys() -> Keys:
    """Of pages that do not follow each other."""
    return Keys.of_engine([bytes([i + 1]) * 32 for i in range(COUNT)], [bytes(32)] * COUNT)


def put(pool: SharedPool) -> None:
    space = pool.namespace("ns", PAGE, key_scheme="engine")
    for i in range(COUNT):
        with space.put(keys()[i : i + 1]) as writing:
            writing.write("kv", 0, np.full((1, 16, 4096), i + 1, np.uint8))


def intact(pool: SharedPool) -> int:
    """Pages that are found, each with the bytes that were put."""
    space, found = pool.namespace("ns", PAGE, key_scheme="engine"), 0
    for i in range(COUNT):
        with space.pin(keys()[i : i + 1]) as prefix:
            if prefix.pages:
                rows = prefix.gather("kv", layer=0, tokens=np.arange(16))
                equal(sorted(set(rows.ravel().tolist())), [i + 1], f"bytes of page {i}")
                found += 1
    return found


def fails(kind: type[Exception], call: Callable[[], object]) -> str:
    """What the error says that the call ends with."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was expected")


def open_and_close(names: list[str]) -> None:
    with opened(names) as (meta, *data), open_pool(meta, data):
        pass


def test_memory_that_had_an_owner() -> None:
    with divided() as (data, meta):
        names = [meta, data]
        for name in names:
            with cxl.Mapped(name) as memory:
                memory[: 8 * cxl.MIB] = b"\xa5" * (8 * cxl.MIB)
        fails(errors.CorruptError, lambda: open_and_close(names))
        with opened(names) as (head, *rest), open_pool(head, rest, create=True) as pool:
            put(pool)
            equal(intact(pool), COUNT, "pages of a new pool")
            fails(errors.BusyError, lambda: open_and_close(names))  # flock works on devices
        with opened(names) as (head, *rest), open_pool(head, rest) as pool:
            equal(intact(pool), COUNT, "pages after opening it again")
        with opened([meta]) as (one,):
            fails(errors.ArgumentError, lambda: open_pool(one, [one]))
        read_only(names)
        with opened(names) as (head, *rest), open_pool(head, rest, create=True) as pool:
            equal(pool.info.namespaces, 0, "namespaces of a pool over the old one")


def read_only(names: list[str]) -> None:
    meta, data = names
    fd = os.open(f"/dev/{meta}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with opened([data]) as rest:
            fails(errors.ArgumentError, lambda: open_pool(Extent(fd, f"/dev/{meta}"), rest))
    finally:
        os.close(fd)


def test_clearing() -> None:
    with divided() as (data, _):
        with cxl.Mapped(data) as memory:
            memory[: 4 * cxl.MIB] = b"\xa5" * (4 * cxl.MIB)
        with opened([data]) as (extent,):
            scrub(extent, 0, 2 * cxl.MIB)
        with cxl.Mapped(data) as memory:
            equal(memory[: 2 * cxl.MIB], bytes(2 * cxl.MIB), "what was cleared")
            equal(memory[2 * cxl.MIB : 2 * cxl.MIB + 8], b"\xa5" * 8, "what lies behind")


def test_a_driver_taken_away_under_a_pool() -> None:
    with divided() as (data, meta):
        names = [meta, data]
        with opened(names) as (head, *rest), open_pool(head, rest, create=True) as pool:
            put(pool)
            space = pool.namespace("ns", PAGE, key_scheme="engine")
            with space.pin(keys()[:1]) as prefix:
                cxl.unbind(data)
                # The kernel has torn the mapping down: each touch is a SIGBUS from now on.
                told = fails(
                    errors.MediaError,
                    lambda: prefix.gather("kv", layer=0, tokens=np.arange(16)),
                )
                assert data in told, told
            pool.lose(0)
            equal(intact(pool), 0, "pages found in what is gone")
            fails(errors.MediaError, lambda: put(pool))
        # Nobody has it open when a driver takes it again: the kernel would count the old
        # file's references on the new device.
        cxl.bind(data)
        with opened(names) as (head, *rest), open_pool(head, rest) as pool:
            equal(intact(pool), 0, "pages that were gone")
            put(pool)
            equal(intact(pool), COUNT, "pages put anew")
