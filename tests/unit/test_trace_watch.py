# SPDX-License-Identifier: Apache-2.0
"""Tapes of CUDA graphs, and watched buffers: what they take and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from libsac import trace_watch
from libsac.errors import ArgumentError
from libsac.trace import Recorder, Trace

ONE = np.zeros((1, 4), np.int32)


def small(path: Path, **more: Any) -> Recorder:
    return Recorder(path, **{"top_k": 4, "requests": 4, **more})


def events(path: Path) -> list[Any]:
    with Trace(path) as trace:
        return list(trace)


def test_a_tape_is_for_captures(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with small(tmp_path / "t") as recorder:
        tape = recorder.tape()
        for tokens in (ONE, torch.from_numpy(ONE), [[1]]):
            with pytest.raises(ArgumentError, match=r"CPU memory.*Recorder\.record"):
                tape.record(0, 0, torch.tensor([0]), tokens)
        assert tape.replayed() == 0
    assert events(tmp_path / "t") == []


def test_a_tape_outside_of_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(trace_watch, "is_gpu_tensor", lambda value: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with pytest.raises(ArgumentError, match="no CUDA graph is captured"):
        trace_watch.captured(None, None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    trace_watch.captured(None, None)


class Buffer:
    """Stands for a hot buffer."""

    block = 1

    def __init__(self, **more: Any) -> None:
        self.__dict__.update(more)

    def resolve(self, group: str, layer: int, requests: Any, tokens: Any) -> Any:
        return tokens.shape

    bind = extend = truncate = release = lambda *_: None


def test_a_buffer_that_the_trace_cannot_hold(tmp_path: Path) -> None:
    with small(tmp_path / "t") as recorder:
        for more, says in (
            ({"top_k": 5}, "top_k is 5, the trace's 4.*top_k=5 or more"),
            ({"requests": 5}, "requests is 5, the trace's 4"),
            ({"block": 4}, "block is 4, the trace's 1.*block=4"),
        ):
            with pytest.raises(ArgumentError, match=says):
                recorder.watch(Buffer(**more))
        for groups in ({"kv": -1}, {"kv": "a"}, [1], "kv"):
            with pytest.raises(ArgumentError, match="group"):
                recorder.watch(Buffer(), groups)  # type: ignore[arg-type]


def test_each_group_has_a_number_of_its_own(tmp_path: Path) -> None:
    with small(tmp_path / "t") as recorder:
        watched = recorder.watch(Buffer(), {"kv": 1})
        for name in ("other", "kv", "third", "other"):
            watched.resolve(name, 0, [0], ONE)
    assert [e.group for e in events(tmp_path / "t")] == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("heads", "shape"), [(1, (2, 4)), (1, (2, 2, 2)), (3, (2, 3, 4)), (3, (2, 3, 2, 2))]
)
def test_query_tokens_share_a_selection(tmp_path: Path, heads: int, shape: Any) -> None:
    """What a hot buffer's resolve takes a watched one's does."""
    tokens = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    with small(tmp_path / "t", heads=heads) as recorder:
        assert recorder.watch(Buffer()).resolve("kv", 0, [0, 1], tokens) == shape
    (found,) = events(tmp_path / "t")
    assert (found.tokens == tokens.reshape(2, heads, 4)).all()
