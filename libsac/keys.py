# SPDX-License-Identifier: Apache-2.0
"""Keys: the 32-byte names of pages, in the order of a sequence. docs/keys.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libsac.errors import ArgumentError, RangeError

__all__ = ["Keys", "token_ids"]

KEY_BYTES = 32


def token_ids(tokens: Any) -> NDArray[np.uint32]:
    """tokens (an iterable, range or 1-D integer array) as a contiguous uint32 array.

    Raises ArgumentError for ids outside 0..2^32-1 or anything that is not whole numbers.
    """
    try:
        if not hasattr(tokens, "__array__") and not isinstance(tokens, (list, tuple, range)):
            tokens = list(tokens)
        ids = np.asarray(tokens)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"tokens cannot be read as whole numbers: {error}") from error
    if ids.size == 0:
        return np.empty(0, np.uint32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ArgumentError(
            f"tokens must be one row of whole numbers, not {ids.dtype} of shape {ids.shape}"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high > 0xFFFFFFFF:
        raise ArgumentError(f"token ids go from 0 to 2^32-1; these go from {low} to {high}")
    return np.ascontiguousarray(ids, dtype=np.uint32)


def key_array(keys: Any, what: str) -> NDArray[np.uint8]:
    """keys (an (n, 32) uint8 array or an iterable of 32-byte strings) as an array."""
    if isinstance(keys, np.ndarray) and keys.dtype == np.uint8 and keys.ndim == 2:
        if keys.shape[1] != KEY_BYTES:
            raise ArgumentError(f"{what}: a key has 32 bytes, these have {keys.shape[1]}")
        return np.ascontiguousarray(keys)
    rows: list[bytes] = []
    for i, key in enumerate(keys):
        if not isinstance(key, (bytes, bytearray, memoryview)):
            raise ArgumentError(f"{what}: key {i} must be bytes, not {type(key).__name__}")
        row = bytes(key)
        rows.append(row)
        if len(row) != KEY_BYTES:
            raise ArgumentError(
                f"{what}: key {i} has {len(row)} bytes; a key has 32 (pad or hash shorter ones "
                "yourself, the same way every time)"
            )
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), KEY_BYTES)


class Keys:
    """Keys of consecutive pages, with the key of the page before each. Immutable.

    Attributes:
        values: (n, 32) uint8, one key a page.
        parents: (n, 32) uint8; zeros: no parent.
        tokens: uint32 ids of these pages, or None where keys came from an engine.
    """

    __slots__ = ("parents", "tokens", "values")

    def __init__(
        self,
        values: NDArray[np.uint8],
        parents: NDArray[np.uint8],
        tokens: NDArray[np.uint32] | None = None,
    ) -> None:
        self.values = values
        self.parents = parents
        self.tokens = tokens
        for array in (values, parents, tokens):
            if array is not None:
                array.flags.writeable = False

    @classmethod
    def chain(
        cls, values: Any, first_parent: bytes | None, tokens: NDArray[np.uint32] | None = None
    ) -> Keys:
        """Keys in which each page's parent is the page before it."""
        array = key_array(values, "keys")
        parents = np.zeros_like(array)
        parents[1:] = array[:-1]
        if first_parent is not None and len(array):
            parents[0] = np.frombuffer(first_parent, np.uint8)
        return cls(array, parents, tokens)

    @classmethod
    def of_engine(cls, hashes: Iterable[bytes], parents: Iterable[bytes] | None) -> Keys:
        """An engine's own hashes, with the parents it gives or each after the one before."""
        if parents is None:
            return cls.chain(hashes, None)
        values, above = key_array(hashes, "hashes"), key_array(parents, "parents")
        if len(values) != len(above):
            raise ArgumentError(f"{len(values)} hashes but {len(above)} parents")
        return cls(values, above)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, where: slice | int) -> Keys:
        """The keys of a range of pages, [a:b], or of one page, [i]."""
        if isinstance(where, int):
            if not -len(self) <= where < len(self):
                raise RangeError(f"there is no key {where}; there are {len(self)}")
            where = slice(where % len(self), where % len(self) + 1)
        if not isinstance(where, slice) or where.step not in (None, 1):
            raise ArgumentError("keys are taken as [i] or [a:b], with step 1")
        tokens = None
        if self.tokens is not None and len(self):
            start, stop, _ = where.indices(len(self))
            per_page = len(self.tokens) // len(self)
            tokens = self.tokens[start * per_page : max(start, stop) * per_page]
        return Keys(self.values[where], self.parents[where], tokens)

    def __eq__(self, other: object) -> bool:
        return (
            np.array_equal(self.values, other.values)
            if isinstance(other, Keys)
            else NotImplemented
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        first = self.values[0].tobytes().hex()[:16] + "..." if len(self) else "none"
        return f"Keys({len(self)} pages, first {first})"
