# SPDX-License-Identifier: Apache-2.0
"""What a benchmark found, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sacctl.render.quantities import count, duration, size
from sacctl.render.table import Cell, Facts, Part, Table

__all__ = ["bench_parts"]


def bench_parts(found: Mapping[str, Any]) -> list[Part]:
    """The pages it worked on, and each work beside its limit."""
    facts = Facts()
    facts.add("pool", found["pool"])
    pages = f"{count(found['pages'])} pages of {size(found['page_bytes'])}"
    facts.add("worked on", f"{size(found['size_bytes'])}: {pages}")
    facts.add("pages of the kernel", size(found["page_size_obtained"]))
    facts.add("CPUs", str(found["cpus"]))
    heads = (">a call", ">p50", ">p99", ">each", ">bandwidth", ">limit p50", ">times the limit")
    table = Table(("work", *heads, "~limit"))
    for row in found["results"]:
        p50 = row["p50_ns"]
        moved = row["bytes"]
        table.add(
            row["name"],
            _units(row["units"], row["unit"]),
            duration(p50),
            duration(row["p99_ns"]),
            duration(p50 / row["units"]) if row["units"] else "",
            f"{size(moved * 1e9 / p50)}/s" if moved and p50 else "",
            duration(row["limit_ns"]),
            Cell(f"{row['ratio']:.2f}", "good" if row["ratio"] <= 1.25 else ""),
            row["limit"],
        )
    return [facts, table]


def _units(number: int, unit: str) -> str:
    return f"{count(number)} {unit}" if number == 1 else f"{count(number)} {unit}s"
