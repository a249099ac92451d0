# SPDX-License-Identifier: Apache-2.0
"""Tables: what they hold, and how they are written.

A terminal gets them from rich, a pipe as plain aligned text. Values that others chose
(names of clients, reasons) pass :func:`~sacctl.render.quantities.clean` on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from sacctl.render.quantities import clean, width

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = [
    "STYLES",
    "Cell",
    "Facts",
    "Part",
    "Table",
    "console",
    "drawn",
    "fitted",
    "plain",
    "write",
]


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with a mood: "" plain, "good", "bad", "warn" or "dim". Pipes see the text."""

    text: str
    mood: str = ""


@dataclass(slots=True)
class Table:
    """Rows under a head.

    Attributes:
        columns: heads; one that begins with ">" is set to the right, one with "~" is text
            that may be folded.
        rows: as many values each as there are columns.
        title: written above, where there is more than one table.
        keys: so many first columns say which row it is.
    """

    columns: tuple[str, ...]
    rows: list[Sequence[str | Cell]] = field(default_factory=list)
    title: str = ""
    keys: int = 1

    def add(self, *values: str | Cell) -> None:
        """Appends a row."""
        if len(values) != len(self.columns):
            raise ValueError(f"{len(values)} values for {len(self.columns)} columns")
        self.rows.append(values)


@dataclass(slots=True)
class Facts:
    """One thing's properties, a name and a value a line. Empty values are left out."""

    facts: list[tuple[str, str | Cell]] = field(default_factory=list)
    title: str = ""

    def add(self, name: str, value: str | Cell) -> None:
        """Appends a property."""
        if _text(value):
            self.facts.append((name, value))


Part = Table | Facts

_MARKS = ">~"
_GAP = 2  # between columns
_DRAWN = 300  # rows at most
_FOLDED = 24  # the least that is left for text that may be folded

STYLES = {"": "", "good": "green", "bad": "bold red", "warn": "yellow", "dim": "dim"}


def write(parts: Iterable[Part], out: TextIO) -> None:
    """Writes the parts one below the other: drawn on a terminal, else plain.

    Plain too where there are very many rows: rich takes milliseconds for each.
    """
    listed = list(parts)
    if not listed:
        return
    rows = sum(len(part.rows) for part in listed if isinstance(part, Table))
    if out.isatty() and rows <= _DRAWN:
        made = console(out)
        made.print(drawn(listed, made.width))
    else:
        out.write(plain(listed))


def plain(parts: Iterable[Part]) -> str:
    """Aligned text without colours or lines, an empty line between the parts."""
    blocks = []
    for part in parts:
        lines = [f"{part.title}:"] if part.title else []
        if isinstance(part, Facts):
            rows: list[Sequence[str | Cell]] = [(f"{n}:", v) for n, v in part.facts]
            lines += _aligned(rows, (False, False))
        else:
            heads = [column.lstrip(_MARKS).upper() for column in part.columns]
            right = [column.startswith(">") for column in part.columns]
            lines += _aligned([heads, *part.rows], right)
        blocks.append("".join(line + "\n" for line in lines))
    return "\n".join(blocks)


def _aligned(rows: Sequence[Sequence[str | Cell]], right: Sequence[bool]) -> list[str]:
    texts = [[_text(value) or "-" for value in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(*texts, strict=True)]
    lines = []
    for row in texts:
        cells = []
        for word, wide, to_right in zip(row, widths, right, strict=True):
            pad = " " * (wide - width(word))
            cells.append(pad + word if to_right else word + pad)
        lines.append("  ".join(cells).rstrip())
    return lines


def fitted(table: Table, room: int) -> list[Table]:
    """The table, or where it is wider than the room several of some columns each, all with
    the key columns."""
    widths = []
    for number, column in enumerate(table.columns):
        cells = [width(_text(row[number])) for row in table.rows]
        need = max([width(column.lstrip(_MARKS)), *cells])
        widths.append(_GAP + (min(need, _FOLDED) if column.startswith("~") else need))
    first = sum(widths[: table.keys])
    groups: list[list[int]] = [[]]
    used = first
    for number in range(table.keys, len(widths)):
        if groups[-1] and used + widths[number] - _GAP > room:
            groups.append([])
            used = first
        groups[-1].append(number)
        used += widths[number]
    if len(groups) == 1:
        return [table]
    keys = list(range(table.keys))
    out = []
    for group in groups:
        part = Table(tuple(table.columns[i] for i in keys + group), keys=table.keys)
        part.rows = [[row[i] for i in keys + group] for row in table.rows]
        out.append(part)
    out[0].title = table.title
    return out


def drawn(parts: Iterable[Part], room: int) -> RenderableType:
    """The parts for rich, in a room of so many columns. Nothing in them is taken as markup."""
    from rich.console import Group
    from rich.text import Text

    blocks: list[RenderableType] = []
    for part in parts:
        if blocks:
            blocks.append(Text())
        if part.title:
            blocks.append(Text(part.title, style="bold"))
        if isinstance(part, Facts):
            blocks.append(_grid(part))
        else:
            blocks += map(_drawn, fitted(part, room))
    return Group(*blocks)


def _grid(facts: Facts) -> RenderableType:
    from rich.table import Table as Drawn
    from rich.text import Text

    grid = Drawn.grid(padding=(0, _GAP, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.facts:
        grid.add_row(Text(name), _styled(value))
    return grid


def _drawn(table: Table) -> RenderableType:
    from rich.table import Table as Drawn
    from rich.text import Text

    made = Drawn(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in table.columns:
        made.add_column(
            Text(column.lstrip(_MARKS)),
            justify="right" if column.startswith(">") else "left",
            no_wrap=not column.startswith("~"),
            overflow="fold",
        )
    for row in table.rows:
        made.add_row(*map(_styled, row))
    return made


def console(out: TextIO) -> Console:
    """rich's console over a stream. NO_COLOR and TERM are rich's to honour."""
    from rich.console import Console

    return Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=False)


def _styled(value: str | Cell) -> RenderableType:
    from rich.text import Text

    mood = value.mood if isinstance(value, Cell) else ""
    return Text(_text(value) or "-", style=STYLES[mood])


def _text(value: str | Cell) -> str:
    return clean(value.text if isinstance(value, Cell) else value)
