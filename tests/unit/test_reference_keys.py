# SPDX-License-Identifier: Apache-2.0
"""The reference keys agree with the vectors of docs/keys.md and are well separated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.reference_keys import page_key, page_keys, root

DOC = Path(__file__).parents[2] / "docs" / "keys.md"
VECTORS = re.findall(
    r"^\| (.*) \| (root|key \d).* \| `([0-9a-f]{64})` \|$", DOC.read_text(), re.M
)
FIELDS = st.tuples(st.text(max_size=3), st.text(max_size=3), st.binary(max_size=3))


@pytest.mark.parametrize(("salt", "what", "value"), VECTORS)
def test_vectors_of_the_page(salt: str, what: str, value: str) -> None:
    salt_bytes = b"" if salt == "none" else salt.strip("`").encode()
    top = root("demo", "", b"\x11" * 32, salt_bytes)
    keys = page_keys(top, range(9), 4)
    assert len(VECTORS) == 6
    assert len(keys) == 2
    assert (top if what == "root" else keys[int(what[-1])]).hex() == value


@given(FIELDS, FIELDS)
def test_roots_differ_with_any_field(
    a: tuple[str, str, bytes], b: tuple[str, str, bytes]
) -> None:
    first = root(a[0], a[1], bytes(32), a[2])
    assert (first == root(b[0], b[1], bytes(32), b[2])) == (a == b)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 9), st.integers(0, 5))
def test_keys_chain(tokens: list[int], page_tokens: int, split: int) -> None:
    top = root("n", "m", bytes(32))
    keys = page_keys(top, tokens, page_tokens)
    assert len(keys) == len(tokens) // page_tokens
    at = min(split, len(keys))
    parent = keys[at - 1] if at else top
    assert page_keys(parent, tokens[at * page_tokens :], page_tokens) == keys[at:]


def test_a_parent_has_32_bytes() -> None:
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        page_key(bytes(31), [1])
