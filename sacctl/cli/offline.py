# SPDX-License-Identifier: Apache-2.0
"""Pools as their records say, where no daemon tells more."""

from __future__ import annotations

from sacctl.cli.context import App
from sacctl.errors import CtlError
from sacctl.pool.boot import boot_id
from sacctl.pool.cxl_record import describe
from sacctl.pool.record import Record, Records
from sacctl.records import PoolRecord

__all__ = ["all_pools", "offline", "own_records"]


def own_records(state: App) -> Records:
    """The folder of pool records of the settings."""
    return Records(state.settings.pools.dir)


def offline(record: Record, running: bool, boot: str = "") -> PoolRecord:
    """A pool that no daemon serves. running: one runs and does not know it. boot: id of this
    boot, where it is known."""
    part = record.cxl
    if record.state in ("creating", "destroying"):
        reason = "it was left half made" if record.state == "creating" else "half destroyed"
        hint = f"sacctl pool destroy {record.name}"
    elif part is not None and (record.state == "assembling" or (boot and part.boot != boot)):
        reason = "it is not assembled since the machine started"
        hint = f"sudo sacctl pool assemble {record.name}"
    elif running:
        reason, hint = "the daemon does not know it", "sacctl daemon reload"
    else:
        reason, hint = "no daemon runs", "sacctl daemon run"
    pool: PoolRecord = {
        "name": record.name,
        "kind": record.kind,
        "uuid": record.uuid,
        "created": record.created,
        "state": "offline",
        "reason": reason,
        "hint": hint,
        "owner_uid": record.uid,
        "huge": record.huge,
        "meta": record.meta,
        "data_bytes": 0,
        "free_bytes": 0,
        "metadata_bytes": 0,
        "slab_bytes": 0,
        "incarnation": 0,
        "page_size_obtained": 0,
        "recovered": False,
        "rebooted": False,
        "dead_blocks": 0,
        "read_only": "",
        "namespaces": 0,
        "clients": 0,
        "extents": [
            {
                "pool": record.name,
                "index": index,
                "path": path,
                "bytes": size,
                "assigned_bytes": 0,
                "free_bytes": 0,
                "lost": "",
            }
            for index, (path, size) in enumerate(
                zip(record.data, record.data_bytes(), strict=True)
            )
        ],
    }
    if record.cxl is not None:
        pool["cxl"] = describe(record.cxl)
    return pool


def all_pools(state: App) -> list[PoolRecord]:
    """The daemon's pools, and those of one's own records that it does not know."""
    link = state.try_link()
    found: list[PoolRecord] = link.call("pool.list")["pools"] if link else []
    known = {pool["name"] for pool in found}
    records = own_records(state)
    boot = boot_id(state.sysfs)
    for name in records.names():
        if name in known:
            continue
        try:
            record = records.find(name)
        except CtlError as error:
            found.append(_unreadable(name, error))
            continue
        if record is not None:
            found.append(offline(record, link is not None, boot))
    return sorted(found, key=lambda pool: pool["name"])


def _unreadable(name: str, error: CtlError) -> PoolRecord:
    """A pool whose record is not whole: the name of the file is all that is known."""
    nothing = Record(name=name, uuid="", created="", meta="", data=(), sizes=())
    pool = offline(nothing, False)
    pool["state"], pool["reason"], pool["hint"] = "damaged", error.message, error.hint
    return pool
