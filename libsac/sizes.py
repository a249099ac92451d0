# SPDX-License-Identifier: Apache-2.0
"""Sizes in bytes, written as people write them: "256M" and back."""

from __future__ import annotations

import operator
import re
from typing import SupportsIndex

from libsac.errors import ArgumentError

__all__ = ["format_size", "parse_size"]

_UNITS = "KMGTPE"
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_SUFFIX = re.compile(r"(?:([kmgtpe])(i?b?))?|b", re.IGNORECASE)
_LIMIT = 1 << 63  # the core counts bytes in 64 bits, and signed offsets in mmap


def parse_size(size: SupportsIndex | str) -> int:
    """Bytes of a size: an integer, or text such as "4096", "64K", "256M", "1.5GiB".

    The suffixes K, M, G, T, P, E are powers of 1024 and may be followed by "i" or "iB";
    case does not matter. "MB" and the like are refused: elsewhere they mean powers of
    1000. Raises ArgumentError for anything else: negative, not whole bytes, or not
    below 2^63.
    """
    if isinstance(size, str):
        value = _parse_text(size)
    elif isinstance(size, bool):
        raise ArgumentError(f"size {size!r} is not a number of bytes", object="size")
    else:
        try:
            value = operator.index(size)
        except TypeError:
            raise ArgumentError(
                f'size {size!r} is neither a whole number of bytes nor text such as "256M"',
                object="size",
            ) from None
    if value < 0:
        raise ArgumentError(f"size {size!r} is negative", object="size")
    if value >= _LIMIT:
        raise ArgumentError(f"size {size!r} is not below 2^63 bytes", object="size")
    return value


def _parse_text(text: str) -> int:
    # No valid size needs this many characters; int() itself balks at thousands of digits.
    whole = _PATTERN.fullmatch(text.strip()) if len(text) <= 64 else None
    suffix = _SUFFIX.fullmatch(whole[2]) if whole else None
    if whole is None or suffix is None:
        raise ArgumentError(
            f'size "{text}" is not a number with one of the suffixes K, M, G, T, P, E '
            '(powers of 1024), such as "256M"',
            object="size",
        )
    unit = (suffix[1] or "").upper()
    if unit and (suffix[2] or "").lower() == "b":
        raise ArgumentError(
            f'size "{text}": {unit}B may mean powers of 1000; write "{whole[1]}{unit}" '
            "for powers of 1024",
            object="size",
        )
    # Not before it is needed: it brings the decimal module, which is slow to load.
    from fractions import Fraction

    factor = 1024 ** (_UNITS.index(unit) + 1) if unit else 1
    value = Fraction(whole[1]) * factor
    if value.denominator != 1:
        raise ArgumentError(f'size "{text}" is not a whole number of bytes', object="size")
    return value.numerator


def format_size(size: SupportsIndex | str) -> str:
    """The shortest exact text: 268435456 gives "256M", 1000 gives "1000".

    ``parse_size(format_size(n)) == n`` for every valid n. Raises ArgumentError as
    parse_size does.
    """
    value = parse_size(size)
    unit = 0
    while value and value % 1024 == 0 and unit < len(_UNITS):
        value //= 1024
        unit += 1
    return f"{value}{_UNITS[unit - 1] if unit else ''}"
