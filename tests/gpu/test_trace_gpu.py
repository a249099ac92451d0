# SPDX-License-Identifier: Apache-2.0
"""Recording selections that lie on a GPU: what a stream did is in the trace, nothing waits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from libsac.errors import ArgumentError
from libsac.trace import Lost, Recorder, Selection, Trace

pytestmark = pytest.mark.gpu

BATCH, TOP_K = 4, 256


@pytest.fixture(scope="module")
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return module


def selections(path: Path) -> list[Selection]:
    with Trace(path) as trace:
        found = [event for event in trace if isinstance(event, Selection)]
        assert not trace.truncated
    return found


def test_one_buffer_that_is_written_anew_each_step(torch: Any, tmp_path: Path) -> None:
    """The tensors are those of an engine: changed on its stream right after the call."""
    requests = torch.arange(BATCH, dtype=torch.int32, device="cuda")
    tokens = torch.empty((BATCH, TOP_K), dtype=torch.int32, device="cuda")
    with Recorder(tmp_path / "t", top_k=TOP_K, requests=BATCH, ring=512) as recorder:
        recorder.prepare(BATCH, "cuda")
        for step in range(300):
            tokens.fill_(step)
            assert recorder.record(0, step % 7, requests, tokens)
    found = selections(tmp_path / "t")
    assert [e.number for e in found] == list(range(300))
    for step, event in enumerate(found):
        assert (event.tokens == step).all()
        assert event.requests.tolist() == list(range(BATCH))


def test_streams_of_their_own_and_growing_batches(torch: Any, tmp_path: Path) -> None:
    streams = [torch.cuda.Stream() for _ in range(3)]
    with Recorder(tmp_path / "t", top_k=TOP_K, requests=64, ring=512) as recorder:
        for step in range(60):
            with torch.cuda.stream(streams[step % 3]):
                batch = 1 + step
                requests = torch.arange(batch, dtype=torch.int32, device="cuda")
                tokens = torch.full((batch, 8), step, dtype=torch.int32, device="cuda")
                assert recorder.record(0, 0, requests, tokens)
    for step, event in enumerate(selections(tmp_path / "t")):
        assert event.tokens.shape == (1 + step, 1, 8)
        assert (event.tokens == step).all()


def test_a_call_does_not_wait_for_the_stream(torch: Any, tmp_path: Path) -> None:
    requests = torch.zeros(1, dtype=torch.int32, device="cuda")
    tokens = torch.zeros((1, TOP_K), dtype=torch.int32, device="cuda")
    with Recorder(tmp_path / "t", top_k=TOP_K, requests=1, ring=64) as recorder:
        recorder.prepare(1, "cuda")
        recorder.record(0, 0, requests, tokens)
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)  # about a second of a stream that does nothing
        began = time.perf_counter()
        for _ in range(20):
            recorder.record(0, 0, requests, tokens)
        taken = time.perf_counter() - began
        behind = not torch.cuda.current_stream().query()
        torch.cuda.synchronize()
    assert behind
    assert taken < 0.2


def test_a_full_ring_waits_for_nothing(torch: Any, tmp_path: Path) -> None:
    requests = torch.zeros(1, dtype=torch.int32, device="cuda")
    tokens = torch.zeros((1, TOP_K), dtype=torch.int32, device="cuda")
    with Recorder(tmp_path / "before", top_k=TOP_K, requests=1) as recorder:
        recorder.record(0, 0, requests, tokens)  # torch loads its kernels now, not below
    with Recorder(tmp_path / "t", top_k=TOP_K, requests=1, ring=3) as recorder:
        recorder.prepare(1, "cuda")
        torch.cuda._sleep(4_000_000_000)
        answers = [recorder.record(0, 0, requests, tokens) for _ in range(10)]
        torch.cuda.synchronize()
    assert answers == [True] * 3 + [False] * 7
    assert recorder.lost == 7
    assert len(selections(tmp_path / "t")) == 3


def test_a_capture_goes_on_while_the_writer_waits(torch: Any, tmp_path: Path) -> None:
    requests = torch.zeros(1, dtype=torch.int32, device="cuda")
    tokens = torch.full((1, TOP_K), 7, dtype=torch.int32, device="cuda")
    value = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with Recorder(tmp_path / "t", top_k=TOP_K, requests=1, ring=8) as recorder:
        recorder.prepare(1, "cuda")
        recorder.record(0, 0, requests, tokens)
        torch.cuda.synchronize()
        other = torch.cuda.Stream()
        with torch.cuda.graph(graph):
            with torch.cuda.stream(other):  # not the one that is captured
                torch.cuda._sleep(500_000_000)
                recorder.record(0, 0, requests, tokens)
            time.sleep(0.1)  # the writer's thread waits for that selection meanwhile
            value.add_(1)
        graph.replay()
        torch.cuda.synchronize()
    assert float(value) == 1
    assert [(e.tokens == 7).all() for e in selections(tmp_path / "t")] == [True, True]


def test_a_graph_records_on_a_tape(torch: Any, tmp_path: Path) -> None:
    requests = torch.arange(2, dtype=torch.int32, device="cuda")
    tokens = torch.zeros((2, 8), dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with Recorder(tmp_path / "t", top_k=8, requests=2, ring=512) as recorder:
        with recorder.tape() as tape, torch.cuda.graph(graph):
            for layer in range(3):
                tokens.add_(1)
                tape.record(0, layer, requests, tokens)
            with pytest.raises(ArgumentError, match="tape"):
                recorder.record(0, 0, requests, tokens)
        tokens.zero_()
        for _ in range(50):
            graph.replay()
            assert tape.replayed() == 0
    found = selections(tmp_path / "t")
    assert [e.layer for e in found] == [0, 1, 2] * 50
    assert [int(e.tokens[1, 0, 7]) for e in found] == list(range(1, 151))
    assert all((np.diff(e.tokens) == 0).all() for e in found)


def test_requests_that_there_are_not_are_lost(torch: Any, tmp_path: Path) -> None:
    """Their numbers are seen by the writer only: the trace stays one that can be read."""
    tokens = torch.zeros((2, 8), dtype=torch.int32, device="cuda")
    with Recorder(tmp_path / "t", top_k=8, requests=4) as recorder:
        for wrong in (0, 4, -1, 1):
            requests = torch.tensor([2, wrong], dtype=torch.int32, device="cuda")
            assert recorder.record(0, 0, requests, tokens)
    assert (recorder.recorded, recorder.lost) == (2, 2)
    with Trace(tmp_path / "t") as trace:
        found = list(trace)
    assert [type(e) for e in found] == [Selection, Lost, Lost, Selection]
    assert [e.requests.tolist() for e in found if isinstance(e, Selection)] == [[2, 0], [2, 1]]


def test_types_and_places(torch: Any, tmp_path: Path) -> None:
    requests = torch.arange(2, dtype=torch.int32, device="cuda")
    tokens = torch.zeros((2, 8), dtype=torch.int32, device="cuda")
    with Recorder(tmp_path / "t", top_k=8, requests=4) as recorder:
        for wrong in (tokens.long(), tokens.float()):
            with pytest.raises(ArgumentError, match="in GPU memory int32 is needed"):
                recorder.record(0, 0, requests, wrong)
        with pytest.raises(ArgumentError, match="requests are torch"):
            recorder.record(0, 0, requests.long(), tokens)
        with pytest.raises(ArgumentError, match="both in GPU memory"):
            recorder.record(0, 0, requests, tokens.cpu())
        with pytest.raises(ArgumentError, match="request is 4"):
            recorder.record(0, 0, [0, 4], tokens)
        with pytest.raises(ArgumentError, match="no CUDA graph is captured"):
            recorder.tape().record(0, 0, requests, tokens)
        assert recorder.record(0, 0, [0, 3], tokens + 5)
    (found,) = selections(tmp_path / "t")
    assert found.requests.tolist() == [0, 3]
    assert (found.tokens == 5).all()
