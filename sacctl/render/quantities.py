# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them. JSON keeps the raw ones."""

from __future__ import annotations

import time
import unicodedata

__all__ = [
    "ago",
    "clean",
    "count",
    "duration",
    "hit_rate",
    "list_of",
    "percent",
    "point_in_time",
    "rate",
    "share_bar",
    "size",
    "width",
]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size(n: float) -> str:
    """Bytes in powers of 1024 with three figures: 1536 gives "1.5 KiB"."""
    value = float(n)
    for unit in _UNITS:
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{_figures(value)} {unit}"


def count(n: float) -> str:
    """A whole number, from 100,000 on shortened to three figures: "1.25 M"."""
    if abs(n) < 99_999.5:
        return f"{round(n):,}"
    value = float(n)
    for unit in ("", "k", "M", "G", "T", "P"):
        if abs(value) < 999.5 or unit == "P":
            break
        value /= 1000
    return f"{_figures(value)} {unit}"


def rate(n: float) -> str:
    """A number a second."""
    return f"{_figures(n) if n < 100 else count(n)}/s"


def duration(ns: float) -> str:
    """Nanoseconds as "850 ns", "12.3 us", "4.5 ms", "2 s", "3 min", "5 h", "2 d"."""
    value = float(ns)
    for unit, step in (("ns", 1000), ("us", 1000), ("ms", 1000), ("s", 120), ("min", 120),
                       ("h", 48)):  # fmt: skip
        if value < (999.5 if step == 1000 else step):
            return f"{_figures(value)} {unit}"
        value /= {120: 60, 48: 24}.get(step, step)
    return f"{_figures(value)} d"


def percent(part: float, whole: float) -> str:
    """ "37%"; "-" of nothing."""
    return f"{100 * part / whole:.0f}%" if whole else "-"


def hit_rate(hits: int, lookups: int) -> str:
    """ "97.3%"; "-" where nothing was looked up."""
    return f"{100 * hits / lookups:.1f}%" if lookups else "-"


def share_bar(part: float, whole: float, cells: int = 10) -> str:
    """A bar of # and . as wide as so many cells: for eyes, beside the number."""
    full = round(cells * min(1.0, part / whole)) if whole else 0
    return "#" * full + "." * (cells - full)


def ago(since_ms: int, now_ms: int | None = None) -> str:
    """How long ago a point in time was; "-" for none."""
    now = int(time.time() * 1000) if now_ms is None else now_ms
    return duration(max(0, now - since_ms) * 1_000_000) if since_ms else "-"


def point_in_time(ms: int) -> str:
    """Local date and time of milliseconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


def list_of(names: list[str], most: int = 8) -> str:
    """ "a, b and 3 more"; "-" for none."""
    if not names:
        return "-"
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def clean(text: str) -> str:
    """Text that others chose, safe for a terminal: control and format characters, and
    surrogates, are shown as escapes. Line ends too, so that a row stays a row."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c == " " or unicodedata.category(c)[0] not in "CZ" else f"\\u{ord(c):04x}"
        for c in text
    )


def width(text: str) -> int:
    """Columns that the text takes on a terminal."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)


def _figures(value: float) -> str:
    """Three significant figures, without zeros behind the point."""
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text
