# SPDX-License-Identifier: Apache-2.0
"""Health: what is looked at, and what is found. docs/health.md lists the codes.

The daemon looks (:func:`judge` over what it knows); :func:`examine` asks it and also says
what can be said when it does not answer. Nothing is mutated. Imports no libsac.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sacctl.errors import CtlError, DeniedError, NotFoundError
from sacctl.health_codes import CHECKS, explain
from sacctl.records import (
    ClientRecord,
    DaemonRecord,
    FindingRecord,
    HealthRecord,
    NamespaceRecord,
    PoolRecord,
)

__all__ = ["CHECKS", "EXIT", "Sight", "examine", "explain", "judge", "unreachable"]

EXIT = {"ok": 0, "degraded": 10, "critical": 20, "unknown": 30}
STUCK_MS = 5000  # the serving thread turns many times a second
LOST_MS = 60_000
FULL = 0.95
MUCH = 0.9
HUGE = {"2M": 2 << 20, "1G": 1 << 30}
META_SLAB = 65536

Findings = Iterator[FindingRecord]


@dataclass(frozen=True, slots=True)
class Sight:
    """What the checks look at.

    Attributes:
        free_metadata: bytes, by pool.
        open_files_limit: of the daemon; 0: not known.
        room: bytes left in the file system of a path, None where that is not known.
    """

    daemon: DaemonRecord
    pools: Sequence[PoolRecord] = ()
    namespaces: Sequence[NamespaceRecord] = ()
    clients: Sequence[ClientRecord] = ()
    free_metadata: Mapping[str, int] = field(default_factory=dict)
    open_files_limit: int = 0
    room: Callable[[str], int | None] = lambda path: None


def judge(sight: Sight) -> HealthRecord:
    """All checks over what is seen."""
    found = [finding for check in _ALL for finding in check(sight)]
    return _record(found, len(CHECKS))


def examine(path: str | os.PathLike[str] | None = None, timeout: float = 10.0) -> HealthRecord:
    """Asks the daemon at this socket (None: the usual places). Raises nothing of sacctl."""
    from sacctl.daemon.link import Link

    try:
        with Link(path, timeout=timeout) as link:
            answer = link.call("health")
    except CtlError as error:
        return unreachable(error)
    return HealthRecord(
        status=answer["status"], checks=answer["checks"], findings=answer["findings"]
    )


def unreachable(error: CtlError) -> HealthRecord:
    """The record when the daemon could not be asked: the error is what was found."""
    code = "SAC102"
    if isinstance(error, NotFoundError):
        code = "SAC101"
    elif isinstance(error, DeniedError):
        code = "SAC106"
    return _record([_finding(code, error.object, error.message, error.hint)], 1)


def _record(found: Sequence[FindingRecord], checks: int) -> HealthRecord:
    severities = {finding["severity"] for finding in found}
    status = next((s for s in ("critical", "unknown", "degraded") if s in severities), "ok")
    return {"status": status, "checks": checks, "findings": list(found)}


def _finding(code: str, on: str, message: str, hint: str = "") -> FindingRecord:
    return {
        "code": code,
        "severity": CHECKS[code].severity,
        "object": on,
        "message": message,
        "hint": hint or f"sacctl health --explain {code}",
    }


# ------------------------------------------------------------------------- the daemon


def _daemon(sight: Sight) -> Findings:
    daemon, limit = sight.daemon, sight.open_files_limit
    if daemon["heartbeat_age_ms"] > STUCK_MS:
        yield _finding(
            "SAC103",
            f"process {daemon['pid']}",
            f"the serving thread has stood still for {daemon['heartbeat_age_ms'] / 1000:.0f} s",
            "restart the daemon; clients wait and go on",
        )
    if limit and daemon["open_files"] >= MUCH * limit:
        yield _finding(
            "SAC104",
            f"process {daemon['pid']}",
            f"{daemon['open_files']} of {limit} open files are in use",
            "raise LimitNOFILE of the unit (or ulimit -n) and restart the daemon",
        )
    if daemon["clients"] >= MUCH * daemon["max_clients"]:
        yield _finding(
            "SAC105",
            f"process {daemon['pid']}",
            f"{daemon['clients']} of {daemon['max_clients']} clients are there",
            "raise daemon.max_clients and restart the daemon",
        )


# -------------------------------------------------------------------------- the pools


def _pools(sight: Sight) -> Findings:
    for pool in sight.pools:
        name = pool["name"]
        if pool["state"] == "damaged":
            yield _finding("SAC202", name, f"it is damaged: {pool['reason']}", pool["hint"])
        elif pool["state"] != "serving":
            yield _finding("SAC201", name, f"it is not served: {pool['reason']}", pool["hint"])
        else:
            yield from _pool(pool, sight)


def _pool(pool: PoolRecord, sight: Sight) -> Findings:
    name = pool["name"]
    if pool["dead_blocks"]:
        yield _finding(
            "SAC203", name, f"{pool['dead_blocks']} blocks of 2 MiB of its memory are dead"
        )
    starved = [
        space["name"]
        for space in sight.namespaces
        if space["pool"] == name and space["state"] == "serving" and not space["assigned_bytes"]
    ]
    if starved and pool["free_bytes"] < pool["slab_bytes"]:
        yield _finding(
            "SAC204",
            name,
            f"all of it is given out, and {_some(starved)} {_has(starved)} nothing",
            f"sacctl pool extend {name}, or sacctl namespace resize a large namespace",
        )
    wanted = HUGE.get(pool["huge"], 0)
    if wanted > pool["page_size_obtained"]:
        yield _finding(
            "SAC205",
            name,
            f"pages of {pool['huge']} were asked for, and it has pages of "
            f"{pool['page_size_obtained']} bytes",
            "free memory for huge pages (vm.nr_hugepages), then create the pool again",
        )
    yield from _room(pool, sight)
    free = sight.free_metadata.get(name)
    if free is not None and free < META_SLAB:
        yield _finding(
            "SAC207",
            name,
            "its metadata is full: no namespace can grow or be created",
            "destroy a namespace, or create a pool with more room for metadata",
        )
    if pool["rebooted"]:
        yield _finding(
            "SAC209",
            name,
            "it was opened after a reboot: only pages with a checksum that holds were kept",
        )
    elif pool["recovered"]:
        yield _finding(
            "SAC208", name, "the daemon before this one was killed; no committed page was lost"
        )


def _room(pool: PoolRecord, sight: Sight) -> Findings:
    """Files of a pool take room when it is given out, so it can run out later."""
    paths = [pool["meta"], *(extent["path"] for extent in pool["extents"])]
    room = [left for path in paths if path and (left := sight.room(path)) is not None]
    if room and min(room) < pool["free_bytes"]:
        yield _finding(
            "SAC206",
            pool["name"],
            f"its file system has {min(room) >> 20} MiB left, and the pool has "
            f"{pool['free_bytes'] >> 20} MiB to give out",
            "free room in the file system",
        )


# --------------------------------------------------------------------- the namespaces


def _namespaces(sight: Sight) -> Findings:
    free = {pool["name"]: pool["free_bytes"] for pool in sight.pools}
    slab = {pool["name"]: pool["slab_bytes"] for pool in sight.pools}
    for space in sight.namespaces:
        on = f"{space['pool']}/{space['name']}"
        if space["state"] == "damaged":
            yield _finding(
                "SAC301",
                on,
                f"it is damaged: {space['reason']}",
                f"sacctl namespace destroy {space['name']} --pool {space['pool']}; its pages "
                "are lost",
            )
            continue
        held = space["pinned"] + space["reserved"] + space["quarantined"]
        there = space["pages"] + space["tails"] + space["reserved"] + space["quarantined"]
        quota, one = space["quota_bytes"], slab.get(space["pool"], 0)
        can_grow = free.get(space["pool"], 0) >= one and (
            not quota or space["assigned_bytes"] + one <= quota
        )
        if there and held >= FULL * there and not can_grow:
            yield _finding(
                "SAC302",
                on,
                f"{held} of {there} page parts are pinned, being written or out of use: new "
                "pages find no room",
                f"sacctl namespace show {space['name']} --pool {space['pool']}",
            )
        if space["quarantined"]:
            yield _finding(
                "SAC303",
                on,
                f"{space['quarantined']} page parts are out of use: reservations that expired "
                "before their writer ended, or dead memory",
                "sacctl client list",
            )


# ------------------------------------------------------------------------ the clients


def _clients(sight: Sight) -> Findings:
    for client in sight.clients:
        on = f"client {client['id'][:8]}"
        who = f"{client['name']} (process {client['pid']}, user {client['uid']})"
        held = client["pinned"] + client["reservations"]
        if client["evicted"]:
            yield _finding(
                "SAC402",
                on,
                f"{who} was evicted and still runs, holding {held} pages",
                f"sacctl client evict {client['id'][:8]} --kill",
            )
        elif not client["connected"] and client["lost_ms"] >= LOST_MS:
            code = "SAC401" if held else "SAC403"
            yield _finding(
                code,
                on,
                f"{who} lives, but its connection has been lost for "
                f"{client['lost_ms'] // 1000} s; it holds {held} pages",
                f"sacctl client evict {client['id'][:8]}" if held else "",
            )


_ALL: tuple[Callable[[Sight], Findings], ...] = (_daemon, _pools, _namespaces, _clients)


def _some(names: Iterable[str]) -> str:
    """Up to three names, and how many more."""
    listed = sorted(names)
    more = len(listed) - 3
    text = ", ".join(listed[:3]) + (f" and {more} more" if more > 0 else "")
    return f"namespace{'s' if len(listed) > 1 else ''} {text}"


def _has(names: Sequence[str]) -> str:
    return "have" if len(names) > 1 else "has"
