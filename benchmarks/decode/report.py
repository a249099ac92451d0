# SPDX-License-Identifier: Apache-2.0
"""The decode loop's table and plot."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from decode.modes import FETCH, HBM, POOL, PREFETCH, Figures

HEADS = {
    "mode": "mode",
    "slots": "slots",
    "batch": "batch",
    "tokens_s": "tokens/s",
    "tbt_ms": "TBT ms",
    "p99_ms": "p99 ms",
    "ready_ms": "ready ms",
    "ttft_ms": "TTFT ms",
    "hbm_gb": "KV in HBM GB",
    "largest": "largest batch",
    "overlap": "overlap",
    "misses": "misses",
    "exposed_ms": "exposed ms",
}


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(found: Sequence[Figures]) -> str:
    """One line a mode, batch and number of slots."""
    rows = [[*HEADS.values()]] + [[_text(getattr(f, n)) for n in HEADS] for f in found]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def verdict(found: Sequence[Figures]) -> str:
    """The comparisons that the papers make: throughput at the largest batch measured, and time
    to first token at each batch that both have."""
    lines = []
    pool = [f for f in found if f.mode == POOL]
    for mode in (HBM, FETCH):
        theirs_all = [f for f in found if f.mode == mode and f.batch <= f.largest]
        fitting = [f for f in pool if f.batch <= f.largest]
        if fitting and theirs_all:
            best = max(fitting, key=lambda f: f.tokens_s)
            theirs = max(theirs_all, key=lambda f: f.tokens_s)
            lines.append(
                f"throughput, pool at batch {best.batch} over {mode} at batch {theirs.batch}: "
                f"{best.tokens_s / theirs.tokens_s:.2f} times (at least 2 expected)"
            )
    fetch = [f for f in found if f.mode == FETCH]
    both = [(p, f) for p in pool for f in fetch if p.batch == f.batch]
    for ours, theirs in both:
        lines.append(
            f"time to first token, full fetch over pool, {ours.batch} requests at once: "
            f"{theirs.ttft_ms / ours.ttft_ms:.1f} times (at least 9 expected)"
        )
    ahead = {(f.batch, f.slots): f for f in found if f.mode == PREFETCH}
    for plain in pool:
        other = ahead.get((plain.batch, plain.slots))
        if other and plain.exposed_ms and other.exposed_ms is not None:
            lines.append(
                f"fetching adds to a token, batch {plain.batch}, {plain.slots} slots: "
                f"{plain.exposed_ms:.2f} ms, with prefetch of the next layer "
                f"{other.exposed_ms:.2f} ms: {other.exposed_ms / plain.exposed_ms:.2f} of it"
            )
    return "\n".join(lines)


def plot(found: Sequence[Figures], path: Path) -> bool:
    """Throughput and p99 over the batch, as a picture; False where matplotlib is not here."""
    try:
        matplotlib: Any = import_module("matplotlib")
        matplotlib.use("Agg")
        pyplot: Any = import_module("matplotlib.pyplot")
    except ImportError:
        return False
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    lines: dict[str, list[Figures]] = {}
    for one in found:
        label = one.mode if one.slots is None else f"{one.mode}, {one.slots} slots"
        lines.setdefault(label, []).append(one)
    for label, points in lines.items():
        points.sort(key=lambda f: f.batch)
        batches = [f.batch for f in points]
        left.plot(batches, [f.tokens_s for f in points], "o-", label=label)
        right.plot(batches, [f.p99_ms for f in points], "o-", label=label)
    left.set_ylabel("tokens a second")
    right.set_ylabel("time between tokens, p99, ms")
    for axes in (left, right):
        axes.set_xlabel("batch")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    left.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    return True
