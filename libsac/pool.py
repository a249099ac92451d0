# SPDX-License-Identifier: Apache-2.0
"""Pools: memory that holds namespaces."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Literal

from libsac import _core
from libsac.arguments import text, unsigned
from libsac.closing import Closing
from libsac.errors import ArgumentError
from libsac.layout import Layout
from libsac.ranks import Ranks
from libsac.sizes import format_size, parse_size
from libsac.store import KEY_SCHEMES, POLICIES, Namespace

__all__ = ["Pool", "PoolInfo", "embedded"]


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """What a pool is and how it was found. Sizes in bytes.

    Attributes:
        uuid: 16 bytes, drawn at creation.
        data_bytes, free_bytes: for namespaces in all, and not yet given to one.
        metadata_bytes: of superblocks, slab tables and page headers.
        slab_bytes: the unit in which namespaces get memory.
        incarnation: how many times the pool has been opened.
        extents: data extents. namespaces: how many there are.
        page_size_obtained: of the kernel's pages behind the data; 2 MiB or more means that
            huge pages were really given.
        recovered: the last owner died without closing the pool.
        rebooted: the last owner ran before a reboot; only pages with a data checksum that
            still verifies were kept.
        dead_blocks: 2 MiB blocks that are dead, lost or out of use.
    """

    uuid: bytes
    data_bytes: int
    free_bytes: int
    metadata_bytes: int
    slab_bytes: int
    incarnation: int
    extents: int
    namespaces: int
    page_size_obtained: int
    recovered: bool
    rebooted: bool
    dead_blocks: int


def embedded(
    size: int | str | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    extents: int | None = None,
    prefault: bool = False,
    metadata: int | str = 0,
) -> Pool:
    """Opens a pool that this process owns, or creates it.

    Args:
        size: bytes of data, or a text such as "256M" (powers of 1024). None opens the pool
            in ``path`` as it is.
        path: directory of the pool's files; the pool is there again in a later process, and
            after a kill every committed page is. Without a path the pool is in memory and
            goes with the process.
        extents: files (or pieces of memory) a new pool's data is spread over; None: 1.
        prefault: touch all memory now, so that the first writes are fast.
        metadata: bytes for metadata; 0 derives it from size.

    Raises:
        NoSpaceError: less memory or disk than asked for; the message has the numbers.
        BusyError: another process has the pool open.
        ExistsError: the pool in path has another size.
        NotFoundError: no pool in path, and no size to create one.
        CorruptError, VersionError: the files are not a pool this library can read.
        SystemCallError: a system call failed.
    """
    if size is None and path is None:
        raise ArgumentError("embedded() needs a size, a path, or both")
    if size is not None and parse_size(size) == 0:
        raise ArgumentError("size is 0; leave it out to open the pool in path as it is")
    if size is None and extents is not None:
        raise ArgumentError("extents is for a new pool, which needs a size")
    native = _core.embedded(
        0 if size is None else parse_size(size),
        None if path is None else _folder(path),
        1 if extents is None else unsigned(extents, "extents", 1),
        parse_size(metadata),
        prefault,
        size is None,
    )
    return Pool(native)


def _folder(path: object) -> str:
    try:
        name = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        raise ArgumentError(f"path is {path!r}; a path is needed") from None
    if not name:
        raise ArgumentError("path is empty; a folder is needed")
    return text(os.fsdecode(name), "path")


class Pool(Closing):
    """Memory that holds namespaces. Thread-safe; made by :func:`embedded`, or by
    :func:`connect` for a pool that a daemon owns.

    A context manager: leaving it closes the pool.
    """

    def __init__(self, native: _core.Pool) -> None:
        self._native = native
        self._lock = threading.Lock()
        self._spaces: weakref.WeakSet[Namespace] = weakref.WeakSet()

    def namespace(
        self,
        name: str,
        layout: Layout | None = None,
        *,
        model: str = "",
        key_scheme: Literal["sac", "engine"] = "sac",
        quota: int | str | None = None,
        checksum: bool = False,
        token_ids: bool = False,
        mode: int = 0o600,
        policy: Literal["lru"] = "lru",
    ) -> Namespace:
        """Opens a namespace, or creates it with this layout.

        Args:
            name: 1 to 63 of ``A-Z a-z 0-9 _ . -``.
            layout: None opens the namespace as it is; else it must be the layout it has.
            model: enters the keys, so that models never share pages; at most 127 bytes.
            key_scheme: "sac": keys from token ids, by this library; "engine": the engine's
                own 32-byte hashes.
            quota: bytes (or "2G") it may hold, counted in slabs; None: what the pool has.
            checksum: keep a checksum of each page's rows: survives a reboot, costs one
                more pass over the rows at commit.
            token_ids: keep each page's token ids in its header.
            mode: who may use a new namespace, as of a file: 0o640 lets its group read, 0o660
                put pages, too. Owner and group are those of the process that creates it.
            policy: what leaves first when the namespace is full: "lru", the pages that were
                read longest ago.

        Raises LayoutError or ExistsError naming each difference, NotFoundError without a
        layout where there is none, NoSpaceError, CorruptError for a damaged namespace; from
        a daemon also AccessError and DaemonError.
        """
        if key_scheme not in KEY_SCHEMES:
            raise ArgumentError(
                f"key_scheme is {key_scheme!r}; it must be one of {', '.join(KEY_SCHEMES)}"
            )
        if policy not in POLICIES:
            raise ArgumentError(
                f"policy is {policy!r}; it must be one of {', '.join(POLICIES)}"
            )
        if unsigned(mode, "mode", 1) > 0o777:
            raise ArgumentError(f"mode is {mode:#o}; 0o1 to 0o777 are allowed")
        if layout is not None and not isinstance(layout, Layout):
            raise ArgumentError(f"layout must be a libsac.Layout, not {type(layout).__name__}")
        native = self._native.open_namespace(
            text(name, "name"),
            None if layout is None else layout._native(),
            text(model, "model"),
            KEY_SCHEMES.index(key_scheme),
            0 if quota is None else parse_size(quota),
            checksum,
            token_ids,
            mode,
        )
        space = Namespace(native, self)
        with self._lock:
            self._spaces.add(space)
        return space

    def ranks(
        self, name: str, count: int, layout: Layout | None = None, **options: Any
    ) -> Ranks:
        """Opens or creates the namespaces of count tensor-parallel ranks: ``name.0`` to
        ``name.{count-1}``, all with this layout. Options and errors are those of
        :meth:`namespace`."""
        number = unsigned(count, "count", 1)
        text(name, "name")
        return Ranks([self.namespace(f"{name}.{i}", layout, **options) for i in range(number)])

    def namespaces(self) -> list[str]:
        """Names of all namespaces, sorted."""
        return sorted(self._native.names())

    def resize(self, name: str, quota: int | str | None) -> None:
        """Changes a namespace's quota: bytes (or "2G"), None: what the pool has.

        A smaller one evicts pages and gives memory back. Raises BusyError where pinned pages
        are in the way (what could be evicted is), NotFoundError, ArgumentError; AccessError
        where a daemon owns the pool: ``sacctl namespace resize`` is the way there.
        """
        self._native.resize(text(name, "name"), 0 if quota is None else parse_size(quota))

    def drop(self, name: str) -> None:
        """Removes a namespace with its pages. Its memory is scrubbed before another gets it.

        Raises NotFoundError, and BusyError while a page of it is pinned or being written.
        """
        self._native.drop(text(name, "name"))

    @property
    def info(self) -> PoolInfo:
        """Sizes and state, as they are now."""
        return PoolInfo(**self._native.info())

    def close(self) -> None:
        """Marks the pool clean and gives it up. Its namespaces raise ClosedError from then on.

        The files stay locked until the last prefix, put, sequence and view has gone. May be
        called twice.
        """
        self._native.close()
        # A Namespace that somebody still has must not keep the files locked.
        with self._lock:
            for space in self._spaces:
                space._end()

    def __repr__(self) -> str:
        if self._native.closed:
            return "<Pool: closed>"
        info = self.info
        size, free = format_size(info.data_bytes), format_size(info.free_bytes)
        return f"<Pool of {size}, {free} free, {info.namespaces} namespaces>"
