# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism: one namespace a rank, and the prefix that all ranks have."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from typing import Any

from libsac.arguments import unsigned
from libsac.errors import ArgumentError, RangeError
from libsac.keys import Keys, token_ids
from libsac.store import Namespace

__all__ = ["Ranks"]


class Ranks:
    """The namespaces of all ranks of one model. Made by ``Pool.ranks``.

    Each rank puts and reads in its own, ``ranks.rank(i)``. A page's keys differ from rank to
    rank, for a namespace's name enters them.
    """

    def __init__(self, spaces: Many[Namespace]) -> None:
        if not spaces:
            raise ArgumentError("there is no rank; give one namespace at least")
        self._spaces = tuple(spaces)

    def __len__(self) -> int:
        return len(self._spaces)

    def __iter__(self) -> Iterator[Namespace]:
        return iter(self._spaces)

    def rank(self, number: int) -> Namespace:
        """The namespace of one rank, from 0. Raises RangeError."""
        if unsigned(number, "rank") >= len(self._spaces):
            raise RangeError(f"there is no rank {number}; there are {len(self._spaces)}")
        return self._spaces[number]

    def keys(self, tokens: Any, salt: bytes = b"") -> list[Keys]:
        """The keys of each rank, as ``Namespace.keys``."""
        ids = token_ids(tokens)
        return [space.keys(ids, salt) for space in self._spaces]

    def longest(self, tokens: Any, salt: bytes = b"") -> int:
        """Pages of the longest prefix that every rank has: the shortest over the ranks.

        Pins nothing: each rank pins it in its own namespace and then uses what the pins of
        all ranks have in common, for a page may have left meanwhile.
        """
        page = self._spaces[0].layout.page_tokens
        ids = token_ids(tokens)
        pages, agreed = len(ids) // page, 0
        # Round and round until all agree on a length: where planes of the last pages are
        # stored for some pages only, a rank may have a longer and a shorter prefix than the
        # others', and not one of just that length.
        while pages and agreed < len(self._spaces):
            for space in self._spaces:
                found = space.longest(space.keys(ids[: pages * page], salt))
                agreed = agreed + 1 if found == pages else 1
                pages = found
                if agreed == len(self._spaces) or not pages:
                    break
        return pages

    def __repr__(self) -> str:
        name = self._spaces[0].name.rpartition(".")[0]
        return f"<Ranks of '{name}': {len(self._spaces)}>"
