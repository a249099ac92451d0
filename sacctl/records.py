# SPDX-License-Identifier: Apache-2.0
"""Records: the plain dicts that the daemon answers with, and that tables, JSON and
Prometheus text are made from. docs/json.md is the same for users.

Sizes are bytes, ids are lower-case hex, times are milliseconds since the epoch and
durations nanoseconds, unless a name says otherwise. Keys are only ever added.

Results of the admin operations (``Link.call``):

    status             {"daemon": DaemonRecord, "pools": [PoolRecord]}
    reload             ReloadRecord
    pool.add           {"pool": PoolRecord, "added": bool}   added False: there already
    pool.list          {"pools": [PoolRecord]}
    pool.show          {"pool": PoolRecord, "namespaces": [NamespaceRecord]}
    pool.extend        {"pool": PoolRecord}
    pool.remove        {"pool": name}; with lost=True also "closed": bool
    pool.quarantine    {"pool", "extent", "offset", "bytes", "pages"}   pages that left
    pool.lost          {"pool", "pages"}
    namespace.create   {"namespace": NamespaceRecord, "created": bool}
    namespace.list     {"namespaces": [NamespaceRecord]}
    namespace.show     {"namespace": NamespaceRecord (with "layout"), "clients": [HolderRecord]}
    namespace.resize   {"namespace": NamespaceRecord}
    namespace.flush    FlushRecord
    namespace.verify   {"pool", "namespace", "checked", "dropped"}
    namespace.destroy  {"pool", "namespace"}
    client.list        {"clients": [ClientRecord]}
    client.evict       {"client": id, "pid": int, "killed": bool}
    stats              {"stats": StatsRecord}
    health             HealthRecord
    metrics            {"text": Prometheus text}
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

__all__ = [
    "ClientRecord",
    "ClientStats",
    "DaemonRecord",
    "ExtentRecord",
    "FindingRecord",
    "FlushRecord",
    "HealthRecord",
    "HolderRecord",
    "LatencyRecord",
    "NamespaceRecord",
    "NamespaceStats",
    "OpRecord",
    "PoolRecord",
    "PoolStats",
    "ReloadRecord",
    "StatsRecord",
    "TableRecord",
]


class DaemonRecord(TypedDict):
    """The daemon as it runs."""

    pid: int
    uid: int
    version: str
    protocol: int
    since_ms: int
    state: str  # "serving", "reloading" or "stopping"
    config: str  # path of the settings file; "" where there is none
    run_dir: str
    socket: str
    metrics: str  # address of the metrics listener, or ""
    pools: int
    absent_pools: int  # that have a record and are not served
    namespaces: int
    clients: int
    max_clients: int
    heartbeat: int  # turns of the serving thread
    heartbeat_age_ms: int  # since it moved last
    open_files: int
    memory_bytes: int  # resident and not shared


class ExtentRecord(TypedDict):
    """A data extent. assigned_bytes counts slabs that namespaces hold."""

    pool: str
    index: int
    path: str
    bytes: int
    assigned_bytes: int
    free_bytes: int
    lost: str  # why it has gone with its device, or ""


class PoolRecord(TypedDict):
    """A pool. All numbers are 0 where state is not "serving"."""

    name: str
    kind: str  # "emulated" or "cxl"
    uuid: str
    created: str  # ISO 8601
    state: str  # "serving", "absent", "damaged" or "lost"
    reason: str  # why it is not served, or ""
    hint: str  # what to do then, or ""
    owner_uid: int
    huge: str  # "", "2M" or "1G", as asked for
    meta: str  # path
    data_bytes: int
    free_bytes: int
    metadata_bytes: int
    slab_bytes: int
    incarnation: int
    page_size_obtained: int
    recovered: bool
    rebooted: bool
    dead_blocks: int
    read_only: str  # why nothing can be changed, or ""
    namespaces: int
    clients: int
    extents: list[ExtentRecord]
    cxl: NotRequired[dict[str, Any]]  # of kind "cxl": sacctl.pool.cxl_record.describe()


class NamespaceRecord(TypedDict):
    """A namespace. All numbers are 0 where state is "damaged"."""

    pool: str
    name: str
    state: str  # "serving", "damaged", or "lost" with its pool
    reason: str  # of the damage, or ""
    uid: int
    gid: int
    mode: str  # octal digits: "0640"
    policy: str
    model: str
    key_scheme: str
    checksum: bool
    token_ids: bool
    page_tokens: int
    body_bytes: int
    tail_bytes: int
    tail_pages: int
    layout_hash: str
    quota_bytes: int  # 0: none
    assigned_bytes: int
    index_bytes: int
    capacity_pages: int
    pages: int
    tails: int
    pinned: int
    reserved: int
    quarantined: int
    layout: NotRequired[dict[str, Any]]  # as in a layout file; only of namespace.show


class TableRecord(TypedDict):
    """One client's table of one namespace."""

    pool: str
    namespace: str
    table: int
    writable: bool
    revoked: bool
    pinned: int
    reservations: int


class ClientRecord(TypedDict):
    """A process that said HELLO. connected False: alive, but its connection is lost."""

    id: str
    name: str
    pid: int
    uid: int
    gid: int
    connected: bool
    lost_ms: int  # how long the connection has been lost; 0: it is not
    evicted: bool
    since_ms: int
    start_time: int  # of the process, clock ticks since boot
    requests: int
    pinned: int
    reservations: int
    tables: list[TableRecord]


class HolderRecord(TypedDict):
    """Who holds pages of a namespace."""

    client: str
    name: str
    pid: int
    uid: int
    pinned: int
    reservations: int


class FlushRecord(TypedDict):
    """What a flush did: parts evicted, and what stayed because of whom."""

    pool: str
    namespace: str
    evicted: int
    pages: int  # that stayed
    tails: int
    pinned: int
    reserved: int
    holders: list[HolderRecord]


class LatencyRecord(TypedDict):
    """Durations in nanoseconds. A percentile is the upper end of its bucket; 0: no count.

    buckets: [upper end, count] of every bucket that is not empty, ascending, not summed up.
    """

    count: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    p999_ns: int
    buckets: list[list[int]]


class OpRecord(TypedDict):
    """An operation of the protocol, as the daemon served it."""

    op: str
    count: int
    errors: int
    latency: LatencyRecord


class NamespaceStats(TypedDict):
    """Counters of a namespace since the pool was opened, and occupancy now.

    latency: by "lookup", "pin", "gather", "put", of the clients that are there now.
    """

    pool: str
    namespace: str
    quota_bytes: int
    assigned_bytes: int
    capacity_pages: int
    body_bytes: int
    pages: int
    tails: int
    reserved: int
    quarantined: int
    pinned: int
    lookups: int
    hits: int
    misses: int
    commits: int
    duplicates: int
    aborts: int
    evictions: int
    rows_gathered: int
    bytes_gathered: int
    bytes_written: int
    checks_failed: int
    clients: int
    latency: dict[str, LatencyRecord]


class PoolStats(TypedDict):
    """Occupancy of a pool, and sums over its namespaces."""

    pool: str
    data_bytes: int
    free_bytes: int
    assigned_bytes: int
    namespaces: int
    clients: int
    dead_blocks: int
    pages: int
    lookups: int
    hits: int
    misses: int
    evictions: int
    bytes_written: int
    bytes_gathered: int


class ClientStats(TypedDict):
    """What a client did, over the tables it has now."""

    client: str
    name: str
    pid: int
    uid: int
    connected: bool
    requests: int
    tables: int
    pinned: int
    reservations: int
    lookups: int
    hits: int
    misses: int
    pins: int
    puts: int
    gathers: int
    rows_gathered: int
    bytes_gathered: int
    bytes_written: int
    latency: dict[str, LatencyRecord]


class StatsRecord(TypedDict):
    """One look at everything; two of them and time_ms give rates."""

    time_ms: int
    pools: list[PoolStats]
    extents: list[ExtentRecord]
    namespaces: list[NamespaceStats]
    clients: list[ClientStats]
    ops: list[OpRecord]


class ReloadRecord(TypedDict):
    """What a reload changed, what waits for a restart, and what it could not do."""

    applied: list[str]
    restart: list[str]
    pools: list[str]  # newly served
    errors: list[str]


class FindingRecord(TypedDict):
    """One thing that is worth knowing.

    severity: "note" (no harm done), "degraded", "critical" or "unknown".
    """

    code: str  # "SAC101"
    severity: str
    object: str
    message: str
    hint: str


class HealthRecord(TypedDict):
    """status: "ok", "degraded", "critical" or "unknown": the worst of the findings; notes
    leave it "ok". checks: how many things were looked at."""

    status: str
    checks: int
    findings: list[FindingRecord]
