# SPDX-License-Identifier: Apache-2.0
"""A pool of a daemon's own: opened from extents, served to others by ``libsac.server``.

The native side is ``_core.open_fds`` (core/python/server.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from libsac import _core
from libsac.arguments import text, unsigned
from libsac.errors import ArgumentError, MediaError
from libsac.layout import Layout
from libsac.pool import Pool
from libsac.sizes import parse_size
from libsac.store import KEY_SCHEMES, POLICIES, NamespaceInfo, NamespaceStats

__all__ = ["Extent", "ExtentInfo", "SharedPool", "open_pool", "scrub"]

MOST_WEIGHT = 0xFFFF
MOST_EXTENTS = 64  # of docs/format.md
METADATA = -1  # SAC_EXTENT_META
ALL_EXTENTS = -2  # SAC_EXTENT_ALL


class Extent(NamedTuple):
    """Memory of a pool that is open already: a file, a memfd, or a DAX device that is bound to
    device_dax.

    name: its path, for messages. weight: how much of what is placed over several data extents
    it gets, 1 to 65535. dirty: its memory had another owner, whose bytes are cleared before
    anybody gets it; a DAX device always counts as that.
    """

    fd: int
    name: str
    weight: int = 1
    dirty: bool = False


class ExtentInfo(NamedTuple):
    """A data extent.

    Attributes:
        name: its path. bytes: for namespaces in all. free_bytes: of slabs that no namespace
            holds. bad_bytes: of slabs that are out of use for good.
        lost: its memory has gone with its device. weight: as set. align: of a DAX device, in
            bytes; a file: 0.
    """

    name: str
    bytes: int
    free_bytes: int
    bad_bytes: int = 0
    lost: bool = False
    weight: int = 1
    align: int = 0


class SharedPool(Pool):
    """A pool of this process that a :class:`Server` can serve. Made by :func:`open_pool`."""

    def extents(self) -> list[ExtentInfo]:
        """The data extents, in order."""
        return [ExtentInfo(*row) for row in self._native.extents()[:-1]]

    @property
    def free_metadata_bytes(self) -> int:
        """Of the metadata extent: room for page headers and namespaces."""
        return int(self._native.extents()[-1][2])

    def extend(self, extent: Extent) -> None:
        """Adds a data extent at the end, of zeros or dirty; its fd stays the caller's.

        Raises BusyError where another process has it locked, ArgumentError for one too small
        or that is neither file nor DAX device, SystemCallError.
        """
        self._native.extend(_extent(extent))

    @property
    def metadata_lost(self) -> bool:
        """Whether some of the metadata is dead or lost: the pool takes no more writes."""
        return bool(self._native.extents()[-1][4])

    def set_weights(self, weights: Sequence[int]) -> None:
        """How much of what is placed each data extent gets: by its weight (1 to 65535) times
        its size. Pages that are there stay where they are. Not kept: to be set, or given in
        the :class:`Extent`, at each opening. Raises ArgumentError unless there is one for each
        data extent."""
        self._native.set_weights([unsigned(w, "weight") for w in weights])

    def quarantine(self, extent: int, offset: int, bytes: int) -> int:  # noqa: A002
        """Takes bad memory out of use: each block of 2 MiB that touches the range, as long as
        the pool exists, also when it is opened again.

        Args:
            extent: number of the data extent; -1: the metadata. Metadata that is in use cannot
                be spared: then all of it counts as dead, and the pool takes no more writes.

        Returns how many pages left. Who has one pinned gets MediaError from the next call that
        reads, who is writing one from commit. Raises ArgumentError, RangeError.
        """
        return int(
            self._native.quarantine(_number(extent), parse_size(offset), parse_size(bytes))
        )

    @property
    def read_only(self) -> str:
        """Why nothing can be changed any more, though pages are read on: metadata is dead.
        "" while it can."""
        try:
            self._native.check_writable()
        except MediaError as error:
            return str(error)
        return ""

    def lose(self, extent: int | None = None) -> int:
        """The device behind an extent has gone: all its pages leave, as if all of it were
        quarantined, but only until the pool is opened again, and without touching it.

        Args:
            extent: number of the data extent; -1: the metadata; None: all of the pool.

        Returns how many pages left. Raises ArgumentError.
        """
        return int(self._native.lose(ALL_EXTENTS if extent is None else _number(extent)))

    def create_for(
        self,
        name: str,
        layout: Layout,
        uid: int,
        gid: int,
        *,
        model: str = "",
        key_scheme: Literal["sac", "engine"] = "sac",
        quota: int | str | None = None,
        checksum: bool = False,
        token_ids: bool = False,
        mode: int = 0o600,
        policy: str = "lru",
    ) -> None:
        """Creates a namespace that belongs to this user and group; else as
        ``Pool.namespace``. One that is there with the same specification is left as it is.
        """
        if key_scheme not in KEY_SCHEMES:
            raise ArgumentError(f"key_scheme is {key_scheme!r}")
        if policy not in POLICIES:
            raise ArgumentError(f"policy is {policy!r}")
        self._native.open_namespace(
            text(name, "name"),
            layout._native(),
            text(model, "model"),
            KEY_SCHEMES.index(key_scheme),
            0 if quota is None else parse_size(quota),
            checksum,
            token_ids,
            mode,
            (uid, gid),
        )

    def inspect(self, name: str) -> tuple[NamespaceInfo, NamespaceStats]:
        """Settings and counters of one namespace, without an object for it: quick enough for
        thousands. Raises NotFoundError, CorruptError for a damaged one."""
        native = self._open(name)
        return NamespaceInfo(**native.info()), NamespaceStats(**native.stats())

    def layout(self, name: str) -> Layout:
        """The layout of one namespace. Raises as :meth:`inspect`."""
        native = self._open(name)
        return Layout._from_native(int(native.info()["page_tokens"]), native.planes())

    def evict(self, name: str, count: int) -> int:
        """As ``Namespace.evict``."""
        return int(self._open(name).evict(count))

    def verify(self, name: str) -> tuple[int, int]:
        """As ``Namespace.verify``: (checked, dropped)."""
        checked, dropped = self._open(name).verify()
        return checked, dropped

    def _open(self, name: str) -> _core.Namespace:
        return self._native.open_namespace(text(name, "name"), None, "", 0, 0, False, False)


def open_pool(
    meta: Extent,
    data: Sequence[Extent],
    *,
    create: bool = False,
    prefault: bool = False,
    dirty: bool = False,
) -> SharedPool:
    """Opens the pool in these extents so that it can be served, or writes a new one over them.

    Args:
        meta, data: the extents. The library works on fds of its own; these stay the caller's.
        create: they become a new pool: their bytes are zeros, or they are dirty.
        prefault: touch all memory now.
        dirty: with create, all of them had another owner. Whatever pool was there is gone with
            the first step; a creation that is cut off leaves none.

    Raises BusyError while another process has one of them, ArgumentError for one that is
    neither file nor DAX device, CorruptError, VersionError, MediaError, NoSpaceError,
    SystemCallError.
    """
    native = _core.open_fds(
        _extent(meta, dirty), [_extent(e, dirty) for e in data], create, prefault
    )
    return SharedPool(native)


def scrub(
    extent: Extent,
    offset: int,
    bytes: int,  # noqa: A002 -- a size, as everywhere here
    progress: Callable[[int], object] | None = None,
) -> None:
    """Overwrites a range of an extent with zeros, on several cores and without the GIL.

    Args:
        extent: open to read and write; no pool has it. Holes of a file stay holes.
        offset, bytes: the range.
        progress: called with the bytes done after each 64 MiB and at the end. What it raises
            ends the scrubbing, as Ctrl-C does; what is done need not be done again.

    Raises BusyError while a pool has it open, RangeError, ArgumentError, MediaError for memory
    that cannot be written (naming its offset), SystemCallError.
    """
    _core.scrub(_extent(extent), parse_size(offset), parse_size(bytes), progress)


def _number(extent: int) -> int:
    if extent == METADATA:
        return METADATA
    number = unsigned(extent, "extent")
    if number >= MOST_EXTENTS:
        raise ArgumentError(f"there is no extent {number}; a pool has at most {MOST_EXTENTS}")
    return number


def _extent(extent: Extent, dirty: bool = False) -> tuple[int, str, bool, int]:
    weight = unsigned(extent.weight, "weight", 1)
    if weight > MOST_WEIGHT:
        raise ArgumentError(f"weight is {weight}; 1 to {MOST_WEIGHT} are allowed")
    return (
        unsigned(extent.fd, "fd"),
        text(extent.name, "name"),
        dirty or extent.dirty,
        weight,
    )
