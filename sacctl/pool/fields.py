# SPDX-License-Identifier: Apache-2.0
"""Takes the values of a pool record apart: each is looked at before it is believed."""

from __future__ import annotations

from typing import Any

from sacctl.errors import CtlError

__all__ = ["Fields"]


class Fields:
    """A table of a record. where: the file, for messages; prefix: of its keys there.

    Every method raises CtlError that names the file and the key.
    """

    def __init__(self, values: Any, where: str, prefix: str = "") -> None:
        self.where, self.prefix = where, prefix
        if not isinstance(values, dict):
            raise self.fail("", "is no table")
        self.values: dict[str, Any] = values

    def fail(self, key: str, why: str) -> CtlError:
        """The error, for the caller to raise."""
        return CtlError(
            f"{self.where}: {(self.prefix + key).rstrip('.')} {why}",
            object=self.where,
            hint="mend the file by hand, or remove it and create the pool again",
        )

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str) or "\0" in value:
            raise self.fail(key, "is missing or no text")
        return value

    def texts(self, key: str, default: list[str] | None = None) -> tuple[str, ...]:
        value = self.values.get(key, default)
        if not isinstance(value, list) or not all(
            isinstance(v, str) and v and "\0" not in v for v in value
        ):
            raise self.fail(key, "is missing or no list of texts")
        return tuple(value)

    def number(self, key: str, default: int | None = None) -> int:
        return self._whole(self.values.get(key, default), key)

    def numbers(self, key: str, default: list[int] | None = None) -> tuple[int, ...]:
        value = self.values.get(key, default)
        if not isinstance(value, list):
            raise self.fail(key, "is missing or no list of numbers")
        return tuple(self._whole(v, key) for v in value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"is {value!r}; true or false is needed")
        return value

    def tables(self, key: str) -> list[Fields]:
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.fail(key, "is missing or no list of tables")
        return [
            Fields(table, self.where, f"{self.prefix}{key}[{number}].")
            for number, table in enumerate(value)
        ]

    def _whole(self, value: Any, key: str) -> int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 0 <= value < 1 << 63:
            raise self.fail(key, f"is {value!r}; a number from 0 is needed")
        return int(value)
