# SPDX-License-Identifier: Apache-2.0
"""A layout as plain values and as JSON; docs/layouts.md has the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from libsac.errors import LayoutError
from libsac.plane import MAX_LAYERS, Plane

__all__ = ["parse", "read", "write"]

VERSION = 1
_LAYOUT_KEYS = ("version", "page_tokens", "planes")
_REQUIRED = ("name", "layers", "row_bytes")
_OPTIONAL = (
    "kind",
    "group",
    "heads",
    "tokens_per_row",
    "row_pitch",
    "window_tokens",
    "dtype",
)
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)


def write(planes: Iterable[Plane], page_tokens: int) -> dict[str, Any]:
    """Every key written out, layers as a list of numbers."""
    listed = []
    for plane in planes:
        entry = {key: getattr(plane, key) for key in (*_REQUIRED, *_OPTIONAL)}
        entry["layers"] = list(plane.layers)
        listed.append(entry)
    return {"version": VERSION, "page_tokens": page_tokens, "planes": listed}


def parse(text: bytes) -> dict[str, Any]:
    """The object in a JSON text; LayoutError names the line, or a key given twice."""
    try:
        data = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise LayoutError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise LayoutError(f"not JSON: line {error.lineno}: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, LayoutError):
            raise
        raise LayoutError(f"not a layout: {error}") from None
    if not isinstance(data, dict):
        raise LayoutError(f"a layout is a JSON object, not {type(data).__name__}")
    return data


def read(data: Mapping[str, Any]) -> tuple[list[Plane], int]:
    """Planes and page_tokens; the caller checks them together."""
    if not isinstance(data, Mapping):
        raise LayoutError(f"a layout is a dict, not {type(data).__name__}")
    _keys("the layout", data, ("page_tokens", "planes"), _LAYOUT_KEYS)
    version = data.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        raise LayoutError(f"layout version {version!r}; this library reads {VERSION}")
    planes = data["planes"]
    if not isinstance(planes, list | tuple):
        raise LayoutError(f"planes is {type(planes).__name__}; a list is needed")
    return [_plane(i, entry) for i, entry in enumerate(planes)], data["page_tokens"]


def _plane(i: int, entry: Any) -> Plane:
    if not isinstance(entry, Mapping):
        raise LayoutError(f"plane number {i} is {type(entry).__name__}; a dict is needed")
    _keys(
        f"plane {entry.get('name', f'number {i}')!r}", entry, _REQUIRED, _REQUIRED + _OPTIONAL
    )
    values = dict(entry)
    if isinstance(values["layers"], str):
        values["layers"] = _ranges(values["layers"])
    return Plane(**values)


def _keys(
    of: str, data: Mapping[str, Any], required: Iterable[str], known: tuple[str, ...]
) -> None:
    for key in data:
        if key not in known:
            raise LayoutError(f"{of} has an unknown key {key!r}; known are {', '.join(known)}")
    for key in required:
        if key not in data:
            raise LayoutError(f"{of} lacks the key {key!r}")


def _ranges(text: str) -> list[int]:
    """ "0-2,6" gives [0, 1, 2, 6]."""
    out: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if high < low or high >= MAX_LAYERS:
            raise LayoutError(
                f'layers {text!r}: numbers and ranges below {MAX_LAYERS} such as "0-2,6" '
                "are needed"
            )
        out.extend(range(low, high + 1))
    return out


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise LayoutError(f"the key {key!r} is given twice")
        data[key] = value
    return data
