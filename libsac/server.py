# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of libsac: serves pools of this process to others (docs/protocol.md).

For daemons only; an engine uses ``libsac.connect()`` or ``libsac.embedded()``. The order is:
``Server(...)``, then ``open_pool`` and ``add_pool`` for every pool there is, then ``serve()``:
only so are the clients that outlived an earlier daemon adopted before anything is evicted.

The native side is ``_core.Server`` (core/python/server.cpp).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libsac import _core
from libsac.arguments import milliseconds, text
from libsac.closing import Closing
from libsac.errors import ArgumentError
from libsac.shared_pool import Extent, ExtentInfo, SharedPool, open_pool, scrub

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
LATENCIES = ("lookup", "pin", "gather", "put")  # in the order of TableInfo.latency


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
