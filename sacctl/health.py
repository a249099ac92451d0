# SPDX-License-Identifier: Apache-2.0
"""Health: what is looked at, and what is found. docs/health.md lists the codes.

The daemon looks (:func:`judge` over what it knows); :func:`examine` asks it and also says
what can be said when it does not answer. Nothing is mutated. Imports no libsac.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from sacctl.errors import CtlError, DeniedError, NotFoundError
from sacctl.health_codes import CHECKS, explain
from sacctl.health_sight import Findings, Sight, finding
from sacctl.health_users import clients, namespaces
from sacctl.records import (
    FindingRecord,
    HealthRecord,
    PoolRecord,
)

if TYPE_CHECKING:
    from sacctl.cxl.condition import Condition

__all__ = ["CHECKS", "EXIT", "Sight", "examine", "explain", "judge", "unreachable", "with_more"]

EXIT = {"ok": 0, "degraded": 10, "critical": 20, "unknown": 30}
STUCK_MS = 5000  # the serving thread turns many times a second
MUCH = 0.9
HUGE = {"2M": 2 << 20, "1G": 1 << 30}
META_SLAB = 65536


def judge(sight: Sight) -> HealthRecord:
    """All checks over what is seen."""
    found = [one for check in _ALL for one in check(sight)]
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
    return _record([finding(code, error.object, error.message, error.hint)], 1)


def with_more(record: HealthRecord, devices: Sequence[Condition]) -> HealthRecord:
    """The record with what was seen beside it; what it has already is not said twice."""
    said = {(f["code"], f["object"]) for f in record["findings"]}
    new = [f for f in _devices(devices) if (f["code"], f["object"]) not in said]
    return _record([*record["findings"], *new], record["checks"])


def _record(found: Sequence[FindingRecord], checks: int) -> HealthRecord:
    severities = {f["severity"] for f in found}
    status = next((s for s in ("critical", "unknown", "degraded") if s in severities), "ok")
    return {"status": status, "checks": checks, "findings": list(found)}


# ------------------------------------------------------------------------- the daemon


def _daemon(sight: Sight) -> Findings:
    daemon, limit = sight.daemon, sight.open_files_limit
    if daemon["heartbeat_age_ms"] > STUCK_MS:
        yield finding(
            "SAC103",
            f"process {daemon['pid']}",
            f"the serving thread has stood still for {daemon['heartbeat_age_ms'] / 1000:.0f} s",
            "restart the daemon; clients wait and go on",
        )
    if limit and daemon["open_files"] >= MUCH * limit:
        yield finding(
            "SAC104",
            f"process {daemon['pid']}",
            f"{daemon['open_files']} of {limit} open files are in use",
            "raise LimitNOFILE of the unit (or ulimit -n) and restart the daemon",
        )
    if daemon["clients"] >= MUCH * daemon["max_clients"]:
        yield finding(
            "SAC105",
            f"process {daemon['pid']}",
            f"{daemon['clients']} of {daemon['max_clients']} clients are there",
            "raise daemon.max_clients and restart the daemon",
        )


# -------------------------------------------------------------------------- the pools


def _pools(sight: Sight) -> Findings:
    for pool in sight.pools:
        name = pool["name"]
        if pool["state"] == "lost":
            yield finding(
                "SAC210", name, f"its memory has gone: {pool['reason']}", pool["hint"]
            )
        elif pool["state"] == "damaged":
            yield finding("SAC202", name, f"it is damaged: {pool['reason']}", pool["hint"])
        elif pool["state"] != "serving":
            yield finding("SAC201", name, f"it is not served: {pool['reason']}", pool["hint"])
        else:
            yield from _pool(pool, sight)


def _pool(pool: PoolRecord, sight: Sight) -> Findings:
    name = pool["name"]
    for extent in pool["extents"]:
        if extent.get("lost"):
            yield finding(
                "SAC211",
                name,
                f"extent {extent['index']} has gone: {extent['lost']}",
                f"when its device is back: sacctl pool assemble {name}",
            )
    if pool["read_only"]:
        yield finding("SAC212", name, f"it takes no more writes: {pool['read_only']}")
    if pool["dead_blocks"]:
        dead = pool["dead_blocks"]
        which = "1 block" if dead == 1 else f"{dead} blocks"
        are = "is" if dead == 1 else "are"
        yield finding("SAC203", name, f"{which} of 2 MiB of its memory {are} dead")
    starved = [
        space["name"]
        for space in sight.namespaces
        if space["pool"] == name and space["state"] == "serving" and not space["assigned_bytes"]
    ]
    if starved and pool["free_bytes"] < pool["slab_bytes"]:
        yield finding(
            "SAC204",
            name,
            f"all of it is given out, and {_some(starved)} {_has(starved)} nothing",
            f"sacctl pool extend {name}, or sacctl namespace resize a large namespace",
        )
    wanted = HUGE.get(pool["huge"], 0)
    if wanted > pool["page_size_obtained"]:
        yield finding(
            "SAC205",
            name,
            f"pages of {pool['huge']} were asked for, and it has pages of "
            f"{pool['page_size_obtained']} bytes",
            "free memory for huge pages (vm.nr_hugepages), then create the pool again",
        )
    if pool.get("cxl", {}).get("mode") != "devdax":  # device files lie in no file system
        yield from _room(pool, sight)
    free = sight.free_metadata.get(name)
    if free is not None and free < META_SLAB:
        yield finding(
            "SAC207",
            name,
            "its metadata is full: no namespace can grow or be created",
            "destroy a namespace, or create a pool with more room for metadata",
        )
    if pool["rebooted"]:
        yield finding(
            "SAC209",
            name,
            "it was opened after a reboot, or after its memory was away: only pages with a "
            "checksum that holds were kept",
        )
    elif pool["recovered"]:
        yield finding(
            "SAC208", name, "the daemon before this one was killed; no committed page was lost"
        )


def _room(pool: PoolRecord, sight: Sight) -> Findings:
    """Files of a pool take room when it is given out, so it can run out later."""
    paths = [pool["meta"], *(extent["path"] for extent in pool["extents"])]
    room = [left for path in paths if path and (left := sight.room(path)) is not None]
    if room and min(room) < pool["free_bytes"]:
        yield finding(
            "SAC206",
            pool["name"],
            f"its file system has {min(room) >> 20} MiB left, and the pool has "
            f"{pool['free_bytes'] >> 20} MiB to give out",
            "free room in the file system",
        )


# ------------------------------------------------------------------------ the devices


def _devices(seen: Iterable[Condition]) -> Findings:
    for one in seen:
        yield finding(one.code, one.object, one.message, one.hint)


_ALL: tuple[Callable[[Sight], Findings], ...] = (
    _daemon,
    _pools,
    namespaces,
    clients,
    lambda sight: _devices(sight.devices),
)


def _some(names: Iterable[str]) -> str:
    """Up to three names, and how many more."""
    listed = sorted(names)
    more = len(listed) - 3
    text = ", ".join(listed[:3]) + (f" and {more} more" if more > 0 else "")
    return f"namespace{'s' if len(listed) > 1 else ''} {text}"


def _has(names: Sequence[str]) -> str:
    return "have" if len(names) > 1 else "has"
