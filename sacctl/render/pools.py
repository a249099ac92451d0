# SPDX-License-Identifier: Apache-2.0
"""Pools and namespaces as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sacctl.records import FlushRecord, HolderRecord, NamespaceRecord, PoolRecord
from sacctl.render.cxl_pools import add_facts, regions_table
from sacctl.render.quantities import count, percent, size
from sacctl.render.table import Cell, Facts, Part, Table
from sacctl.render.users import group, user

__all__ = [
    "flush_parts",
    "namespace_parts",
    "namespace_table",
    "pool_parts",
    "pool_table",
    "state_cell",
]

_MOODS = {"serving": "good", "absent": "bad", "damaged": "bad", "offline": "warn"}


def state_cell(state: str) -> Cell:
    """A pool's or namespace's state, coloured."""
    return Cell(state, _MOODS.get(state, ""))


def pool_table(pools: Iterable[PoolRecord]) -> Table:
    """One line a pool."""
    table = Table(
        ("name", "kind", "state", ">size", ">free", ">used", ">extents", ">namespaces",
         ">clients")
    )  # fmt: skip
    for pool in pools:
        if pool["state"] == "serving":
            data, free = pool["data_bytes"], pool["free_bytes"]
            numbers = [
                size(data),
                size(free),
                percent(data - free, data),
                str(len(pool["extents"])),
                str(pool["namespaces"]),
                str(pool["clients"]),
            ]
        else:
            known = sum(extent["bytes"] for extent in pool["extents"])
            numbers = [size(known) if known else "", "", "", str(len(pool["extents"])), "", ""]
        table.add(pool["name"], pool["kind"], state_cell(pool["state"]), *numbers)
    return table


def pool_parts(pool: PoolRecord, namespaces: Iterable[NamespaceRecord] = ()) -> list[Part]:
    """All of one pool."""
    facts = Facts()
    serving = pool["state"] == "serving"
    facts.add("name", pool["name"])
    facts.add("state", state_cell(pool["state"]))
    facts.add("why", Cell(pool["reason"], "bad"))
    facts.add("next", pool["hint"])
    facts.add("kind", pool["kind"])
    cxl = pool.get("cxl")
    if cxl is not None:
        add_facts(facts, cxl)
    facts.add("uuid", pool["uuid"])
    facts.add("created", pool["created"])
    facts.add("owner", user(pool["owner_uid"]))
    if serving:
        data, free = pool["data_bytes"], pool["free_bytes"]
        facts.add("size", size(data))
        facts.add("free", f"{size(free)} ({percent(free, data)})")
        held = "on a device" if "/dev/dax" in pool["meta"] else "in a sparse file"
        facts.add("metadata", f"up to {size(pool['metadata_bytes'])}, {held}")
        facts.add("slab", size(pool["slab_bytes"]))
        facts.add("pages of the kernel", _kernel_pages(pool))
        facts.add("found", _found(pool))
        dead = pool["dead_blocks"]
        facts.add("dead blocks", Cell(str(dead), "bad" if dead else ""))
        if pool["read_only"]:
            facts.add("writes", Cell(f"none: {pool['read_only']}", "bad"))
        facts.add("clients", str(pool["clients"]))
    facts.add("metadata file", pool["meta"])
    extents = Table(("extent", ">size", ">free", "~path"), title="extents")
    for extent in pool["extents"]:
        free_text = size(extent["free_bytes"]) if serving else ""
        extents.add(str(extent["index"]), size(extent["bytes"]), free_text, extent["path"])
    parts: list[Part] = [facts, extents]
    if cxl is not None:
        parts.append(regions_table(cxl))
    spaces = namespace_table(namespaces)
    if spaces.rows:
        spaces.title = "namespaces"
        parts.append(spaces)
    return parts


def _kernel_pages(pool: PoolRecord) -> str:
    got = size(pool["page_size_obtained"])
    return f"{got} (asked for {pool['huge']})" if pool["huge"] else got


def _found(pool: PoolRecord) -> str:
    if pool["rebooted"]:
        return "the last owner ran before a reboot"
    return "the last owner did not close it" if pool["recovered"] else ""


def namespace_table(namespaces: Iterable[NamespaceRecord]) -> Table:
    """One line a namespace."""
    table = Table(
        ("pool", "name", "state", "owner", "mode", ">held", ">quota", ">pages", ">page",
         ">pinned", "~model"),
        keys=2,
    )  # fmt: skip
    for space in namespaces:
        quota = size(space["quota_bytes"]) if space["quota_bytes"] else "none"
        table.add(
            space["pool"],
            space["name"],
            state_cell(space["state"]),
            f"{user(space['uid'])}:{group(space['gid'])}",
            space["mode"],
            size(space["assigned_bytes"]),
            quota,
            count(space["pages"]),
            size(space["body_bytes"]),
            count(space["pinned"]),
            space["model"],
        )
    return table


def namespace_parts(space: NamespaceRecord, holders: Iterable[HolderRecord] = ()) -> list[Part]:
    """All of one namespace."""
    facts = Facts()
    facts.add("name", space["name"])
    facts.add("pool", space["pool"])
    facts.add("state", state_cell(space["state"]))
    facts.add("why", Cell(space["reason"], "bad"))
    facts.add("owner", f"{user(space['uid'])}:{group(space['gid'])}")
    facts.add("mode", space["mode"])
    facts.add("model", space["model"])
    facts.add("keys", space["key_scheme"])
    facts.add("eviction", space["policy"])
    options = (("checksum of its rows", space["checksum"]), ("token ids", space["token_ids"]))
    kept = [word for word, on in options if on]
    facts.add("kept with a page", " and ".join(kept) or "nothing but its rows")
    facts.add("page", f"{space['page_tokens']} tokens, {size(space['body_bytes'])}")
    if space["tail_bytes"]:
        facts.add(
            "tail", f"{size(space['tail_bytes'])}, of the last {space['tail_pages']} pages"
        )
    facts.add("layout", space["layout_hash"][:16])
    held = size(space["assigned_bytes"])
    quota = space["quota_bytes"]
    facts.add("held", f"{held} of {size(quota)}" if quota else f"{held}, no quota")
    facts.add("index", f"{size(space['index_bytes'])} of memory")
    capacity = space["capacity_pages"]
    pages = space["pages"]
    facts.add("pages", f"{count(pages)} of {count(capacity)} ({percent(pages, capacity)})")
    facts.add("tails", count(space["tails"]) if space["tail_bytes"] else "")
    facts.add("pinned", count(space["pinned"]))
    facts.add("being written", count(space["reserved"]))
    facts.add("out of use", count(space["quarantined"]) if space["quarantined"] else "")
    parts: list[Part] = [facts]
    planes = _planes(space.get("layout"))
    if planes is not None:
        parts.append(planes)
    table = _holders(holders)
    if table.rows:
        parts.append(table)
    return parts


def _planes(layout: Mapping[str, Any] | None) -> Table | None:
    if layout is None:
        return None
    table = Table(
        ("plane", "kind", "group", ">layers", ">heads", ">row", ">tokens a row", "dtype"),
        title="planes",
    )
    for plane in layout["planes"]:
        table.add(
            plane["name"],
            plane.get("kind", "rows"),
            str(plane.get("group", "")),
            str(len(plane["layers"])),
            str(plane.get("heads", 1)),
            size(plane["row_bytes"]),
            str(plane.get("tokens_per_row", 1)),
            plane.get("dtype", ""),
        )
    return table


def _holders(holders: Iterable[HolderRecord]) -> Table:
    table = Table(("client", ">pid", "user", ">pinned", ">writing"), title="clients")
    for holder in holders:
        table.add(
            holder["name"],
            str(holder["pid"]),
            user(holder["uid"]),
            count(holder["pinned"]),
            count(holder["reservations"]),
        )
    return table


def flush_parts(flush: FlushRecord) -> list[Part]:
    """What left, what stayed, and who holds it."""
    facts = Facts()
    facts.add("evicted", f"{count(flush['evicted'])} parts of pages")
    left = flush["pages"] + flush["tails"]
    facts.add("stayed", f"{count(left)} parts" if left else "none")
    if left or flush["reserved"]:
        facts.add("pinned", count(flush["pinned"]))
        facts.add("being written", count(flush["reserved"]))
    holders = _holders(flush["holders"])
    holders.title = "held by"
    return [facts, holders] if holders.rows else [facts]
