# SPDX-License-Identifier: Apache-2.0
"""The temporary namespace of a benchmark."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

import libsac
from libsac.errors import NoSpaceError
from libsac.sizes import format_size

__all__ = ["buffer", "fill", "fitting_pages", "temporary"]

LEAST_PAGES = 8


def fitting_pages(pool: libsac.Pool, layout: libsac.Layout, size: int) -> int:
    """Pages of layout that make up size, at most those of three quarters of the free room.

    Raises NoSpaceError where fewer than 8 fit, naming what is free.
    """
    info = pool.info
    page = layout.page_bytes
    # A namespace takes whole slabs, and may leave the end of each unused.
    room = (info.free_bytes - 2 * info.slab_bytes) * 3 // 4
    pages = min(max(size // page, LEAST_PAGES), max(room, 0) // page)
    if pages < LEAST_PAGES:
        raise NoSpaceError(
            f"a benchmark needs {format_size(LEAST_PAGES * page + 2 * info.slab_bytes)} of the "
            f"pool for a temporary namespace, and {format_size(info.free_bytes)} are free: "
            "destroy a namespace, give one a quota, or extend the pool"
        )
    return pages


@contextmanager
def temporary(pool: libsac.Pool, layout: libsac.Layout) -> Iterator[libsac.Namespace]:
    """A new namespace of this process, dropped at the end, also after an error.

    Everything pinned in it must be closed by then.
    """
    name = f"bench-{os.getpid()}-{secrets.token_hex(4)}"
    ns = pool.namespace(name, layout)
    try:
        yield ns
    finally:
        pool.drop(name)


def fill(ns: libsac.Namespace, keys: libsac.Keys, step_bytes: int = 16 << 20) -> None:
    """Puts a page for each key, with rows that are no zeros."""
    plane = ns.layout.planes[0]
    step = max(1, step_bytes // ns.layout.page_bytes)
    rows = np.empty((min(step, len(keys)), plane.rows, plane.row_bytes), np.uint8)
    rows[:] = (np.arange(plane.row_bytes) % 251 + 1).astype(np.uint8)
    for at in range(0, len(keys), step):
        with ns.put(keys[at : at + step]) as put:
            put.write(plane.name, 0, rows[: len(put.missing)])


def buffer(size: int) -> NDArray[np.uint8]:
    """Memory that has been touched: the first write to fresh memory is the kernel's time."""
    array = np.empty(size, np.uint8)
    array[:] = 1
    return array
