# SPDX-License-Identifier: Apache-2.0
"""What the daemon counts, put together: statistics, health, metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from libsac.server import LATENCIES, ClientInfo, SharedPool, TableInfo
from libsac.store import NamespaceInfo
from libsac.store import NamespaceStats as Counters
from sacctl.daemon.clients import by_client
from sacctl.daemon.describe import extent_records, namespaces
from sacctl.daemon.frames import OP_NAMES
from sacctl.daemon.health import daemon_health
from sacctl.daemon.latency import BUCKETS, latency_record
from sacctl.daemon.service import Service
from sacctl.records import (
    ClientStats,
    LatencyRecord,
    NamespaceStats,
    OpRecord,
    PoolStats,
    StatsRecord,
)
from sacctl.render import prometheus

__all__ = [
    "Filter",
    "metrics_text",
    "pool_clients",
    "some_namespaces",
    "stats_record",
]

_SUMS = ("pages", "lookups", "hits", "misses", "evictions", "bytes_written", "bytes_gathered")


@dataclass(frozen=True, slots=True)
class Filter:
    """What statistics are asked for; "" is all. client: the beginning of an id."""

    pool: str = ""
    namespace: str = ""
    client: str = ""


@dataclass(slots=True)
class _Use:
    """What the clients of one namespace do."""

    clients: set[bytes] = field(default_factory=set)
    latency: NDArray[np.uint64] = field(
        default_factory=lambda: np.zeros((len(LATENCIES), BUCKETS), np.uint64)
    )


def pool_clients(service: Service) -> dict[str, int]:
    """How many clients are attached to each pool that has any."""
    found: dict[str, set[bytes]] = {}
    for table in service.server.tables():
        found.setdefault(table.pool, set()).add(table.client)
    return {pool: len(clients) for pool, clients in found.items()}


def stats_record(service: Service, only: Filter = Filter()) -> StatsRecord:
    """One look at everything that only lets through."""
    tables = [t for t in service.server.tables() if _wanted(t, only)]
    use = _uses(tables)
    record: StatsRecord = {
        "time_ms": int(time.time() * 1000),
        "pools": [],
        "extents": [],
        "namespaces": [],
        "clients": _clients(service.server.clients(), tables, only),
        "ops": _ops(service),
    }
    for served in service.pools.all():
        if served.pool is None or (only.pool and served.name != only.pool):
            continue
        own = list(_spaces(served.name, served.pool, use, only))
        record["namespaces"] += own
        record["extents"] += extent_records(served)
        pool = served.pool.info
        sums = {key: sum(row[key] for row in own) for key in _SUMS}  # type: ignore[literal-required]
        attached_ids = {t.client for t in tables if t.pool == served.name}
        stats: PoolStats = {
            "pool": served.name,
            "data_bytes": pool.data_bytes,
            "free_bytes": pool.free_bytes,
            "assigned_bytes": pool.data_bytes - pool.free_bytes,
            "namespaces": pool.namespaces,
            "clients": len(attached_ids),
            "dead_blocks": pool.dead_blocks,
            **sums,  # type: ignore[typeddict-item]
        }
        record["pools"].append(stats)
    return record


def some_namespaces(
    service: Service, only: Filter, after: tuple[str, str], most: int
) -> tuple[list[NamespaceStats], bool]:
    """Up to most namespaces behind after (pool, name); True: there are more."""
    use = _uses([t for t in service.server.tables() if _wanted(t, only)])
    out: list[NamespaceStats] = []
    for served in service.pools.all():
        if served.pool is None or served.name < after[0]:
            continue
        if only.pool and served.name != only.pool:
            continue
        behind = after[1] if served.name == after[0] else ""
        for row in _spaces(served.name, served.pool, use, only, behind):
            if len(out) == most:
                return out, True
            out.append(row)
    return out, False


def _uses(tables: list[TableInfo]) -> dict[tuple[str, str], _Use]:
    use: dict[tuple[str, str], _Use] = {}
    for table in tables:
        held = use.setdefault((table.pool, table.name), _Use())
        held.clients.add(table.client)
        held.latency += table.latency
    return use


def _spaces(
    pool_name: str,
    pool: SharedPool,
    use: dict[tuple[str, str], _Use],
    only: Filter,
    after: str = "",
) -> Iterator[NamespaceStats]:
    for name, info, counters, _ in namespaces(pool, after):
        attached = use.get((pool_name, name))
        if info is None or counters is None or (only.client and attached is None):
            continue
        if not only.namespace or name == only.namespace:
            yield _namespace(pool_name, info, counters, attached)


def _wanted(table: TableInfo, only: Filter) -> bool:
    return (
        (not only.pool or table.pool == only.pool)
        and (not only.namespace or table.name == only.namespace)
        and (not only.client or table.client.hex().startswith(only.client))
    )


def _latencies(counts: NDArray[np.uint64]) -> dict[str, LatencyRecord]:
    return {name: latency_record(counts[i]) for i, name in enumerate(LATENCIES)}


_NO_LATENCIES = _latencies(np.zeros((len(LATENCIES), BUCKETS), np.uint64))


def _namespace(
    pool: str, info: NamespaceInfo, counters: Counters, use: _Use | None
) -> NamespaceStats:
    return {
        "pool": pool,
        "namespace": info.name,
        "quota_bytes": info.quota_bytes,
        "assigned_bytes": info.assigned_bytes,
        "capacity_pages": info.capacity_pages,
        "body_bytes": info.body_bytes,
        "pages": counters.pages,
        "tails": counters.tails,
        "reserved": counters.reserved,
        "quarantined": counters.quarantined,
        "pinned": counters.pinned,
        "lookups": counters.lookups,
        "hits": counters.hits,
        # Counted by clients one after the other: a look in between may see them apart.
        "misses": max(counters.lookups - counters.hits, 0),
        "commits": counters.commits,
        "duplicates": counters.duplicates,
        "aborts": counters.aborts,
        "evictions": counters.evictions,
        "rows_gathered": counters.rows_gathered,
        "bytes_gathered": counters.bytes_gathered,
        "bytes_written": counters.bytes_written,
        "checks_failed": counters.checks_failed,
        "clients": len(use.clients) if use else 0,
        # Thousands of namespaces may have no client.
        "latency": _latencies(use.latency) if use else _NO_LATENCIES,
    }


def _clients(
    clients: list[ClientInfo], tables: list[TableInfo], only: Filter
) -> list[ClientStats]:
    held = by_client(tables)
    out: list[ClientStats] = []
    for client in sorted(clients, key=lambda c: (c.since_ms, c.id)):
        own = held.get(client.id, [])
        if (only.pool or only.namespace) and not own:
            continue
        if not client.id.hex().startswith(only.client):
            continue
        counts = np.zeros((len(LATENCIES), BUCKETS), np.uint64)
        for table in own:
            counts += table.latency
        lookups, hits = sum(t.lookups for t in own), sum(t.hits for t in own)
        out.append(
            {
                "client": client.id.hex(),
                "name": client.name,
                "pid": client.pid,
                "uid": client.uid,
                "connected": client.connected,
                "requests": client.requests,
                "tables": len(own),
                "pinned": sum(t.pinned for t in own),
                "reservations": sum(t.reservations for t in own),
                "lookups": lookups,
                "hits": hits,
                "misses": max(lookups - hits, 0),
                "pins": sum(t.pins for t in own),
                "puts": sum(t.puts for t in own),
                "gathers": sum(t.gathers for t in own),
                "rows_gathered": sum(t.rows_gathered for t in own),
                "bytes_gathered": sum(t.bytes_gathered for t in own),
                "bytes_written": sum(t.bytes_written for t in own),
                "latency": _latencies(counts),
            }
        )
    return out


def _ops(service: Service) -> list[OpRecord]:
    return [
        {
            "op": OP_NAMES.get(op.op, str(op.op)),
            "count": op.count,
            "errors": op.errors,
            "latency": latency_record(op.latency),
        }
        for op in service.server.ops()
    ]


def metrics_text(service: Service) -> str:
    """The Prometheus text."""
    health = daemon_health(service, pool_clients(service))
    return prometheus.text(service.record(), stats_record(service), health)
