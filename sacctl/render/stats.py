# SPDX-License-Identifier: Apache-2.0
"""One look at everything, or what happened between two, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sacctl.records import LatencyRecord, StatsRecord
from sacctl.render.quantities import (
    count,
    duration,
    hit_rate,
    percent,
    point_in_time,
    rate,
    share_bar,
    size,
)
from sacctl.render.table import Cell, Facts, Part, Table
from sacctl.render.users import user

__all__ = ["stats_parts"]

_CALLS = ("lookup", "pin", "gather", "put")


class _Change:
    """Counters of rows as they are, or a second since an earlier look.

    A row that was not there then, or whose counter has gone back since (the daemon was
    started anew), counts from nothing.
    """

    def __init__(self, now: StatsRecord, before: StatsRecord | None) -> None:
        self.seconds = 0.0
        self.before = before
        self._index: dict[str, dict[tuple[Any, ...], Mapping[str, Any]]] = {}
        if before is not None:
            self.seconds = max(0.001, (now["time_ms"] - before["time_ms"]) / 1000)

    def of(
        self, table: str, row: Mapping[str, Any], keys: Sequence[str]
    ) -> Callable[[str], float]:
        """The way to a counter of this row, which keys tell from the others."""
        if self.before is None:
            return lambda field: float(row[field])
        if table not in self._index:
            earlier: Iterable[Mapping[str, Any]] = self.before[table]  # type: ignore[literal-required]
            self._index[table] = {tuple(e[k] for k in keys): e for e in earlier}
        same = self._index[table].get(tuple(row[k] for k in keys), {})

        def a_second(field: str) -> float:
            gone = row[field] - same.get(field, 0)
            return float(gone if gone >= 0 else row[field]) / self.seconds

        return a_second

    def number(self, value: float) -> str:
        return count(value) if self.before is None else rate(value)

    def bytes(self, value: float) -> str:
        return size(value) if self.before is None else f"{size(value)}/s"


def stats_parts(
    now: StatsRecord,
    before: StatsRecord | None = None,
    *,
    most: int | None = None,
    ops: bool = False,
) -> list[Part]:
    """Tables of pools, extents, namespaces, latencies and clients.

    before: counters are then shown as rates since that look. most: at most so many rows a
    table, those with the most lookups first. ops: also the requests to the daemon.
    """
    change = _Change(now, before)
    parts: list[Part] = [_pools(now, change), _extents(now)]
    spaces = _busiest(now["namespaces"], most)
    parts.append(_namespaces(spaces, len(now["namespaces"]), change))
    clients = _busiest(now["clients"], most)
    parts.append(_clients(clients, len(now["clients"]), change))
    parts.append(_latencies(spaces, clients))
    if ops:
        parts.append(_ops(now))
    shown = [part for part in parts if not isinstance(part, Table) or part.rows]
    if shown:
        return shown
    empty = Facts()
    empty.add("pools", "none")
    empty.add("at", point_in_time(now["time_ms"]))
    return [empty]


def _busiest(rows: Sequence[Any], most: int | None) -> Sequence[Any]:
    if most is None or len(rows) <= most:
        return rows
    return sorted(rows, key=lambda r: (-r["lookups"], -r["pinned"]))[:most]


def _title(word: str, shown: int, there: int) -> str:
    return word if shown == there else f"{word} ({shown} of {there}, most lookups first)"


def _full(part: float, whole: float) -> Cell:
    share = part / whole if whole else 0.0
    mood = "bad" if share > 0.97 else "warn" if share > 0.85 else "good"
    return Cell(f"{share_bar(part, whole)} {percent(part, whole):>4}", mood)


def _pools(now: StatsRecord, change: _Change) -> Table:
    table = Table(
        ("pool", "used", ">size", ">free", ">pages", ">lookups", ">hits",
         ">misses", ">evicted", ">put", ">gathered"),
        title="pools",
    )  # fmt: skip
    for pool in now["pools"]:
        of = change.of("pools", pool, ("pool",))
        table.add(
            pool["pool"],
            _full(pool["data_bytes"] - pool["free_bytes"], pool["data_bytes"]),
            size(pool["data_bytes"]),
            size(pool["free_bytes"]),
            count(pool["pages"]),
            *_counters(of, change),
        )
    return table


def _counters(of: Callable[[str], float], change: _Change) -> tuple[str, ...]:
    lookups, hits = of("lookups"), of("hits")
    # A share of thousandths of a lookup a second means nothing.
    share = hit_rate(round(hits * 1000), round(lookups * 1000))
    return (
        change.number(lookups),
        share,
        change.number(of("misses")),
        change.number(of("evictions")),
        change.bytes(of("bytes_written")),
        change.bytes(of("bytes_gathered")),
    )


def _extents(now: StatsRecord) -> Table:
    table = Table(
        ("pool", "extent", "used", ">size", ">free", "~path"), title="extents", keys=2
    )
    for extent in now["extents"]:
        table.add(
            extent["pool"],
            str(extent["index"]),
            _full(extent["assigned_bytes"], extent["bytes"]),
            size(extent["bytes"]),
            size(extent["free_bytes"]),
            extent["path"],
        )
    return table


def _namespaces(rows: Sequence[Any], there: int, change: _Change) -> Table:
    table = Table(
        ("pool", "namespace", "pages", ">of", ">held", ">quota", ">pinned", ">lookups",
         ">hits", ">misses", ">evicted", ">put", ">gathered"),
        title=_title("namespaces", len(rows), there),
        keys=2,
    )  # fmt: skip
    for space in rows:
        of = change.of("namespaces", space, ("pool", "namespace"))
        table.add(
            space["pool"],
            space["namespace"],
            count(space["pages"]),
            count(space["capacity_pages"]),
            size(space["assigned_bytes"]),
            size(space["quota_bytes"]) if space["quota_bytes"] else "none",
            count(space["pinned"]),
            *_counters(of, change),
        )
    return table


def _clients(rows: Sequence[Any], there: int, change: _Change) -> Table:
    table = Table(
        ("client", ">pid", "user", ">namespaces", ">pinned", ">writing", ">lookups",
         ">hits", ">put", ">gathered"),
        title=_title("clients", len(rows), there),
        keys=2,
    )  # fmt: skip
    for client in rows:
        of = change.of("clients", client, ("client",))
        lookups, hits = of("lookups"), of("hits")
        table.add(
            Cell(client["name"], "" if client["connected"] else "warn"),
            str(client["pid"]),
            user(client["uid"]),
            str(client["tables"]),
            count(client["pinned"]),
            count(client["reservations"]),
            change.number(lookups),
            hit_rate(round(hits * 1000), round(lookups * 1000)),
            change.bytes(of("bytes_written")),
            change.bytes(of("bytes_gathered")),
        )
    return table


def _latencies(spaces: Sequence[Any], clients: Sequence[Any]) -> Table:
    heads = [f">{call} {what}" for call in _CALLS for what in ("p50", "p99")]
    table = Table(("latency of", *heads), title="latencies")
    for row, name in (
        *((s, f"{s['pool']}/{s['namespace']}") for s in spaces),
        *((c, f"{c['name']} ({c['pid']})") for c in clients),
    ):
        latency: Mapping[str, LatencyRecord] = row["latency"]
        if any(latency[call]["count"] for call in _CALLS):
            cells: list[str] = []
            for call in _CALLS:
                cells += _percentiles(latency[call])
            table.add(name, *cells)
    return table


def _percentiles(latency: LatencyRecord) -> tuple[str, str]:
    if not latency["count"]:
        return "", ""
    return duration(latency["p50_ns"]), duration(latency["p99_ns"])


def _ops(now: StatsRecord) -> Table:
    table = Table(
        ("request", ">count", ">errors", ">p50", ">p99"), title="requests to the daemon"
    )
    for op in now["ops"]:
        table.add(
            op["op"],
            count(op["count"]),
            Cell(count(op["errors"]), "warn" if op["errors"] else ""),
            *_percentiles(op["latency"]),
        )
    return table
