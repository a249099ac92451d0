# SPDX-License-Identifier: Apache-2.0
"""Ways to record: of CUDA graphs, and of a hot buffer's calls as they are made."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING, Any

from libsac.errors import ArgumentError
from libsac.trace_check import is_gpu_tensor, whole
from libsac.trace_file import MAX_NAME

if TYPE_CHECKING:
    from libsac.trace import Recorder

__all__ = ["Tape", "Watched"]


class Tape:
    """Records what a CUDA graph selects, replay by replay.

    While the graph is captured call its ``record`` in place of the recorder's, or have a
    watched buffer do so (``Watched.tape``). Call ``replayed`` after each replay, on the stream
    of the replay. The graph gets one small copy a selection. ``with`` may stand around the
    capture; it does nothing.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._taken: list[tuple[int, int, Any, Any]] = []

    def __enter__(self) -> Tape:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def record(self, group: int, layer: int, requests: Any, tokens: Any) -> None:
        """Adds a selection to the graph's. Arguments and errors as Recorder.record.

        ArgumentError also unless both lie in GPU memory and the current stream is captured.
        """
        captured(requests, tokens)
        group, layer, _, _ = self._recorder._check(group, layer, requests, tokens)
        # Held here, so the graph's memory for them is nobody else's.
        self._taken.append((group, layer, requests.clone(), tokens.clone()))

    def replayed(self) -> int:
        """Queues what the last replay selected; how many selections were left out."""
        return sum(not self._recorder.record(*taken) for taken in self._taken)


def captured(requests: Any, tokens: Any) -> None:
    """ArgumentError unless both lie in GPU memory and the current stream is captured."""
    todo = "Outside of a graph's capture call Recorder.record"
    for what, value in (("requests", requests), ("tokens", tokens)):
        if not is_gpu_tensor(value):
            raise ArgumentError(
                f"{what} lie in CPU memory; what a graph records must be a tensor on the GPU. "
                f"{todo}"
            )
    if not sys.modules["torch"].cuda.is_current_stream_capturing():
        raise ArgumentError(f"no CUDA graph is captured; a tape records only then. {todo}")


class Watched:
    """A hot buffer whose calls are recorded; all else is the buffer's own. Made by
    Recorder.watch.

    Attributes:
        tape: None; you set it to a ``Recorder.tape()`` while you capture a CUDA graph, and to
            None afterwards: what resolve selects goes there.

    Lengths are noted as for planes with a row a token: at most too long for others. Several
    query tokens of a request are noted as the one selection that they share.
    """

    def __init__(self, buffer: Any, recorder: Recorder, groups: Any) -> None:
        calls = ("bind", "extend", "truncate", "resolve", "release")
        if not all(callable(getattr(buffer, call, None)) for call in calls):
            raise ArgumentError(
                f"buffer is {buffer!r}; a libsac.HotBuffer is needed, with {', '.join(calls)}"
            )
        for name in ("top_k", "requests"):
            most, has = getattr(recorder, name), getattr(buffer, name, 0)
            if has > most:
                raise ArgumentError(
                    f"the buffer's {name} is {has}, the trace's {most}. Make the recorder with "
                    f"{name}={has} or more"
                )
        block = getattr(buffer, "block", 1)
        if block != recorder.block:
            raise ArgumentError(
                f"the buffer's block is {block}, the trace's {recorder.block}. Make the "
                f"recorder with block={block}"
            )
        if not isinstance(groups, dict | None):
            raise ArgumentError(f"groups is {groups!r}; a dict is needed, as {{'latent': 0}}")
        self._groups = {
            str(name): whole(number, f"the number of group '{name}'", 0, MAX_NAME)
            for name, number in (groups or {}).items()
        }
        self._buffer, self._recorder = buffer, recorder
        self._sources: dict[int, Any] = {}
        self.tape: Tape | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def resolve(
        self, group: Any, layer: int, requests: Any, tokens: Any, *args: Any, **more: Any
    ) -> Any:
        """As HotBuffer.resolve."""
        shared = tokens
        if (shape := getattr(tokens, "shape", None)) is not None:
            lead = 1 if self._recorder.heads == 1 else 2
            if len(shape) == lead + 2:  # query tokens: (..., Q, K)
                shared = tokens.reshape(*shape[:lead], -1)
        number = self._number(str(group))
        (self.tape or self._recorder).record(number, layer, requests, shared)
        return self._buffer.resolve(group, layer, requests, tokens, *args, **more)

    def bind(self, request: int, source: Any, *args: Any, **more: Any) -> Any:
        """As HotBuffer.bind."""
        answer = self._buffer.bind(request, source, *args, **more)
        self._sources[request] = source
        self._note(request, source.tokens, True)
        return answer

    def extend(self, requests: Any, *args: Any, **more: Any) -> Any:
        """As HotBuffer.extend."""
        several = isinstance(requests, Iterable)
        if several:
            requests = list(requests)
        answer = self._buffer.extend(requests, *args, **more)
        for request in requests if several else [requests]:
            self._note(request, self._sources[request].tokens, False)
        return answer

    def truncate(self, request: int, tokens: int, *args: Any, **more: Any) -> Any:
        """As HotBuffer.truncate."""
        answer = self._buffer.truncate(request, tokens, *args, **more)
        self._note(request, tokens, False)
        return answer

    def release(self, request: int, *args: Any, **more: Any) -> Any:
        """As HotBuffer.release."""
        answer = self._buffer.release(request, *args, **more)
        self._sources.pop(request, None)
        self._recorder.release(request)
        return answer

    def _number(self, group: str) -> int:
        """Of a group's name: the one given, or the lowest that no other has."""
        if group not in self._groups:
            taken = set(self._groups.values())
            self._groups[group] = next(n for n in count() if n not in taken)
        return self._groups[group]

    def _note(self, request: int, tokens: int, fresh: bool) -> None:
        self._recorder.bind(request, -(-int(tokens) // self._recorder.block), fresh)
