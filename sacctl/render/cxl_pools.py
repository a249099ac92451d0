# SPDX-License-Identifier: Apache-2.0
"""Pools of CXL devices as tables: what they are made of, plans, assemblies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sacctl.render.quantities import size
from sacctl.render.table import Cell, Facts, Part, Table

__all__ = ["add_facts", "assembled_table", "plan_parts", "regions_table"]


def add_facts(facts: Facts, cxl: Mapping[str, Any]) -> None:
    """What a pool of CXL devices has beyond the facts of every pool."""
    facts.add("mode", cxl["mode"])
    if cxl["adopted"]:
        facts.add("adopted", "its region was there before, and stays when it goes")
    facts.add("in the room of", cxl["parent"])
    if cxl["room_bytes"]:
        free = cxl.get("room_free_bytes")
        left = "" if free is None else f", {size(free)} free"
        facts.add("room for isolated namespaces", size(cxl["room_bytes"]) + left)
    if cxl["mount"]:
        nodes = ", ".join(map(str, cxl["nodes"]))
        facts.add("tmpfs", f"{cxl['mount']}, on node {nodes}")


def regions_table(cxl: Mapping[str, Any]) -> Table:
    """One line a region."""
    table = Table(
        ("region", ">ways", ">granularity", ">size", "dax", ">weight", "~devices"),
        title="regions",
    )
    for region in cxl["regions"]:
        table.add(
            region["region"] or _unnamed(region),
            str(region["ways"]),
            str(region["granularity"] or ""),
            size(region["bytes"]),
            " ".join(region["dax"]),
            str(region["weight"]),
            " ".join(region["devices"]),
        )
    return table


def _unnamed(region: Mapping[str, Any]) -> str:
    return "hmem" if region["devices"][0].startswith("hmem:") else "none"


def plan_parts(plan: Mapping[str, Any]) -> list[Part]:
    """What ``pool plan`` shows."""
    facts = Facts()
    facts.add("size", size(plan["bytes"]))
    facts.add("for namespaces", size(plan["data_bytes"]))
    facts.add("metadata", size(plan["metadata_bytes"]))
    facts.add("extents", str(len(plan["regions"])))
    speed = plan["bandwidth_bytes_per_second"]
    shown = f"{speed / 1e9:.3g} GB/s, " if speed else ""
    facts.add("bandwidth", shown + plan["bandwidth_how"])
    stranded = [f"{size(left)} of {name}" for name, left in plan["stranded"].items()]
    facts.add("not used", ", ".join(stranded))
    for reason in plan["why"]:
        facts.add("why", reason)
    for one in plan["left_out"]:
        facts.add("left out", one["why"])
    table = Table(
        ("region", "window", ">ways", ">granularity", ">size", ">each", "~devices by position")
    )
    for number, region in enumerate(plan["regions"]):
        table.add(
            str(number),
            region["root"],
            str(region["ways"]),
            str(region["granularity"]),
            size(region["bytes"]),
            size(region["bytes_each"]),
            " ".join(region["devices"]),
        )
    return [facts, table]


def _content(one: Mapping[str, Any]) -> Cell | str:
    if one["formatted"]:
        return Cell("formatted anew", "warn")
    if not one["checked"]:
        return "kept"
    return "checked" if one["pages"] is None else f"checked, {one['pages']} pages"


def assembled_table(done: Iterable[Mapping[str, Any]]) -> Table:
    """One line a pool."""
    table = Table(("pool", "devices", "content", "served"))
    for one in done:
        if "error" in one:
            table.add(one["pool"], Cell("not assembled", "bad"), "", "")
            continue
        table.add(
            one["pool"],
            "made again" if one["changed"] else "were there",
            _content(one),
            "yes" if one["served"] else "no",
        )
    return table
