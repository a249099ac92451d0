# SPDX-License-Identifier: Apache-2.0
"""Writes the few kinds of values that pool records have as TOML."""

from __future__ import annotations

from collections.abc import Mapping

from sacctl.errors import UsageError

__all__ = ["keys"]


def keys(values: Mapping[str, object]) -> str:
    """A line for each key. Values are texts, whole numbers, truths, and lists of them.

    Raises UsageError for a text that no TOML file can hold.
    """
    return "".join(f"{key} = {_value(value)}\n" for key, value in values.items())


def _value(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + "".join(map(_escaped, value)) + '"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    # Undecodable bytes of a path are lone surrogates, which no TOML file can hold.
    if 0xD800 <= ord(letter) <= 0xDFFF:
        raise UsageError("a path of the pool is not valid UTF-8; choose another")
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"
