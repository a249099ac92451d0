# SPDX-License-Identifier: Apache-2.0
"""Figures of the hot buffer as a table, and beside the goals of docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from hot.measure import Figures

# (batch, slots, row bytes) -> microseconds of a whole call.
GOALS = {
    (1, 4096, 1152): 14.0,
    (1, 4096, 656): 12.0,
    (8, 4096, 1152): 53.0,
    (8, 4096, 656): 36.0,
    (32, 4096, 1152): 195.0,
    (32, 4096, 656): 127.0,
}
PLAN_GOALS = {1: 5.0, 32: 7.0}
HIT_GOAL = (32, 7.0)
MEMORY_GOALS = {"128K tokens": 0.31, "1M tokens": 0.35}

HEADS = {
    "batch": "batch",
    "slots": "slots",
    "row": "row",
    "blocks": "blocks",
    "misses": "misses",
    "whole_us": "whole",
    "gbps": "GB/s",
    "plan_us": "plan",
    "hits_us": "all hits",
    "floor_us": "floor",
    "peer_us": "peer",
    "peer_plan_us": "its plan",
    "ratio": "floor/whole",
    "wrong": "wrong rows",
}


def _text(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(found: Sequence[Figures]) -> str:
    """Times in microseconds a call, misses a request and step."""
    assert set(HEADS) <= {f.name for f in fields(Figures)}
    rows = [[*HEADS.values()]]
    rows += [[_text(getattr(one, name)) for name in HEADS] for one in found]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    return "\n".join(
        "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows
    )


def goals(found: Sequence[Figures], kept: dict[str, float]) -> str:
    """A line for each goal that was measured, of the best number of blocks."""
    best: dict[tuple[int, int, int], Figures] = {}
    for one in found:
        key = (one.batch, one.slots, one.row)
        if key not in best or one.whole_us < best[key].whole_us:
            best[key] = one
    lines = []

    def line(what: str, value: float | None, goal: float, unit: str) -> None:
        if value is not None:
            met = "met" if value <= goal else "NOT MET"
            lines.append(f"{what:44} {value:9.4g} {unit:3} goal {goal:6g}  {met}")

    for key, goal in GOALS.items():
        if key in best:
            line(
                "whole call, batch {}, {} slots, {} B".format(*key),
                best[key].whole_us,
                goal,
                "us",
            )
    for batch, goal in PLAN_GOALS.items():
        if (batch, 4096, 1152) in best:
            line(f"planning alone, batch {batch}", best[batch, 4096, 1152].plan_us, goal, "us")
    batch, goal = HIT_GOAL
    if (batch, 4096, 1152) in best:
        line(f"all hits, batch {batch}", best[batch, 4096, 1152].hits_us, goal, "us")
    for what, goal in MEMORY_GOALS.items():
        line(f"GPU memory, {what}", kept.get(what), goal, "GB")
    return "\n".join(lines)
