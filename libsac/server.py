# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of libsac: serves pools of this process to others (docs/protocol.md).

For daemons only; an engine uses ``libsac.connect()`` or ``libsac.embedded()``. The order is:
``Server(...)``, then ``open_pool`` and ``add_pool`` for every pool there is, then ``serve()``:
only so are the clients that outlived an earlier daemon adopted before anything is evicted.

The native side is ``_core.Server`` and ``_core.open_fds`` (core/python/server.cpp).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from libsac import _core
from libsac.arguments import milliseconds, text, unsigned
from libsac.closing import Closing
from libsac.errors import ArgumentError
from libsac.layout import Layout
from libsac.pool import Pool
from libsac.sizes import parse_size
from libsac.store import KEY_SCHEMES, POLICIES, NamespaceInfo, NamespaceStats

__all__ = [
    "AdminRequest",
    "ClientInfo",
    "Extent",
    "ExtentInfo",
    "OpInfo",
    "Server",
    "SharedPool",
    "TableInfo",
    "open_pool",
    "scrub",
]

NOBODY = 0xFFFFFFFF  # UINT32_MAX of sac_server.h: no group
MOST_WEIGHT = 0xFFFF
MOST_EXTENTS = 64  # of docs/format.md
METADATA = -1  # SAC_EXTENT_META
ALL_EXTENTS = -2  # SAC_EXTENT_ALL
LATENCIES = ("lookup", "pin", "gather", "put")  # in the order of TableInfo.latency


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


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """An administration request. fds are the receiver's to close. body: JSON, if the sender
    is kind: nothing has looked at it yet. groups: supplementary groups, the first 64."""

    id: int
    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...]
    fds: tuple[int, ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """A process that said HELLO.

    Attributes:
        id: 16 bytes. connected False: alive, but its connection is lost or not back yet.
        evicted: its tables are revoked for good. start_time: of the process, clock ticks
            since boot. since_ms: of the HELLO, milliseconds since the epoch.
    """

    id: bytes
    pid: int
    uid: int
    gid: int
    connected: bool
    tables: int
    evicted: bool
    start_time: int
    since_ms: int
    requests: int
    name: str


@dataclass(frozen=True, slots=True)
class TableInfo:
    """What one client has of one namespace, and what it did there.

    Attributes:
        pinned: slots with a pin that are no reservations. reservations: slots being written.
        latency: (4, 128) uint64: counts of lookup, pin, gather and put by duration; bucket
            4 e + f is 2^e (1 + f/4) ns up to the next.
    """

    client: bytes
    pool: str
    name: str
    table: int
    writable: bool
    revoked: bool
    pinned: int
    reservations: int
    lookups: int
    hits: int
    rows_gathered: int
    bytes_gathered: int
    bytes_written: int
    puts: int
    gathers: int
    pins: int
    latency: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class OpInfo:
    """An operation as it was served: latency (128,) uint64, from the whole frame to the
    reply's last byte handed to the kernel."""

    op: int
    count: int
    errors: int
    latency: NDArray[np.uint64]


class Server(Closing):
    """Serves pools of this process. One a process. Thread-safe.

    Args:
        run_dir: roster and tables; there, 0700, ours.
        socket_path: ignored with listen_fd.
        listen_fd: a listening socket of the service manager; taken over.
        socket_mode: permission bits of the socket. socket_gid: its group; None: leave.
        creators_gid: the group whose members may create namespaces (root and the daemon's
            user always may); None: everybody who connects.
        max_clients: connections at once.

    Raises BusyError where another daemon has this run_dir, SystemCallError.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        socket_path: str | os.PathLike[str],
        *,
        listen_fd: int | None = None,
        socket_mode: int = 0o660,
        socket_gid: int | None = None,
        creators_gid: int | None = None,
        max_clients: int = 1024,
    ) -> None:
        self._native = _core.Server(
            os.fspath(run_dir),
            os.fspath(socket_path),
            -1 if listen_fd is None else listen_fd,
            socket_mode,
            NOBODY if socket_gid is None else socket_gid,
            NOBODY if creators_gid is None else creators_gid,
            max_clients,
        )

    def add_pool(self, name: str, pool: SharedPool) -> None:
        """Adopts what living processes have of the pool, then serves it under this name.

        Raises ExistsError for a name that is taken, SystemCallError.
        """
        self._native.add_pool(text(name, "name"), pool._native)

    def remove_pool(self, name: str, *, force: bool = False) -> None:
        """Serves it no more. Raises BusyError naming an attached client, NotFoundError.

        force: its memory is lost, or must be given up, whoever is attached. What clients have
        in it is void: their calls raise MediaError until a pool is added under this name, or
        it is removed once more without force. Then they map that pool, without being started
        anew: a namespace that is in it goes on, with what is found there; one that is not
        raises ClosedError. Prefixes, puts and sequences of the old one raise MediaError; arrays
        of it stay mapped as they were, and are dead. Close the old pool before its extents are
        opened again.
        """
        self._native.remove_pool(text(name, "name"), force)

    def serve(self) -> None:
        """Begins to accept. Returns at once: native threads serve."""
        self._native.serve()

    def stop(self) -> None:
        """Ends serving and every ``next_request``; tables and roster stay for the next one."""
        self._native.stop()

    def close(self) -> None:
        self._native.close()

    def heartbeat(self) -> int:
        """Turns of the serving thread; stands still when it hangs."""
        return int(self._native.heartbeat())

    def next_request(self, timeout: float) -> AdminRequest | None:
        """Waits up to timeout seconds for a request. Several threads may wait.

        Raises ClosedError after :meth:`stop`.
        """
        got: Any = self._native.next_request(milliseconds(timeout, "timeout"))
        if got is None:
            return None
        number, pid, uid, gid, groups, fds, body = got
        return AdminRequest(number, pid, uid, gid, tuple(groups), tuple(fds), body)

    def answer(self, id: int, body: bytes) -> None:  # noqa: A002 -- the word of the protocol
        """Sends the answer to a request; one whose client has gone is dropped."""
        self._native.answer(id, body)

    def clients(self) -> list[ClientInfo]:
        """Everybody who said HELLO and whose process lives."""
        return [ClientInfo(**row) for row in self._native.clients()]

    def tables(self) -> list[TableInfo]:
        """Every table of every client."""
        return [TableInfo(**row) for row in self._native.tables()]

    def ops(self) -> list[OpInfo]:
        """Operations that were asked for at least once."""
        return [OpInfo(**row) for row in self._native.ops()]

    def evict(self, client: bytes, *, kill: bool = False) -> None:
        """Revokes a client's tables for good: its calls fail, its reservations end, its pins
        go as it closes them. kill: SIGKILL to its process instead.

        Raises NotFoundError.
        """
        if len(client) != 16:
            raise ArgumentError(f"a client's id has 16 bytes, not {len(client)}")
        self._native.evict(client, kill)
