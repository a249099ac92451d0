# SPDX-License-Identifier: Apache-2.0
"""JSON with its schema (docs/json.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["to_json"]


def to_json(schema: str, values: Mapping[str, Any], *, line: bool = False) -> str:
    """One object with ``schema`` first and a newline last; ``line``: on one line.

    ASCII only, so that it is the same in every locale; bytes that are no UTF-8 in a path
    come out as lone surrogates, which every reader takes.
    """
    out = {"schema": f"sac.{schema}/1", **values}
    indent, separators = (None, (",", ":")) if line else (2, None)
    return json.dumps(out, indent=indent, separators=separators, allow_nan=False) + "\n"
