# SPDX-License-Identifier: Apache-2.0
"""Prefixes, puts and sequences: pages pinned, pages on their way in, pages growing."""

from __future__ import annotations

import operator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from libsac import _core
from libsac.arguments import milliseconds, unsigned
from libsac.buffers import rows_array
from libsac.closing import Closing
from libsac.errors import ArgumentError
from libsac.gather import gather
from libsac.keys import token_ids
from libsac.waiting import wait_for_room

if TYPE_CHECKING:
    from libsac.store import Namespace

__all__ = ["Prefix", "Put", "Sequence"]


def row_number(value: Any) -> int:
    """value as a row number; ArgumentError otherwise."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 62:
        raise ArgumentError(f"start is {value!r}; rows are counted from 0")
    return number


class _Reader(Closing):
    """What prefixes and sequences share: reading rows."""

    _ns: Namespace

    def _prefix(self) -> _core.Prefix:
        raise NotImplementedError

    @property
    def pages(self) -> int:
        """Pages held."""
        return self._prefix().pages

    @property
    def tokens(self) -> int:
        """Tokens held."""
        return self._prefix().tokens

    def gather(
        self,
        plane: str,
        layer: int,
        tokens: Any = None,
        *,
        rows: Any = None,
        head: int | None = None,
        out: Any = None,
        threads: int = 0,
        stream: bool = False,
    ) -> Any:
        """Copies selected rows: (k, row_bytes) uint8.

        Args:
            tokens: (k,) token numbers, int32 or int64, in any order, repeats allowed; -1
                gives a row of zeros. For a plane with heads and no ``head``: (heads, k),
                and the result is (heads, k, row_bytes). A torch tensor gives a torch
                result. In a compressed plane a token means the row that holds it.
            rows: row numbers of the plane instead of tokens. Neither: all rows.
            head: only this head.
            out: where to copy to: numpy, torch (CPU) or DLPack, of the result's shape with
                any dtype whose last dimensions make up a row. Mutated and returned.
            threads: 0 chooses by size; else at most that many, the caller included.
            stream: streaming stores, for a target that the CPU does not read soon.

        Raises RangeError before anything is copied, StaleError or MediaError if a page's
        memory failed, ClosedError, ForkedError.
        """
        return gather(
            self._ns,
            [self],
            False,
            plane,
            layer,
            tokens,
            rows,
            head,
            out,
            threads,
            stream,
        )

    def view(self, plane: str, layer: int, page: int) -> NDArray[np.uint8]:
        """One page's rows in place, read-only: (rows, row_bytes), or (heads, rows,
        row_bytes) where the plane has heads. No copy: the page stays pinned as long as the
        array lives.
        """
        number = self._ns._plane(plane)
        page, layer = unsigned(page, "page"), unsigned(layer, "layer")
        array: Any = self._prefix().view(page, number, layer)
        rows: NDArray[np.uint8] = (
            array if self._ns.layout.planes[number].heads > 1 else array[0]
        )
        return rows


class Prefix(_Reader):
    """Pinned pages of one sequence. Made by ``Namespace.pin``; thread-safe.

    A context manager: leaving it ends the pins.
    """

    def __init__(self, native: _core.Prefix, ns: Namespace) -> None:
        self._native = native
        self._ns = ns

    def _prefix(self) -> _core.Prefix:
        return self._native

    def close(self) -> None:
        """Ends the pins (those of a view: when it goes). May be called twice."""
        self._native.close()

    def __repr__(self) -> str:
        if self._native.closed:
            return "<Prefix: closed>"
        return f"<Prefix of '{self._ns.name}': {self.pages} pages, {self.tokens} tokens>"


class Put(Closing):
    """Pages being written. Made by ``Namespace.put``.

    A context manager: leaving it commits, and an exception gives the pages up.

    Attributes:
        missing: (m,) int64, positions in the keys of the pages to be written.
        missing_tails: the same for window and state planes.
    """

    def __init__(self, native: _core.Put, ns: Namespace) -> None:
        self._native = native
        self._ns = ns
        self._ended = False
        self.missing: NDArray[np.int64] = native.missing(0)
        self.missing_tails: NDArray[np.int64] = (
            native.missing(1) if ns._has_tail else np.empty(0, np.int64)
        )

    def write(
        self, plane: str, layer: int, rows: Any, *, first: int = 0, threads: int = 1
    ) -> None:
        """Copies whole pages of a plane and layer into the pool.

        Args:
            rows: (m, rows, row) for the m missing pages (missing_tails for window and state
                planes), or (m, heads, rows, row) where the plane has heads. Any dtype whose
                bytes make up the row: uint8 of row_bytes, or bf16 of half as many. numpy,
                torch (CPU) or DLPack.
            first: position among the missing pages of the first one given.
            threads: 0 chooses; else at most that many.

        Raises ArgumentError, RangeError; nothing is copied then.
        """
        number = self._ns._plane(plane)
        layer, threads = unsigned(layer, "layer"), unsigned(threads, "threads")
        spec = self._ns.layout.planes[number]
        rows = rows_array(rows, "rows")
        shape = ("pages", *(spec.heads,) * (spec.heads > 1), spec.rows, "row")
        if hasattr(rows, "shape") and len(rows.shape) < len(shape):
            raise ArgumentError(
                f"rows of plane '{plane}' must have the shape ({', '.join(map(str, shape))}), "
                f"not {tuple(rows.shape)}"
            )
        self._native.write(number, layer, rows, unsigned(first, "first"), threads)

    def view(self, plane: str, layer: int, page: int) -> NDArray[np.uint8]:
        """Missing page number ``page`` in place, writable: (rows, row_bytes) or (heads, rows,
        row_bytes). It counts as written. Do not write after commit."""
        number = self._ns._plane(plane)
        page, layer = unsigned(page, "page"), unsigned(layer, "layer")
        array: Any = self._native.view(page, number, layer)
        rows: NDArray[np.uint8] = (
            array if self._ns.layout.planes[number].heads > 1 else array[0]
        )
        return rows

    def commit(self) -> int:
        """Makes the pages visible, all planes at once; how many this put brought.

        A page that another writer committed first is kept, and not counted. Raises
        IncompleteError where a row is missing, ReservationError past the deadline; nothing
        is visible then.
        """
        brought = self._native.commit()
        self._ended = True
        return brought

    def close(self) -> None:
        """Gives up what is not committed, ends the pins. May be called twice."""
        self._ended = True
        self._native.close()

    def __repr__(self) -> str:
        state = "ended" if self._ended else "open"
        return f"<Put into '{self._ns.name}': {len(self.missing)} pages missing, {state}>"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._ended:
                self.commit()
        finally:
            self.close()


class Sequence(_Reader):
    """A growing sequence: a pinned prefix and pages being written. Made by
    ``Namespace.sequence``; thread-safe. Page after page is committed as it fills.

    A context manager: leaving it closes the sequence.
    """

    def __init__(self, native: _core.Sequence, ns: Namespace) -> None:
        self._native = native
        self._ns = ns
        self._view = native.prefix()
        self._last = self._view.tokens

    def _prefix(self) -> _core.Prefix:
        return self._view

    def extend(self, tokens: Any, *, timeout: float = 0.0) -> int:
        """Appends tokens, whose rows are then written with :meth:`write`; returns the number
        of the first.

        Pages that are complete by now are committed first. timeout: seconds to wait for
        room. Raises IncompleteError if rows of an earlier full page are missing,
        NoSpaceError; nothing is appended then.
        """
        ids = token_ids(tokens)
        first = self._view.tokens
        wait_for_room(milliseconds(timeout, "timeout"), lambda ms: self._native.extend(ids, ms))
        self._last = first
        return int(first)

    def write(
        self, plane: str, layer: int, rows: Any, *, start: int | None = None, threads: int = 1
    ) -> None:
        """Copies rows of a plane and layer: (n, row), or (heads, n, row).

        start: row number of the first; None: the row of the first token of the last
        extend(). Rows of window and state planes that lie in pages without a tail are not
        kept. A row may be written again until its page is committed. threads: 0 chooses by
        size; else at most that many.
        """
        number = self._ns._plane(plane)
        spec = self._ns.layout.planes[number]
        if start is None:
            per_row = (
                self._ns.layout.page_tokens if spec.kind == "state" else spec.tokens_per_row
            )
            start = self._last // per_row
        rows = rows_array(rows, "rows")
        shape = (*(spec.heads,) * (spec.heads > 1), "rows", "row")
        if hasattr(rows, "shape") and len(rows.shape) < len(shape):
            raise ArgumentError(
                f"rows of plane '{plane}' must have the shape ({', '.join(map(str, shape))}), "
                f"not {tuple(rows.shape)}"
            )
        layer, threads = unsigned(layer, "layer"), unsigned(threads, "threads")
        self._native.write(number, layer, rows, row_number(start), threads)

    def flush(self) -> int:
        """Commits pages that are full of tokens and rows; returns how many."""
        return self._native.flush()

    def close(self) -> None:
        """Drops an unfinished page and ends the pins. May be called twice."""
        self._view.close()
        self._native.close()

    def __repr__(self) -> str:
        if self._native.closed:
            return "<Sequence: closed>"
        return f"<Sequence of '{self._ns.name}': {self.pages} pages, {self.tokens} tokens>"
