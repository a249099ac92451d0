# SPDX-License-Identifier: Apache-2.0
"""The live view of ``stats --watch`` on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from sacctl.records import StatsRecord
from sacctl.render.quantities import clean, point_in_time
from sacctl.render.stats import stats_parts
from sacctl.render.table import console, drawn

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["View", "live"]

# Lines that are no rows: heads, titles and what is between the tables.
_FRAME = 24


class View:
    """The screen while it is watched; made by :func:`live`."""

    def __init__(self, inner: Live, interval: float) -> None:
        self._inner = inner
        self._interval = interval

    def show(self, now: StatsRecord, before: StatsRecord | None, trouble: str = "") -> None:
        """Draws a look anew; trouble is said above it (the daemon does not answer)."""
        from rich.console import Group
        from rich.text import Text

        height = self._inner.console.size.height
        most = max(3, (height - _FRAME) // 2)
        what = "totals" if before is None else "a second"
        head = (
            f"{point_in_time(now['time_ms'])}  every {self._interval:g} s, {what}; Ctrl-C ends"
        )
        lines = [Text(head, style="dim")]
        if trouble:
            lines.append(Text(clean(trouble), style="bold red"))
        parts = stats_parts(now, before, most=most)
        self._inner.update(
            Group(*lines, Text(), drawn(parts, self._inner.console.width)), refresh=True
        )


@contextmanager
def live(out: TextIO, interval: float) -> Iterator[View]:
    """The other screen of the terminal, and the usual one again at the end."""
    from rich.live import Live

    inner = Live(console=console(out), screen=True, auto_refresh=False, redirect_stderr=False)
    with inner:
        yield View(inner, interval)
