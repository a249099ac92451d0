# SPDX-License-Identifier: Apache-2.0
"""``sacctl bench policy``: miss rates that hot buffers would have had over a recorded trace.

No GPU is needed: what a hot buffer would have held is played, policy by policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from libsac.hotbuffer.policies import NAMES
from libsac.trace import Trace
from sacctl.bench.lanes import Chunk, Rows
from sacctl.bench.players import BEST, PLAYERS, RANDOM
from sacctl.errors import UsageError

__all__ = ["BEST", "POLICIES", "PolicyBenchRecord", "PolicyRecord", "default_slots", "policy"]

# Scores are not in a trace, so the policy that needs them cannot be played.
POLICIES = (*(name for name in NAMES if name != "lru_score"), BEST)

MAX_SLOTS = 8_192  # of a HotBuffer: HOT_SLOTS_MAX in its kernels/args.h


class PolicyRecord(TypedDict):
    """One policy with one number of slots. hits, misses: distinct units of all selections;
    miss_rate: misses / (hits + misses)."""

    policy: str
    slots: int
    hits: int
    misses: int
    miss_rate: float


class PolicyBenchRecord(TypedDict):
    """What a trace holds, and what buffers would have missed.

    lanes: lives of a request, times layer and head. selections: of all lanes. selected:
    distinct units in them; first_touches: those that their lane had not selected before, which
    every buffer misses. overlap: mean part of a selection that the lane's one before had.
    lost: selections that the recorder left out. truncated: the file ends within a record.
    results: none where nothing was selected, so that there is nothing to play.
    """

    what: str
    trace: str
    top_k: int
    block: int
    lanes: int
    selections: int
    selected: int
    first_touches: int
    overlap: float
    lost: int
    truncated: bool
    results: list[PolicyRecord]


def default_slots(top_k: int) -> list[int]:
    """Twice and three times as many as are selected: 4,096 and 6,144 for 2,048; no more than
    a hot buffer can have."""
    return [min(2 * top_k, MAX_SLOTS), min(3 * top_k, MAX_SLOTS)]


def policy(
    path: Path, slots: Sequence[int] = (), policies: Sequence[str] = POLICIES
) -> PolicyBenchRecord:
    """Plays the trace with each policy and each number of slots.

    slots: none: ``default_slots``. Raises UsageError for slots or policies that cannot be,
    libsac's errors for a file that is no sound trace.
    """
    for name in policies:
        if name not in POLICIES:
            raise UsageError(
                f"there is no policy '{name}'", hint=f"choose of {', '.join(POLICIES)}"
            )
    with Trace(path) as trace:
        if trace.top_k > MAX_SLOTS:
            raise UsageError(
                f"{path} was recorded for selections of up to {trace.top_k} units; a hot "
                f"buffer has at most {MAX_SLOTS} slots, and a selection must fit",
                hint=f"record one with Recorder(top_k=...) of {MAX_SLOTS} or less",
            )
        sizes = sorted(set(slots or default_slots(trace.top_k)))
        for size in sizes:
            if not trace.top_k <= size <= MAX_SLOTS:
                raise UsageError(
                    f"{size} slots for selections of up to {trace.top_k}",
                    hint=f"give {trace.top_k} to {MAX_SLOTS}: a selection must fit",
                )
        rows = Rows(trace)
        found = PolicyBenchRecord(
            what="policy",
            trace=str(path),
            top_k=trace.top_k,
            block=trace.block,
            lanes=rows.lanes,
            selections=rows.selections,
            selected=0,
            first_touches=0,
            overlap=0.0,
            lost=rows.lost,
            truncated=trace.truncated,
            results=[],
        )
    # By the number of units of a selection, so that the mean is exact whatever the order.
    counts, together = np.zeros((2, found["top_k"] + 1), np.int64)
    misses = dict.fromkeys(((name, size) for name in policies for size in sizes), 0)
    for chunk in rows:
        found["selected"] += int(chunk.selected.sum())
        found["first_touches"] += int(chunk.distinct.sum())
        some, common = chunk.overlaps()
        counts[: len(some)] += some
        together[: len(common)] += common
        if misses:
            _play(chunk, misses)
    if counts.any():
        parts = (int(together[n]) / int(n) for n in np.flatnonzero(counts))
        found["overlap"] = math.fsum(parts) / int(counts.sum())
    if not found["selected"]:
        return found
    for (name, size), missed in misses.items():
        found["results"].append(
            PolicyRecord(
                policy=name,
                slots=size,
                hits=found["selected"] - missed,
                misses=missed,
                miss_rate=missed / found["selected"],
            )
        )
    return found


def _play(chunk: Chunk, misses: dict[tuple[str, int], int]) -> None:
    """Adds each policy's misses of these lanes.

    Most lanes have room for all their units: each is fetched once, and no policy is asked.
    """
    least = min(size for _, size in misses)
    random = any(name == RANDOM for name, _ in misses)
    played = chunk.distinct > least
    if random:
        played |= ~chunk.settled
    once = int(chunk.distinct[~played].sum())
    for key in misses:
        misses[key] += once
    for number, lane in chunk.lanes(played):
        distinct = int(chunk.distinct[number])
        for name, size in misses:
            fits = chunk.settled[number] if name == RANDOM else distinct <= size
            misses[name, size] += distinct if fits else PLAYERS[name](lane, size)
