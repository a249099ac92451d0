# SPDX-License-Identifier: Apache-2.0
"""Sizes of CXL memory for people: exact, since rules are about multiples."""

from __future__ import annotations

__all__ = ["UNIT", "size_option", "size_text"]

UNIT = 256 << 20  # CXL memory is decoded in pieces of this many bytes


def size_text(size: int) -> str:
    """ "512 MiB", "3 GiB"; bytes where it is no whole number of MiB."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if size and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def size_option(size: int) -> str:
    """As it would be typed: "--size 512M"."""
    for unit, suffix in ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M")):
        if size and size % unit == 0:
            return f"--size {size // unit}{suffix}"
    return f"--size {size}"
