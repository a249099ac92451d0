# SPDX-License-Identifier: Apache-2.0
"""The script's text, as sections of steps. What can be written is said on top of it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["SCRIPT", "Section", "Step", "parse"]

SCRIPT = Path(__file__).with_name("kernel.steps")

# How many words follow a step's name; those with an arrow say what comes of it.
_WORDS = {
    "write": 2,
    "each": 3,
    "read": 1,
    "open": 1,
    "store": 3,
    "load": 3,
    "set": 3,
    "keep": 2,
    "there": 1,
    "gone": 1,
    "wait": 1,
    "until": 1,
}
_ARROW = {"write", "each", "read", "until", "open", "load"}


@dataclass(frozen=True, slots=True)
class Step:
    """expected: by kernel ("" for all others); empty where the step says nothing."""

    line: int
    name: str
    words: tuple[str, ...]
    expected: dict[str, str] = field(default_factory=dict)

    def wants(self, kernel: str) -> str:
        """What is to come of it under a kernel: "6.12"."""
        return self.expected.get(kernel, self.expected.get("", ""))


@dataclass(frozen=True, slots=True)
class Section:
    """needs: facts that a machine must have: {"bridges": "2"}."""

    title: str
    line: int
    needs: dict[str, str]
    steps: list[Step]


def parse(text: str) -> list[Section]:
    """Raises ValueError that names the line."""
    sections: list[Section] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        if bare.startswith("section "):
            sections.append(Section(bare.removeprefix("section "), number, {}, []))
            continue
        if not sections:
            raise ValueError(f"line {number}: a step before the first section")
        if bare.startswith("needs "):
            needs = dict(word.split("=", 1) for word in bare.split()[1:])
            sections[-1].needs.update(needs)
            continue
        sections[-1].steps.append(_step(number, bare))
    return sections


def _step(number: int, line: str) -> Step:
    before, arrow, after = line.partition(" -> ")
    name, *words = shlex.split(before, posix=True)
    if _WORDS.get(name) != len(words) or bool(arrow) != (name in _ARROW):
        raise ValueError(f"line {number}: {line!r}")
    expected = {}
    for word in shlex.split(after):
        found = re.fullmatch(r"(?:(\d+\.\d+):)?(.*)", word, re.S)
        if found:
            expected[found[1] or ""] = "" if found[2] == "nothing" else found[2]
    if arrow and not expected:
        raise ValueError(f"line {number}: nothing is expected")
    return Step(number, name, tuple(words), expected)
