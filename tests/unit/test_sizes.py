# SPDX-License-Identifier: Apache-2.0
"""Sizes from text and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libsac.errors import ArgumentError
from libsac.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("64K", 65536),
        ("256M", 256 << 20),
        ("256m", 256 << 20),
        (" 256 MiB ", 256 << 20),
        ("4Gi", 4 << 30),
        ("1.5G", 3 << 29),
        ("2T", 2 << 40),
        ("3P", 3 << 50),
        ("1E", 1 << 60),
        (7, 7),
        (np.uint64(1 << 40), 1 << 40),
    ],
)
def test_sizes(text: Any, size: int) -> None:
    assert parse_size(text) == size
    assert type(parse_size(text)) is int


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a number"),
        ("M", "is not a number"),
        ("-1", "is not a number"),
        ("1e9", "is not a number"),
        ("0x10", "is not a number"),
        ("1 M 2", "is not a number"),
        ("5X", "is not a number"),
        ("\u0665M", "is not a number"),
        ("9" * 5000, "is not a number"),
        ("256MB", 'write "256M"'),
        ("1kb", 'write "1K"'),
        ("0.3K", "not a whole number of bytes"),
        ("8E", "not below 2^63"),
        (1 << 63, "not below 2^63"),
        (-1, "is negative"),
        (1.0, "neither a whole number"),
        (True, "is not a number of bytes"),
        (None, "neither a whole number"),
    ],
)
def test_refused(text: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_size(text)
    assert message in str(caught.value)
    assert caught.value.object == "size"


@given(st.integers(0, (1 << 63) - 1) | st.integers(0, 8191).map(lambda n: n << 50))
def test_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_format_is_short() -> None:
    assert [format_size(n) for n in (0, 1000, 1024, 1536, 256 << 20, 3 << 60)] == [
        "0",
        "1000",
        "1K",
        "1536",
        "256M",
        "3E",
    ]
    with pytest.raises(ArgumentError):
        format_size(-1)


@given(st.text(max_size=80))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    try:
        size = parse_size(text)
    except ArgumentError:
        return
    assert 0 <= size < 1 << 63
