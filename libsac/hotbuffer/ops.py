# SPDX-License-Identifier: Apache-2.0
"""Hot buffers as torch operators, so that torch.compile traces a step that uses them.

``libsac::resolve``, ``libsac::append`` and ``libsac::prefetch`` name the buffer by a number.
Each takes its layer's ``turn``, a tensor of one element, as if it changed it: that keeps a
layer's operators in their order, and none is left out. What reads rows comes behind resolve
because it needs the slots. (Views of the rows as what is changed would say more; but a compiler
may hand an operator a copy of what it changes, and copy that back.) HotBuffer's methods call
them where a graph is being traced.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch

from libsac.errors import ClosedError

if TYPE_CHECKING:
    from libsac.hotbuffer.base import HotBase

__all__ = ["add", "find"]

_numbers = itertools.count(1)
_buffers: WeakValueDictionary[int, HotBase] = WeakValueDictionary()
_lock = threading.Lock()
_library = torch.library.Library("libsac", "DEF")

_library.define(
    "resolve(Tensor(a!) turn, Tensor requests, Tensor tokens, Tensor? scores, int buffer, "
    "int group, int layer) -> Tensor"
)
_library.define(
    "append(Tensor(a!) turn, Tensor requests, Tensor[] values, Tensor? first, int buffer, "
    "int group, int layer) -> ()"
)
_library.define(
    "prefetch(Tensor(a!) turn, Tensor requests, Tensor tokens, Tensor? scores, int buffer, "
    "int group, int layer) -> ()"
)


def add(buffer: HotBase) -> int:
    """A number by which the operators find the buffer while it lives."""
    with _lock:
        number = next(_numbers)
        _buffers[number] = buffer
    return number


def find(number: int) -> HotBase:
    """The buffer of a number; ClosedError where it has gone."""
    buffer = _buffers.get(number)
    if buffer is None:
        raise ClosedError("the hot buffer that this step was traced with has gone")
    return buffer


def _resolve(
    turn: torch.Tensor,
    requests: torch.Tensor,
    tokens: torch.Tensor,
    scores: torch.Tensor | None,
    buffer: int,
    group: int,
    layer: int,
) -> torch.Tensor:
    out = torch.empty_like(tokens)
    find(buffer)._resolve(group, layer, requests, tokens, scores, out)
    return out


def _resolve_fake(
    turn: torch.Tensor,
    requests: torch.Tensor,
    tokens: torch.Tensor,
    scores: torch.Tensor | None,
    buffer: int,
    group: int,
    layer: int,
) -> torch.Tensor:
    return torch.empty_like(tokens)


def _append(
    turn: torch.Tensor,
    requests: torch.Tensor,
    values: list[torch.Tensor],
    first: torch.Tensor | None,
    buffer: int,
    group: int,
    layer: int,
) -> None:
    found = find(buffer)
    names = [plane.name for plane in found._groups[group]]
    found._append(group, layer, requests, dict(zip(names, values, strict=True)), first)


def _prefetch(
    turn: torch.Tensor,
    requests: torch.Tensor,
    tokens: torch.Tensor,
    scores: torch.Tensor | None,
    buffer: int,
    group: int,
    layer: int,
) -> None:
    # On the stream of the step: the compiler orders by data, not by streams.
    find(buffer)._prefetch(group, layer, requests, tokens, scores)


def _nothing(*_: object) -> None:
    """What append and prefetch give where only shapes are followed."""


for _name, _real, _fake in (
    ("resolve", _resolve, _resolve_fake),
    ("append", _append, _nothing),
    ("prefetch", _prefetch, _nothing),
):
    _library.impl(_name, _real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"libsac::{_name}", _fake)
