# SPDX-License-Identifier: Apache-2.0
"""What a trace holds and what buffers would have missed, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sacctl.render.quantities import count, hit_rate, percent
from sacctl.render.table import Facts, Part, Table

__all__ = ["policy_parts"]


def policy_parts(found: Mapping[str, Any]) -> list[Part]:
    """The trace's own figures, and a line for each policy and number of slots that was
    played."""
    facts = Facts()
    facts.add("trace", found["trace"])
    facts.add("lanes", f"{count(found['lanes'])} (lives of a request, times layer and head)")
    facts.add("selections", f"{count(found['selections'])} of up to {count(found['top_k'])}")
    facts.add("tokens a unit", count(found["block"]))
    facts.add("overlap", f"{found['overlap']:.3f} of a selection was in the one before")
    first = percent(found["first_touches"], found["selected"])
    facts.add("first touches", f"{count(found['first_touches'])}: {first} of what was selected")
    if not found["results"]:
        return [facts]
    heads = (">hits", ">misses", ">miss rate", ">misses each")
    table = Table(("policy", ">slots", *heads), keys=2)
    for row in found["results"]:
        each = row["misses"] / found["selections"] if found["selections"] else 0.0
        table.add(
            row["policy"],
            count(row["slots"]),
            count(row["hits"]),
            count(row["misses"]),
            hit_rate(row["misses"], row["hits"] + row["misses"]),
            f"{each:.1f}",
        )
    return [facts, table]
