# SPDX-License-Identifier: Apache-2.0
"""Keys and layout hashes computed a second time, from docs/keys.md and docs/format.md.

Written with hashlib and struct alone, so that tests can hold the core against it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

from libsac.layout import Layout

KEY_BYTES = 32


def root(namespace: str, model: str, layout_hash: bytes, salt: bytes = b"") -> bytes:
    """The parent of a sequence's first page: 32 bytes."""
    sha = hashlib.sha256(b"sac.key.root\0")
    for field in (namespace.encode(), model.encode(), layout_hash, salt):
        sha.update(struct.pack("<I", len(field)))
        sha.update(field)
    return sha.digest()


def page_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of one full page of tokens after the page called parent: 32 bytes."""
    if len(parent) != KEY_BYTES:
        raise ValueError(f"a parent has {KEY_BYTES} bytes, not {len(parent)}")
    body = struct.pack(f"<I{len(tokens)}I", len(tokens), *tokens)
    return hashlib.sha256(b"sac.key.page\0" + parent + body).digest()


def page_keys(parent: bytes, tokens: Iterable[int], page_tokens: int) -> list[bytes]:
    """The keys of all full pages of tokens, chained from parent (root() at a start)."""
    ids = list(tokens)
    keys = []
    for start in range(0, len(ids) - page_tokens + 1, page_tokens):
        parent = page_key(parent, ids[start : start + page_tokens])
        keys.append(parent)
    return keys


def layout_hash(layout: Layout) -> bytes:
    """The hash of a layout's canonical encoding: 32 bytes."""
    page_tokens, planes = layout._native()
    sha = hashlib.sha256(b"sac.layout\0")
    sha.update(struct.pack("<II", page_tokens, len(planes)))
    for name, layers, kind, group, heads, per_row, size, pitch, window, dtype in planes:
        bits = sum(1 << layer for layer in layers)
        sha.update(name.encode().ljust(32, b"\0"))
        sha.update(bits.to_bytes(64, "little"))
        sha.update(struct.pack("<7I", kind, group, heads, per_row, size, pitch, window))
        sha.update(dtype.encode().ljust(20, b"\0"))
    return sha.digest()
