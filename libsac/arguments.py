# SPDX-License-Identifier: Apache-2.0
"""Plain arguments looked at: each fault is an ArgumentError that names the argument."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from libsac.errors import ArgumentError

__all__ = ["key_bytes", "milliseconds", "salt_bytes", "text", "unsigned"]

MOST_SECONDS = 1e9  # thirty years: as good as for ever


def unsigned(value: Any, what: str, low: int = 0) -> int:
    """value as an int of low..2^32-1."""
    if type(value) is int and low <= value < 1 << 32:
        return value  # nearly always, and a gather asks twice
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{what} is {value!r}; a whole number is needed") from None
    if not low <= number < 1 << 32:
        raise ArgumentError(f"{what} is {number}; {low} to 2^32-1 are allowed")
    return number


def milliseconds(seconds: Any, what: str) -> int:
    """A time in seconds, not negative, as milliseconds rounded up."""
    try:
        value = float(seconds)
    except (TypeError, ValueError):
        value = math.nan
    if isinstance(seconds, str) or not value >= 0:
        raise ArgumentError(f"{what} is {seconds!r}; seconds, 0 or more, are needed")
    return math.ceil(min(value, MOST_SECONDS) * 1000)


def text(value: Any, what: str) -> str:
    """value if it is a str without zero bytes."""
    if not isinstance(value, str) or "\0" in value:
        raise ArgumentError(f"{what} is {value!r}; a text without zero bytes is needed")
    return value


def salt_bytes(salt: Any) -> bytes:
    """salt if it is bytes. A number is refused: bytes(3) would be three zeros."""
    if not isinstance(salt, (bytes, bytearray, memoryview)):
        raise ArgumentError(f"salt must be bytes, not {type(salt).__name__}")
    return bytes(salt)


def key_bytes(key: Any, what: str) -> bytes:
    """A key, 32 bytes or a uint8 array of 32, as bytes."""
    if isinstance(key, np.ndarray) and key.dtype == np.uint8:
        key = key.tobytes()
    if not isinstance(key, (bytes, bytearray, memoryview)):
        raise ArgumentError(f"{what} must be bytes, not {type(key).__name__}")
    if len(bytes(key)) != 32:
        raise ArgumentError(f"{what} has {len(bytes(key))} bytes; a key has 32")
    return bytes(key)
