# SPDX-License-Identifier: Apache-2.0
"""Bad memory, and what was done about it, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sacctl.render.quantities import count
from sacctl.render.table import Cell, Facts, Part, Table

__all__ = ["monitor_parts"]


def monitor_parts(found: Mapping[str, Any]) -> list[Part]:
    """What one look at the poison lists found and did."""
    facts = Facts()
    bad, done = found["poison"], found["quarantined"]
    facts.add("poison", Cell(f"{len(bad)} places", "bad" if bad else "good"))
    facts.add("out of use", f"{len(done)} places" if done else "nothing new")
    for note in found["notes"]:
        facts.add("note", Cell(note, "warn"))
    parts: list[Part] = [facts]
    table = Table(("device", "serial", "region", ">device address", ">host address", ">bytes"))
    table.title = "poison"
    for event in bad:
        table.add(
            event["device"],
            event["serial"],
            event["region"] or "-",
            _address(event["dpa"]),
            _address(event["hpa"]),
            count(event["bytes"]),
        )
    if table.rows:
        parts.append(table)
    table = Table(("pool", "extent", ">offset", ">bytes", ">pages that left"))
    table.title = "taken out of use"
    for one in done:
        extent = "metadata" if one["extent"] < 0 else str(one["extent"])
        table.add(
            one["pool"], extent, count(one["offset"]), count(one["bytes"]), count(one["pages"])
        )
    if table.rows:
        parts.append(table)
    return parts


def _address(value: int | None) -> str:
    return "-" if value is None else f"{value:#x}"
