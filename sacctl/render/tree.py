# SPDX-License-Identifier: Apache-2.0
"""Trees: what they hold, and how they are written. A terminal gets lines drawn by rich, a
pipe indented text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from sacctl.render.quantities import clean
from sacctl.render.table import STYLES, Cell, console

if TYPE_CHECKING:
    from rich.tree import Tree

__all__ = ["Branch", "plain_tree", "write_tree"]


@dataclass(slots=True)
class Branch:
    """A line and what is below it."""

    text: str | Cell
    below: list[Branch] = field(default_factory=list)

    def add(self, text: str | Cell) -> Branch:
        """Appends a branch and gives it back."""
        branch = Branch(text)
        self.below.append(branch)
        return branch


def write_tree(root: Branch, out: TextIO) -> None:
    """Drawn on a terminal, else indented by two spaces a level."""
    if out.isatty():
        console(out).print(_drawn(root))
    else:
        out.write(plain_tree(root))


def plain_tree(root: Branch, depth: int = 0) -> str:
    """Indented text, a line each."""
    line = f"{'  ' * depth}{clean(_text(root))}\n"
    return line + "".join(plain_tree(branch, depth + 1) for branch in root.below)


def _drawn(root: Branch) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    mood = root.text.mood if isinstance(root.text, Cell) else ""
    made = Tree(Text(clean(_text(root)), style=STYLES[mood]), guide_style="dim")
    made.children = [_drawn(branch) for branch in root.below]
    return made


def _text(branch: Branch) -> str:
    return branch.text.text if isinstance(branch.text, Cell) else branch.text
