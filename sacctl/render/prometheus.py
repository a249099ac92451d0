# SPDX-License-Identifier: Apache-2.0
"""Prometheus text (exposition format 0.0.4) from the records of ``status``, ``stats`` and
``health``, and the families of such a text as plain values.

Nothing here but the records: the daemon serves the same text as ``sacctl metrics`` prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sacctl.records import DaemonRecord, HealthRecord, LatencyRecord, StatsRecord

__all__ = ["CONTENT_TYPE", "families", "text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Upper ends of the exported buckets, ns: 256 ns to 69 s, each a power of two and so also
# an end of the records' finer buckets. Always the same ones, as rates over them need.
_ENDS = [1 << e for e in range(8, 37, 2)]

_STATUS = ("ok", "degraded", "critical", "unknown")

_POOL = (
    ("data_bytes", "gauge", "bytes", "that namespaces can be given"),
    ("free_bytes", "gauge", "free_bytes", "not given to a namespace"),
    ("namespaces", "gauge", "namespaces", "in the pool"),
    ("clients", "gauge", "clients", "attached to the pool"),
    ("dead_blocks", "gauge", "dead_blocks", "of 2 MiB lost since the pool was opened"),
)
_NAMESPACE = (
    ("assigned_bytes", "gauge", "assigned_bytes", "of slabs held"),
    ("quota_bytes", "gauge", "quota_bytes", "it may hold; 0: no quota"),
    ("capacity_pages", "gauge", "capacity_pages", "that fit under the quota"),
    ("pages", "gauge", "pages", "committed now"),
    ("pinned", "gauge", "pinned_parts", "with at least one pin"),
    ("reserved", "gauge", "reserved_parts", "being written"),
    ("quarantined", "gauge", "quarantined_parts", "out of use"),
    ("clients", "gauge", "clients", "attached"),
    ("lookups", "counter", "lookups_total", "keys asked"),
    ("hits", "counter", "hits_total", "keys found"),
    ("misses", "counter", "misses_total", "keys not found"),
    ("commits", "counter", "commits_total", "page parts committed"),
    ("duplicates", "counter", "duplicates_total", "commits that another writer won"),
    ("aborts", "counter", "aborts_total", "page parts given up"),
    ("evictions", "counter", "evictions_total", "page parts evicted"),
    ("rows_gathered", "counter", "rows_gathered_total", "rows copied out"),
    ("bytes_gathered", "counter", "gathered_bytes_total", "row bytes copied out"),
    ("bytes_written", "counter", "written_bytes_total", "row bytes copied in"),
    ("checks_failed", "counter", "checks_failed_total", "pages dropped for their checksum"),
)


class _Text:
    """Lines being put together; each family's head is written once, before its samples."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def head(self, name: str, kind: str, what: str) -> None:
        what = what.replace("\\", "\\\\").replace("\n", "\\n")
        self.lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, labels: Mapping[str, object], value: float) -> None:
        inside = ",".join(f'{key}="{_escape(str(word))}"' for key, word in labels.items())
        self.lines.append(f"{name}{{{inside}}} {value}" if inside else f"{name} {value}")

    def rows(self, prefix: str, columns: Iterable[tuple[str, str, str, str]],
             rows: Iterable[Mapping[str, Any]], labels: tuple[str, ...]) -> None:  # fmt: skip
        known = list(rows)
        for field, kind, suffix, what in columns:
            name = f"{prefix}_{suffix}"
            self.head(name, kind, f"{field.replace('_', ' ')}: {what}")
            for row in known:
                self.sample(name, {key: row[key] for key in labels}, row[field])

    def histogram(self, name: str, labels: Mapping[str, object], of: LatencyRecord) -> None:
        """One histogram in seconds. The sum is estimated: a bucket counts at its end."""
        below = dict.fromkeys(_ENDS, 0)
        total = 0
        for end, count in of["buckets"]:
            total += end * count
            for upper in _ENDS:
                if end <= upper:
                    below[upper] += count
        for upper, count in below.items():
            self.sample(f"{name}_bucket", {**labels, "le": f"{upper / 1e9:.9g}"}, count)
        self.sample(f"{name}_bucket", {**labels, "le": "+Inf"}, of["count"])
        self.sample(f"{name}_sum", labels, total / 1e9)
        self.sample(f"{name}_count", labels, of["count"])


def text(daemon: DaemonRecord, stats: StatsRecord, health: HealthRecord | None = None) -> str:
    """The whole text, with a newline at its end. Nothing is mutated.

    Clients have no series of their own: a client's life is short, and a series is kept for
    long. A latency that was never measured is left out.
    """
    out = _Text()
    out.head("sac_daemon_info", "gauge", "the daemon; always 1")
    out.sample("sac_daemon_info", {"version": daemon["version"]}, 1)
    out.head("sac_daemon_start_time_seconds", "gauge", "when it started, since 1970")
    out.sample("sac_daemon_start_time_seconds", {}, daemon["since_ms"] / 1000)
    for field, name, what in (
        ("clients", "sac_daemon_clients", "processes connected, or alive and not yet back"),
        ("pools", "sac_daemon_pools", "served"),
        ("absent_pools", "sac_daemon_absent_pools", "recorded and not served"),
        ("memory_bytes", "sac_daemon_memory_bytes", "resident and not shared"),
        ("open_files", "sac_daemon_open_files", "file descriptors"),
    ):
        out.head(name, "gauge", what)
        out.sample(name, {}, daemon[field])  # type: ignore[literal-required]
    if health is not None:
        out.head("sac_health_status", "gauge", "1 for the state of health that holds")
        for state in _STATUS:
            out.sample("sac_health_status", {"status": state}, int(health["status"] == state))
        out.head("sac_health_findings", "gauge", "findings, by code and severity")
        found: dict[tuple[str, str], int] = {}
        for finding in health["findings"]:
            key = (finding["code"], finding["severity"])
            found[key] = found.get(key, 0) + 1
        for (code, severity), count in sorted(found.items()):
            out.sample("sac_health_findings", {"code": code, "severity": severity}, count)
    out.rows("sac_pool", _POOL, stats["pools"], ("pool",))
    _extents(out, stats)
    out.rows("sac_namespace", _NAMESPACE, stats["namespaces"], ("pool", "namespace"))
    _latencies(out, stats)
    return "\n".join(out.lines) + "\n"


def _extents(out: _Text, stats: StatsRecord) -> None:
    for field, name, what in (
        ("bytes", "sac_extent_bytes", "of data"),
        ("free_bytes", "sac_extent_free_bytes", "not given to a namespace"),
    ):
        out.head(name, "gauge", what)
        for row in stats["extents"]:
            labels = {"pool": row["pool"], "extent": row["index"]}
            out.sample(name, labels, row[field])  # type: ignore[literal-required]
    out.head("sac_extent_lost", "gauge", "1 where it has gone with its device")
    for row in stats["extents"]:
        labels = {"pool": row["pool"], "extent": row["index"]}
        out.sample("sac_extent_lost", labels, int(bool(row.get("lost"))))


def _latencies(out: _Text, stats: StatsRecord) -> None:
    name = "sac_namespace_latency_seconds"
    out.head(name, "histogram", "of calls, by the clients there are; the sum is estimated")
    for space in stats["namespaces"]:
        for what, latency in space["latency"].items():
            if latency["count"]:
                labels = {"pool": space["pool"], "namespace": space["namespace"], "call": what}
                out.histogram(name, labels, latency)
    name = "sac_daemon_requests_total"
    out.head(name, "counter", "requests served, by operation")
    for op in stats["ops"]:
        out.sample(name, {"op": op["op"]}, op["count"])
    name = "sac_daemon_request_errors_total"
    out.head(name, "counter", "requests that were answered with an error")
    for op in stats["ops"]:
        out.sample(name, {"op": op["op"]}, op["errors"])
    name = "sac_daemon_request_latency_seconds"
    out.head(name, "histogram", "from the whole request to its reply; the sum is estimated")
    for op in stats["ops"]:
        if op["latency"]["count"]:
            out.histogram(name, {"op": op["op"]}, op["latency"])


def _escape(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# ------------------------------------------------------------------- the way back

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)",?', re.ASCII)
_ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def families(exposed: str) -> list[dict[str, Any]]:
    """What a text says: each family with ``name``, ``type``, ``help`` and ``samples``.

    Reads what :func:`text` writes. Raises ValueError for a line it does not understand.
    """
    out: list[dict[str, Any]] = []
    for line in exposed.split("\n"):
        if line.startswith("# HELP "):
            _, _, name, *what = line.split(" ", 3)
            words = _unescape(what[0]) if what else ""
            out.append({"name": name, "type": "untyped", "help": words, "samples": []})
        elif line.startswith("# TYPE ") and out:
            out[-1]["type"] = line.split(" ")[3]
        elif line and not line.startswith("#"):
            match = _SAMPLE.fullmatch(line)
            if match is None or not out:
                raise ValueError(f"not a sample of a family: {line}")
            labels = dict(_labels(match[2] or ""))
            sample = {"name": match[1], "labels": labels, "value": _number(match[3])}
            out[-1]["samples"].append(sample)
    return out


def _labels(inside: str) -> Iterator[tuple[str, str]]:
    for match in _LABEL.finditer(inside):
        yield match[1], _unescape(match[2])


def _unescape(word: str) -> str:
    return re.sub(r"\\[\\\"n]", lambda m: _ESCAPED[m[0]], word)


def _number(word: str) -> int | float:
    return int(word) if re.fullmatch(r"-?\d+", word) else float(word)
