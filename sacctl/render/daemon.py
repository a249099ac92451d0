# SPDX-License-Identifier: Apache-2.0
"""The daemon, its clients and its health as tables."""

from __future__ import annotations

from collections.abc import Iterable

from sacctl.records import (
    ClientRecord,
    DaemonRecord,
    HealthRecord,
    PoolRecord,
    ReloadRecord,
)
from sacctl.render.pools import pool_table
from sacctl.render.quantities import ago, clean, count, duration, list_of, point_in_time, size
from sacctl.render.table import Cell, Facts, Part, Table
from sacctl.render.users import user

__all__ = [
    "client_table",
    "daemon_parts",
    "health_parts",
    "plugin_line",
    "reload_parts",
]

_MOODS = {"ok": "good", "degraded": "warn", "critical": "bad", "unknown": "warn"}
# What monitoring systems call them, and the exit codes they expect.
_PLUGIN = {
    "ok": ("OK", 0),
    "degraded": ("WARNING", 1),
    "critical": ("CRITICAL", 2),
    "unknown": ("UNKNOWN", 3),
}


def daemon_parts(daemon: DaemonRecord, pools: Iterable[PoolRecord]) -> list[Part]:
    """How the daemon is, and its pools."""
    facts = Facts()
    facts.add(
        "state", Cell(daemon["state"], "good" if daemon["state"] == "serving" else "warn")
    )
    facts.add("version", f"{daemon['version']} (protocol {daemon['protocol']})")
    facts.add("process", f"{daemon['pid']}, user {user(daemon['uid'])}")
    since = daemon["since_ms"]
    facts.add("running", f"{ago(since)}, since {point_in_time(since)}")
    facts.add("settings", daemon["config"] or "defaults")
    facts.add("socket", daemon["socket"])
    facts.add("run dir", daemon["run_dir"])
    facts.add("metrics", daemon["metrics"] or "off")
    absent = daemon["absent_pools"]
    missing = f", {absent} not served" if absent else ""
    facts.add("pools", Cell(f"{daemon['pools']}{missing}", "bad" if absent else ""))
    facts.add("namespaces", count(daemon["namespaces"]))
    facts.add("clients", f"{daemon['clients']} of at most {daemon['max_clients']}")
    age = daemon["heartbeat_age_ms"]
    facts.add("last turn", Cell(f"{duration(age * 1e6)} ago", "bad" if age > 5000 else ""))
    facts.add("memory", size(daemon["memory_bytes"]))
    facts.add("open files", count(daemon["open_files"]))
    table = pool_table(pools)
    table.title = "pools"
    return [facts, table] if table.rows else [facts]


def reload_parts(reload: ReloadRecord) -> list[Part]:
    """What a reload did."""
    facts = Facts()
    facts.add("taken over", list_of(reload["applied"], 99))
    for name, listed, mood in (
        ("new pools", reload["pools"], "good"),
        ("need a restart", reload["restart"], "warn"),
        ("failed", reload["errors"], "bad"),
    ):
        if listed:
            facts.add(name, Cell(list_of(listed, 99), mood))
    return [facts]


def client_table(clients: Iterable[ClientRecord]) -> Table:
    """One line a client."""
    table = Table(
        ("id", "name", ">pid", "user", "state", ">since", "~namespaces", ">pinned",
         ">writing", ">requests")
    )  # fmt: skip
    for client in clients:
        if client["evicted"]:
            state = Cell("evicted", "bad")
        elif client["connected"]:
            state = Cell("connected", "good")
        else:
            state = Cell(f"lost {duration(client['lost_ms'] * 1e6)} ago", "warn")
        spaces = sorted({f"{t['pool']}/{t['namespace']}" for t in client["tables"]})
        table.add(
            client["id"][:8],
            client["name"],
            str(client["pid"]),
            user(client["uid"]),
            state,
            ago(client["since_ms"]),
            list_of(spaces, 3),
            count(client["pinned"]),
            count(client["reservations"]),
            count(client["requests"]),
        )
    return table


def health_parts(health: HealthRecord) -> list[Part]:
    """The state, then a line a finding, the worst first."""
    facts = Facts()
    facts.add("health", Cell(health["status"], _MOODS.get(health["status"], "")))
    facts.add("checks", str(health["checks"]))
    table = Table(("code", "severity", "~object", "~finding", "~next"))
    order = {"critical": 0, "unknown": 1, "degraded": 2, "note": 3}
    for finding in sorted(health["findings"], key=lambda f: order.get(f["severity"], 4)):
        table.add(
            finding["code"],
            Cell(finding["severity"], _MOODS.get(finding["severity"], "")),
            finding["object"],
            finding["message"],
            finding["hint"],
        )
    return [facts, table] if table.rows else [facts]


def plugin_line(health: HealthRecord) -> tuple[str, int]:
    """One line for a monitoring system, and its exit code.

    The form of the monitoring plugins: ``SAC STATE - findings | figures``.
    """
    word, code = _PLUGIN.get(health["status"], _PLUGIN["unknown"])
    findings = health["findings"]
    said = "; ".join(f"{f['code']} {f['object']}: {f['message']}" for f in findings)
    # The bar separates figures from the text.
    said = (said or f"{health['checks']} checks, nothing found").replace("|", "/")
    worst = {s: sum(f["severity"] == s for f in findings) for s in ("critical", "degraded")}
    figures = f"critical={worst['critical']};;0 degraded={worst['degraded']};0"
    return f"SAC {word} - {clean(said)} | {figures}", code
