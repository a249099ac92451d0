# SPDX-License-Identifier: Apache-2.0
"""The one way into the native gather: for one reader or many, any index, any target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from libsac import _core
from libsac.arguments import unsigned
from libsac.buffers import allocate, index_array, row_buffer
from libsac.errors import ArgumentError

if TYPE_CHECKING:
    from libsac.store import Namespace

__all__ = ["Reader", "gather"]


class Reader(Protocol):
    """A prefix or a sequence."""

    def _prefix(self) -> _core.Prefix: ...


def gather(
    ns: Namespace,
    readers: Sequence[Reader],
    batched: bool,
    plane: str,
    layer: int,
    tokens: Any,
    rows: Any,
    head: int | None,
    out: Any,
    threads: int,
    stream: bool,
) -> Any:
    """Checks and shapes the arguments, and copies. See Prefix.gather and Namespace.gather.

    batched: index and result begin with a dimension of readers; else there is one reader.
    """
    number = ns._plane(plane)
    spec = ns.layout.planes[number]
    layer, threads = unsigned(layer, "layer"), unsigned(threads, "threads")
    if tokens is not None and rows is not None:
        raise ArgumentError("give tokens or rows, not both")
    per_head = spec.heads > 1 and head is None
    heads = spec.heads if per_head else 1
    first_head = 0 if head is None else unsigned(head, "head")
    prefixes = [reader._prefix() for reader in readers]
    given = tokens if rows is None else rows
    index = None
    count = 0
    lead: tuple[int, ...]
    if given is None:
        count = prefixes[0].rows(number, layer)
        lead = (heads, count) if per_head else (count,)
    else:
        index = index_array(given, "tokens" if rows is None else "rows")
        if rows is None and spec.kind == "state":
            raise ArgumentError(f"plane '{plane}' has one row a page: give rows, not tokens")
        if rows is None and spec.tokens_per_row > 1:
            # -1 stays -1, and what is below must not become it.
            index = np.where(index < -1, index, index // spec.tokens_per_row)
        lead = index.shape
        want = (len(prefixes),) * batched + (heads,) * per_head
        if index.ndim != len(want) + 1 or lead[:-1] != want:
            shape = ", ".join(["prefixes"] * batched + ["heads"] * per_head + ["k"])
            raise ArgumentError(
                f"gather of plane '{plane}': tokens must have the shape ({shape}), here "
                f"({', '.join(map(str, (*want, 'k')))}), not {index.shape}"
            )
        index = index.reshape(len(prefixes) if batched else 1, heads, lead[-1])
    result = allocate((*lead, spec.row_bytes), given) if out is None else out
    target = row_buffer(result)
    if tuple(target.shape[: len(lead)]) != lead or target.ndim == len(lead):
        raise ArgumentError(
            f"out has the shape {tuple(target.shape)}; it must begin with {lead} and hold a "
            f"row of {spec.row_bytes} bytes behind"
        )
    if batched:
        target = target if per_head else target[:, None]
    else:
        target = target[None] if per_head else target[None, None]
    _core.gather(
        ns._native,
        prefixes,
        number,
        layer,
        first_head,
        heads,
        index,
        count,
        target,
        stream,
        threads,
    )
    return result
