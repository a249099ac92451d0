# SPDX-License-Identifier: Apache-2.0
"""Records of what is there, made from the objects of libsac."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from libsac.errors import NotFoundError, SacError
from libsac.server import ClientInfo, SharedPool, TableInfo
from libsac.store import NamespaceInfo, NamespaceStats
from sacctl.daemon.unserved import Served
from sacctl.pool.cxl_record import describe
from sacctl.records import (
    ClientRecord,
    ExtentRecord,
    HolderRecord,
    NamespaceRecord,
    PoolRecord,
    TableRecord,
)

__all__ = [
    "client_record",
    "damaged_record",
    "extent_records",
    "holders",
    "namespace_record",
    "namespaces",
    "pool_record",
    "table_record",
]


def pool_record(served: Served, clients: int) -> PoolRecord:
    """clients: how many are attached to it."""
    record, pool = served.record, served.pool
    info = None if pool is None else pool.info
    out: PoolRecord = {
        "name": served.name,
        "kind": "emulated" if record is None else record.kind,
        "uuid": info.uuid.hex() if info else (record.uuid if record else ""),
        "created": record.created if record else "",
        "state": served.state,
        "reason": served.reason,
        "hint": served.hint,
        "owner_uid": record.uid if record else 0,
        "huge": record.huge if record else "",
        "meta": record.meta if record else "",
        "data_bytes": info.data_bytes if info else 0,
        "free_bytes": info.free_bytes if info else 0,
        "metadata_bytes": info.metadata_bytes if info else 0,
        "slab_bytes": info.slab_bytes if info else 0,
        "incarnation": info.incarnation if info else 0,
        "page_size_obtained": info.page_size_obtained if info else 0,
        "recovered": bool(info and info.recovered),
        "rebooted": bool(info and info.rebooted),
        "dead_blocks": info.dead_blocks if info else 0,
        "read_only": served.pool.read_only if info and served.pool else "",
        "namespaces": info.namespaces if info else 0,
        "clients": clients,
        "extents": extent_records(served),
    }
    if record is not None and record.cxl is not None:
        out["cxl"] = describe(record.cxl)
    return out


def extent_records(served: Served) -> list[ExtentRecord]:
    """Of a pool that is not served: what its record says, nothing assigned."""
    if served.pool is None:
        paths = served.record.data if served.record else ()
        sizes = served.record.data_bytes() if served.record else ()
        return [
            _extent(served, i, path, size, 0)
            for i, (path, size) in enumerate(zip(paths, sizes, strict=True))
        ]
    return [
        _extent(served, i, extent.name, extent.bytes, extent.free_bytes)
        for i, extent in enumerate(served.pool.extents())
    ]


def _extent(served: Served, index: int, path: str, size: int, free: int) -> ExtentRecord:
    return {
        "pool": served.name,
        "index": index,
        "path": path,
        "bytes": size,
        "assigned_bytes": max(size - free, 0),
        "free_bytes": free,
        "lost": served.lost.get(index, ""),
    }


def namespaces(
    pool: SharedPool, after: str = ""
) -> Iterator[tuple[str, NamespaceInfo | None, NamespaceStats | None, str]]:
    """Name, settings and counters of each namespace whose name is behind after, sorted; of a
    damaged one None, None and the damage. One that leaves meanwhile is left out."""
    for name in pool.namespaces():
        if name <= after:
            continue
        try:
            info, stats = pool.inspect(name)
            yield name, info, stats, ""
        except NotFoundError:
            continue
        except SacError as error:
            yield name, None, None, str(error)


def namespace_record(pool: str, info: NamespaceInfo, stats: NamespaceStats) -> NamespaceRecord:
    return {
        "pool": pool,
        "name": info.name,
        "state": "serving",
        "reason": "",
        "uid": info.uid,
        "gid": info.gid,
        "mode": f"{info.mode:04o}",
        "policy": info.policy,
        "model": info.model,
        "key_scheme": info.key_scheme,
        "checksum": info.checksum,
        "token_ids": info.token_ids,
        "page_tokens": info.page_tokens,
        "body_bytes": info.body_bytes,
        "tail_bytes": info.tail_bytes,
        "tail_pages": info.tail_pages,
        "layout_hash": info.layout_hash.hex(),
        "quota_bytes": info.quota_bytes,
        "assigned_bytes": info.assigned_bytes,
        "index_bytes": info.index_bytes,
        "capacity_pages": info.capacity_pages,
        "pages": stats.pages,
        "tails": stats.tails,
        "pinned": stats.pinned,
        "reserved": stats.reserved,
        "quarantined": stats.quarantined,
    }


_NUMBERS = (
    "page_tokens", "body_bytes", "tail_bytes", "tail_pages", "quota_bytes", "assigned_bytes",
    "index_bytes", "capacity_pages", "pages", "tails", "pinned", "reserved", "quarantined",
)  # fmt: skip


def damaged_record(pool: str, name: str, reason: str) -> NamespaceRecord:
    """Of a namespace that cannot be read: its name is all that is known."""
    record: dict[str, Any] = {
        "pool": pool,
        "name": name,
        "state": "damaged",
        "reason": reason,
        "uid": 0,
        "gid": 0,
        "mode": "0000",
        "policy": "",
        "model": "",
        "key_scheme": "",
        "checksum": False,
        "token_ids": False,
        "layout_hash": "",
        **dict.fromkeys(_NUMBERS, 0),
    }
    return cast(NamespaceRecord, record)


def table_record(table: TableInfo) -> TableRecord:
    return {
        "pool": table.pool,
        "namespace": table.name,
        "table": table.table,
        "writable": table.writable,
        "revoked": table.revoked,
        "pinned": table.pinned,
        "reservations": table.reservations,
    }


def client_record(
    client: ClientInfo, tables: Iterable[TableInfo], lost_ms: int = 0
) -> ClientRecord:
    """tables: the client's own. lost_ms: how long its connection has been lost."""
    own = [table_record(table) for table in tables]
    return {
        "id": client.id.hex(),
        "name": client.name,
        "pid": client.pid,
        "uid": client.uid,
        "gid": client.gid,
        "connected": client.connected,
        "lost_ms": lost_ms,
        "evicted": client.evicted,
        "since_ms": client.since_ms,
        "start_time": client.start_time,
        "requests": client.requests,
        "pinned": sum(table["pinned"] for table in own),
        "reservations": sum(table["reservations"] for table in own),
        "tables": own,
    }


def holders(
    clients: Iterable[ClientInfo], tables: Iterable[TableInfo], pool: str, name: str
) -> list[HolderRecord]:
    """Clients attached to a namespace; who holds most comes first."""
    by_id: dict[bytes, list[TableInfo]] = {}
    for table in tables:
        if (table.pool, table.name) == (pool, name):
            by_id.setdefault(table.client, []).append(table)
    out: list[HolderRecord] = [
        {
            "client": client.id.hex(),
            "name": client.name,
            "pid": client.pid,
            "uid": client.uid,
            "pinned": sum(table.pinned for table in by_id[client.id]),
            "reservations": sum(table.reservations for table in by_id[client.id]),
        }
        for client in clients
        if client.id in by_id
    ]
    return sorted(out, key=lambda holder: -(holder["pinned"] + holder["reservations"]))
