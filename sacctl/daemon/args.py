# SPDX-License-Identifier: Apache-2.0
"""Arguments of an administration request: taken one by one, each checked; no rest allowed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from libsac.errors import ArgumentError
from libsac.sizes import parse_size
from sacctl.errors import UsageError

__all__ = ["MISSING", "Args"]

MISSING: Any = object()
_MOST = (1 << 63) - 1
_TEXT_BYTES = 4096


class Args:
    """The arguments of one operation.

    Each method takes one out: the default where it is not given, UsageError where it is
    needed or of another type. ``done()`` comes last and refuses what is left.
    """

    def __init__(self, op: str, values: Mapping[str, Any]) -> None:
        self.op = op
        self._left = dict(values)
        self._known: list[str] = []

    def text(self, name: str, default: Any = MISSING) -> Any:
        value = self._take(name, default)
        if value is default:
            return value
        if not isinstance(value, str) or "\0" in value or len(value) > _TEXT_BYTES:
            raise self._wrong(name, value, "a text without zero bytes is needed")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self._wrong(name, value, "it is not valid Unicode") from None
        return value

    def whole(self, name: str, default: Any = MISSING, low: int = 0, high: int = _MOST) -> Any:
        value = self._take(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, value, f"a whole number from {low} to {high} is needed")
        return value

    def size(self, name: str, default: Any = MISSING) -> Any:
        """Bytes: a number, or a text such as "2G"."""
        value = self._take(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise self._wrong(name, value, 'bytes, or a text such as "2G", are needed')
        try:
            return parse_size(value)
        except ArgumentError as error:
            raise self._wrong(name, value, str(error)) from None

    def mode(self, name: str, default: int) -> int:
        """Permission bits: a number, or octal digits as a text such as "0640"."""
        value = self._take(name, default)
        if isinstance(value, str) and 1 <= len(value) <= 4 and set(value) <= set("01234567"):
            value = int(value, 8)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 0o777:
            raise self._wrong(name, value, 'permission bits such as "0640" are needed')
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false is needed")
        return value

    def one_of(self, name: str, words: tuple[str, ...], default: str) -> Any:
        value = self._take(name, default)
        if value not in words:
            raise self._wrong(name, value, f"it must be one of {', '.join(words)}")
        return value

    def table(self, name: str, default: Any = MISSING) -> Any:
        value = self._take(name, default)
        if value is not default and not isinstance(value, dict):
            raise self._wrong(name, value, "an object is needed")
        return value

    def done(self) -> None:
        """Refuses arguments that nobody took."""
        for name in self._left:
            near = difflib.get_close_matches(name, self._known, 1, 0.5)
            known = f"meant is perhaps {near[0]}" if near else f"it knows {self._names()}"
            raise UsageError(
                f"{self.op} has no argument {_short(name)}; {known}", object=self.op
            )

    def _names(self) -> str:
        return ", ".join(self._known) or "none"

    def _take(self, name: str, default: Any) -> Any:
        self._known.append(name)
        value = self._left.pop(name, None)
        if value is None:
            if default is MISSING:
                raise UsageError(f"{self.op} needs the argument {name}", object=self.op)
            return default
        return value

    def _wrong(self, name: str, value: Any, why: str) -> UsageError:
        return UsageError(f"{self.op}: {name} is {_short(value)}; {why}", object=self.op)


def _short(value: Any) -> str:
    try:
        text = ascii(value)
    except (RecursionError, ValueError):
        return "something too large to print"
    return text if len(text) <= 60 else text[:57] + "..."
