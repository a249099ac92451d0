# SPDX-License-Identifier: Apache-2.0
"""Selections to play: made up with a given overlap and working set, or recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# With an overlap of 0.85 an LRU buffer misses 262 of 2,048 a step at 4,096 slots and 217 at
# 6,144 where the selections come from so many tokens (13,900 give 255 and 201).
HOT_TOKENS = 15_800
OVERLAP = 0.85


def closed(
    steps: int,
    requests: int,
    context: int,
    top_k: int,
    hot: int = HOT_TOKENS,
    overlap: float = OVERLAP,
    seed: int = 1,
) -> NDArray[np.int32]:
    """(steps, requests, top_k): each step keeps ``overlap`` of the one before, the first
    step of the last one too, so that a graph that plays them can be replayed without a jump.

    hot: tokens of the context that a request's selections come from; the others are drawn
    evenly from those not selected now. Raises ValueError where that cannot be.
    """
    fresh = top_k - round(top_k * overlap)
    if not 0 < top_k + fresh <= hot <= context:
        raise ValueError(f"{hot} hot tokens of {context} for selections of {top_k}")
    if steps * fresh < top_k:
        raise ValueError(f"{steps} steps are too few to come back to the first selection")
    rng = np.random.default_rng(seed)
    out = np.empty((steps, requests, top_k), np.int32)
    for request in range(requests):
        # Positions among the hot tokens until the end; the tokens only then.
        walk = _walk(rng, steps, top_k, hot, fresh)
        tokens = rng.permutation(context)[:hot].astype(np.int32)
        for step in range(steps):
            out[step, request] = rng.permutation(tokens[walk[step]])
    return out


def _walk(
    rng: np.random.Generator, steps: int, top_k: int, hot: int, fresh: int
) -> NDArray[np.int64]:
    first = np.zeros(hot, bool)
    first[rng.choice(hot, top_k, replace=False)] = True
    now = first.copy()
    walk = np.empty((steps, top_k), np.int64)
    walk[0] = np.flatnonzero(now)
    for step in range(1, steps):
        missing = np.flatnonzero(first & ~now)
        # So many may still be missing after this step, for the rest of the way back.
        back = max(0, len(missing) - fresh * (steps - step))
        inside = np.flatnonzero(now & ~first) if back else np.flatnonzero(now)
        outside = np.flatnonzero(~now & ~first) if back else np.flatnonzero(~now)
        leave = rng.choice(inside, fresh, replace=False)
        enter = rng.choice(outside, fresh - back, replace=False)
        now[leave] = False
        now[enter] = True
        if back:
            now[rng.choice(missing, back, replace=False)] = True
        walk[step] = np.flatnonzero(now)
    return walk


def overlap_of(trace: NDArray[np.int32]) -> float:
    """Mean part of a step's tokens that the step before had; the last step precedes the
    first."""
    parts = []
    for request in range(trace.shape[1]):
        for step in range(len(trace)):
            both = np.intersect1d(trace[step, request], trace[step - 1, request])
            parts.append(len(both) / trace.shape[2])
    return float(np.mean(parts))


def recorded(path: Path, requests: int) -> tuple[NDArray[np.int32], int]:
    """Lanes of a recorded trace as that many requests: (steps, requests, top_k) and the
    number of units their contexts have at least.

    Each lane is one (request, group, layer, head) of the file; lanes beyond those asked for
    are left out, and where there are fewer they are repeated. Raises SystemExit where the
    file has no lane with two selections of full width.
    """
    from libsac.trace import Selection, Trace

    lanes: dict[tuple[int, int, int, int], list[NDArray[np.int32]]] = {}
    with Trace(path) as trace:
        for event in trace:
            if not isinstance(event, Selection) or event.tokens.shape[2] != trace.top_k:
                continue
            for row, request in enumerate(event.requests.tolist()):
                for head in range(trace.heads):
                    lane = lanes.setdefault((request, event.group, event.layer, head), [])
                    lane.append(event.tokens[row, head])
    full = [lane for lane in lanes.values() if len(lane) > 1]
    if not full:
        raise SystemExit(f"{path} has no lane with two selections of {trace.top_k} units")
    # Lanes far from each other in the file: neighbours are heads of one layer.
    picked = [full[i * len(full) // requests % len(full)] for i in range(requests)]
    steps = min(map(len, picked))
    out = np.stack([np.stack(lane[:steps]) for lane in picked], axis=1)
    # Forwards and back again, so that a replay follows the last step without a jump.
    out = np.concatenate([out, out[-2:0:-1]])
    return np.ascontiguousarray(out), int(out.max()) + 1
