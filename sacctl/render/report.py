# SPDX-License-Identifier: Apache-2.0
"""A report for a bug as texts: one a part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sacctl.render.quantities import clean

__all__ = ["texts"]

_LINES = ("iomem", "units", "log", "kernel", "unread")  # lists of lines
_NAMED = ("versions", "settings", "environment", "sysfs")  # names and texts


def texts(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Name of a file and its text, for each part of the report."""
    for part, value in report.items():
        if part in _LINES:
            yield f"{part}.txt", "".join(f"{clean(line)}\n" for line in value)
        elif part in _NAMED:
            yield f"{part}.txt", "".join(f"{clean(k)}: {_one(v)}\n" for k, v in value.items())
        elif part == "records":
            text = "".join(f"# {clean(k)}\n{_plain(v)}\n" for k, v in value.items())
            yield f"{part}.txt", text
        else:
            yield f"{part}.json", json.dumps(value, indent=2, default=str) + "\n"


def _plain(text: str) -> str:
    return "\n".join(clean(line) for line in text.splitlines())


def _one(value: object) -> str:
    """A value of several lines goes below its name."""
    lines = [clean(line) for line in str(value).splitlines()]
    return lines[0] if len(lines) == 1 else "".join(f"\n    {line}" for line in lines)
