# SPDX-License-Identifier: Apache-2.0
"""Records as a daemon gives them, the same in every run: for golden files."""

from __future__ import annotations

from typing import Any

from sacctl.records import (
    ClientRecord,
    ClientStats,
    DaemonRecord,
    ExtentRecord,
    HealthRecord,
    HolderRecord,
    LatencyRecord,
    NamespaceRecord,
    NamespaceStats,
    PoolRecord,
    PoolStats,
    StatsRecord,
)

GIB = 1 << 30
CLIENT_ID = "0123456789abcdef0123456789abcdef"


def extent(index: int = 0, assigned: int = GIB // 2) -> ExtentRecord:
    return {
        "pool": "kv",
        "index": index,
        "path": f"/dev/shm/sac-1000/kv/data.{index}",
        "bytes": GIB,
        "assigned_bytes": assigned,
        "free_bytes": GIB - assigned,
        "lost": "",
    }


def pool(name: str = "kv", state: str = "serving") -> PoolRecord:
    serving = state == "serving"
    return {
        "name": name,
        "kind": "emulated",
        "uuid": "00112233445566778899aabbccddeeff",
        "created": "2026-11-29T20:00:00+00:00",
        "state": state,
        "reason": "" if serving else "the files may not be opened: Permission denied",
        "hint": "" if serving else f"sacctl pool create {name} as the files' owner",
        "owner_uid": 0,
        "huge": "",
        "meta": f"/dev/shm/sac-1000/{name}/meta",
        "data_bytes": 2 * GIB if serving else 0,
        "free_bytes": GIB if serving else 0,
        "metadata_bytes": GIB if serving else 0,
        "slab_bytes": 2 << 20 if serving else 0,
        "incarnation": 3 if serving else 0,
        "page_size_obtained": 4096 if serving else 0,
        "recovered": False,
        "rebooted": False,
        "dead_blocks": 0,
        "read_only": "",
        "namespaces": 1 if serving else 0,
        "clients": 1 if serving else 0,
        "extents": [extent(0), extent(1)],
    }


def namespace(name: str = "chat", *, layout: bool = False) -> NamespaceRecord:
    record: NamespaceRecord = {
        "pool": "kv",
        "name": name,
        "state": "serving",
        "reason": "",
        "uid": 0,
        "gid": 0,
        "mode": "0640",
        "policy": "lru",
        "model": "v3.2-exp",
        "key_scheme": "sac",
        "checksum": True,
        "token_ids": False,
        "page_tokens": 64,
        "body_bytes": 1 << 20,
        "tail_bytes": 4096,
        "tail_pages": 2,
        "layout_hash": "ab" * 32,
        "quota_bytes": GIB,
        "assigned_bytes": GIB,
        "index_bytes": 1 << 16,
        "capacity_pages": 1024,
        "pages": 900,
        "tails": 12,
        "pinned": 34,
        "reserved": 2,
        "quarantined": 0,
    }
    if layout:
        record["layout"] = {
            "version": 1,
            "page_tokens": 64,
            "planes": [
                {
                    "name": "latent",
                    "layers": [0, 1],
                    "row_bytes": 1152,
                    "kind": "rows",
                    "group": "latent",
                    "heads": 1,
                    "tokens_per_row": 1,
                    "row_pitch": 1152,
                    "window_tokens": 0,
                    "dtype": "bf16",
                }
            ],
        }
    return record


def holder() -> HolderRecord:
    return {
        "client": CLIENT_ID,
        "name": "engine",
        "pid": 4711,
        "uid": 0,
        "pinned": 34,
        "reservations": 2,
    }


def client(name: str = "engine", pid: int = 4711, id_: str = CLIENT_ID) -> ClientRecord:
    return {
        "id": id_,
        "name": name,
        "pid": pid,
        "uid": 0,
        "gid": 0,
        "connected": True,
        "lost_ms": 0,
        "evicted": False,
        "since_ms": 1_790_000_000_000,
        "start_time": 123456,
        "requests": 77,
        "pinned": 34,
        "reservations": 2,
        "tables": [
            {
                "pool": "kv",
                "namespace": "chat",
                "table": 1,
                "writable": True,
                "revoked": False,
                "pinned": 34,
                "reservations": 2,
            }
        ],
    }


def daemon() -> DaemonRecord:
    return {
        "pid": 4242,
        "uid": 0,
        "version": "9.9.9",
        "protocol": 1,
        "since_ms": 1_790_000_000_000,
        "state": "serving",
        "config": "",
        "run_dir": "/run/sac",
        "socket": "/run/sac/sacd.sock",
        "metrics": "",
        "pools": 1,
        "absent_pools": 0,
        "namespaces": 1,
        "clients": 1,
        "max_clients": 1024,
        "heartbeat": 1000,
        "heartbeat_age_ms": 12,
        "open_files": 20,
        "memory_bytes": 30 << 20,
    }


def latency(count: int = 100) -> LatencyRecord:
    if not count:
        return {"count": 0, "p50_ns": 0, "p90_ns": 0, "p99_ns": 0, "p999_ns": 0, "buckets": []}
    return {
        "count": count,
        "p50_ns": 1280,
        "p90_ns": 1536,
        "p99_ns": 4096,
        "p999_ns": 4096,
        "buckets": [[1280, count - 10], [4096, 10]],
    }


def latencies() -> dict[str, LatencyRecord]:
    return {"lookup": latency(), "pin": latency(50), "gather": latency(20), "put": latency(0)}


def stats(lookups: int = 1000, time_ms: int = 1_790_000_000_000) -> StatsRecord:
    counters: dict[str, Any] = {
        "lookups": lookups,
        "hits": lookups * 9 // 10,
        "misses": lookups - lookups * 9 // 10,
        "evictions": 5,
        "bytes_written": 123 << 20,
        "bytes_gathered": 45 << 20,
    }
    in_pool: PoolStats = {
        "pool": "kv",
        "data_bytes": 2 * GIB,
        "free_bytes": GIB,
        "assigned_bytes": GIB,
        "namespaces": 1,
        "clients": 1,
        "dead_blocks": 0,
        "pages": 900,
        **counters,  # type: ignore[typeddict-item]
    }
    space: NamespaceStats = {
        "pool": "kv",
        "namespace": "chat",
        "quota_bytes": GIB,
        "assigned_bytes": GIB,
        "capacity_pages": 1024,
        "body_bytes": 1 << 20,
        "pages": 900,
        "tails": 12,
        "reserved": 2,
        "quarantined": 0,
        "pinned": 34,
        "commits": 912,
        "duplicates": 1,
        "aborts": 0,
        "rows_gathered": 40960,
        "checks_failed": 0,
        "clients": 1,
        "latency": latencies(),
        **counters,  # type: ignore[typeddict-item]
    }
    one: ClientStats = {
        "client": CLIENT_ID,
        "name": "engine",
        "pid": 4711,
        "uid": 0,
        "connected": True,
        "requests": 77,
        "tables": 1,
        "pinned": 34,
        "reservations": 2,
        "lookups": lookups,
        "hits": lookups * 9 // 10,
        "misses": lookups - lookups * 9 // 10,
        "pins": 50,
        "puts": 12,
        "gathers": 20,
        "rows_gathered": 40960,
        "bytes_gathered": 45 << 20,
        "bytes_written": 123 << 20,
        "latency": latencies(),
    }
    return {
        "time_ms": time_ms,
        "pools": [in_pool],
        "extents": [extent(0), extent(1)],
        "namespaces": [space],
        "clients": [one],
        "ops": [{"op": "ATTACH", "count": 3, "errors": 1, "latency": latency(3)}],
    }


def health(status: str = "degraded") -> HealthRecord:
    if status == "ok":
        return {"status": "ok", "checks": 12, "findings": []}
    return {
        "status": status,
        "checks": 12,
        "findings": [
            {
                "code": "SAC101",
                "severity": status,
                "object": "kv",
                "message": "pool kv is not served",
                "hint": "sacctl pool show kv",
            }
        ],
    }
