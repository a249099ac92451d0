# SPDX-License-Identifier: Apache-2.0
"""What a hot buffer tells of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["HotStats", "errors_of"]

ERRORS = ("range", "unbound", "page", "twice")  # position: bit of the error words


@dataclass(frozen=True, slots=True)
class HotStats:
    """Counters since the buffer was made, and what is there now.

    Attributes:
        hits, misses: distinct units a resolve found, and fetched.
        bytes: read from the pool. evictions: units that gave their slot to another.
        kept: units in slots now, of all lanes and layers.
        prefetched: units fetched ahead. appended: rows written by append.
    """

    hits: int
    misses: int
    bytes: int
    evictions: int
    kept: int
    prefetched: int
    appended: int


def errors_of(words: Sequence[int]) -> dict[int, set[str]]:
    """Names of the bits of each request's word, where it has any. The last word is of no
    request: -1."""
    return {
        -1 if i == len(words) - 1 else i: {e for b, e in enumerate(ERRORS) if word >> b & 1}
        for i, word in enumerate(words)
        if word
    }
