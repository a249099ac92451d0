# SPDX-License-Identifier: Apache-2.0
"""Who is connected, followed over time: arrivals and departures in the log, and for how long
a connection has been lost."""

from __future__ import annotations

import threading
import time

from libsac.server import ClientInfo, Server, TableInfo
from sacctl.daemon.describe import client_record
from sacctl.daemon.log import log
from sacctl.records import ClientRecord

__all__ = ["Clients", "by_client"]


class Clients:
    """The clients of one server. Thread-safe."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._users: dict[bytes, ClientInfo] = {}
        self._lost: dict[bytes, float] = {}  # since when, monotonic

    def follow(self) -> None:
        """Looks who came and went since the last call, and logs it."""
        now, clients = time.monotonic(), {c.id: c for c in self._server.clients()}
        # Administrators' commands come and go; only users of memory are worth a line.
        users = {i: c for i, c in clients.items() if c.tables}
        with self._lock:
            came = [c for i, c in users.items() if i not in self._users]
            gone = [c for i, c in self._users.items() if i not in users]
            self._users = users
            self._note(clients, now)
        for client in came:
            log.info(f"{_named(client)} is attached", client=client.id.hex())
        for client in gone:
            log.info(f"{_named(client)} has gone", client=client.id.hex())

    def records(self) -> list[ClientRecord]:
        """Everybody, in the order of their HELLO."""
        clients, tables = self._server.clients(), by_client(self._server.tables())
        now = time.monotonic()
        with self._lock:
            self._note({c.id: c for c in clients}, now)
            lost = {i: int((now - since) * 1000) for i, since in self._lost.items()}
        return [
            client_record(client, tables.get(client.id, []), lost.get(client.id, 0))
            for client in sorted(clients, key=lambda c: (c.since_ms, c.id))
        ]

    def _note(self, clients: dict[bytes, ClientInfo], now: float) -> None:
        self._lost = {
            i: self._lost.get(i, now) for i, client in clients.items() if not client.connected
        }


def by_client(tables: list[TableInfo]) -> dict[bytes, list[TableInfo]]:
    """The tables of each client."""
    out: dict[bytes, list[TableInfo]] = {}
    for table in tables:
        out.setdefault(table.client, []).append(table)
    return out


def _named(client: ClientInfo) -> str:
    return f"client {client.name} (process {client.pid}, user {client.uid})"
