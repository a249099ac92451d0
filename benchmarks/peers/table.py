# SPDX-License-Identifier: Apache-2.0
"""The one table of all stores, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from peers.work import BATCH, EXIST_COUNTS, Figures


def size_name(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def number(value: float | None) -> str:
    """Three digits, or more where they are whole."""
    if value is None:
        return "-"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def lines(rows: Iterable[Sequence[str]]) -> list[str]:
    """Aligned: the first column to the left, the others to the right."""
    cells = [list(row) for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def table(all_figures: Sequence[Figures], sizes: Sequence[int]) -> str:
    """us a key, in brackets the multiple of memcpy's time in the same run; exists in us."""
    out: list[str] = []

    def part(title: str, values: str, ratios: str) -> None:
        rows = [[title, *map(size_name, sizes)]]
        if values == "put":
            first = all_figures[0]
            rows.append(["memcpy", *(number(first.memcpy.get(s)) for s in sizes)])
        for figures in all_figures:
            cells = []
            for size in sizes:
                value = getattr(figures, values).get(size)
                ratio = getattr(figures, ratios).get(size)
                cells.append(f"{number(value)} ({number(ratio)})")
            rows.append([figures.name, *cells])
        out.extend([*lines(rows), ""])

    part("put, one key a call: us (x memcpy)", "put", "put_ratio")
    part("get, one key a call: us (x memcpy)", "get", "get_ratio")
    part(f"put, {BATCH} keys a call: us a key (x memcpy)", "put_batch", "put_batch_ratio")
    part(f"get, {BATCH} keys a call: us a key (x memcpy)", "get_batch", "get_batch_ratio")
    rows = [["exists, all there: us a call", *(f"{n:,} keys" for n in EXIST_COUNTS)]]
    rows += [[f.name, *(number(f.exists.get(n)) for n in EXIST_COUNTS)] for f in all_figures]
    return "\n".join(out + lines(rows))
