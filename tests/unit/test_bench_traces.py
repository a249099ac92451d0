# SPDX-License-Identifier: Apache-2.0
"""What the GPU benchmarks stand on: selections, made up and recorded; payloads; tables."""

from __future__ import annotations

import sys
from collections import OrderedDict
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from libsac.trace import Recorder

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="benchmarks/ is in the sources only"
)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in [n for n in sys.modules if n.split(".")[0] == "hot"]:
        monkeypatch.delitem(sys.modules, name)
    import hot.traces

    return hot.traces


def missed(trace: NDArray[np.int32], slots: int) -> float:
    """Misses a step of an LRU of single tokens, on the second round."""
    held: OrderedDict[int, None] = OrderedDict()
    count = 0
    for turn in range(2):
        for selection in trace.tolist():
            fresh = [t for t in selection if t not in held]
            count += turn * len(fresh)
            for token in [*(t for t in selection if t in held), *fresh]:
                held[token] = None
                held.move_to_end(token)
            while len(held) > slots:
                held.popitem(last=False)
    return count / len(trace)


def test_each_step_keeps_its_part_and_the_way_is_closed(traces: ModuleType) -> None:
    trace = traces.closed(60, 2, 5000, 200, hot=1500, overlap=0.85)
    assert trace.shape == (60, 2, 200)
    for request in range(2):
        for step in range(60):
            before, now = set(trace[step - 1, request]), set(trace[step, request])
            assert len(now) == 200
            assert len(now & before) == 170
        assert len(np.unique(trace[:, request])) <= 1500
    assert 0 <= trace.min() < trace.max() < 5000
    assert traces.overlap_of(trace) == pytest.approx(0.85)
    assert (trace[:, 0] != trace[:, 1]).any()


def test_the_misses_that_its_default_is_made_for(traces: ModuleType) -> None:
    trace = traces.closed(96, 1, 131072, 2048)[:, 0]
    assert missed(trace, 4096) == pytest.approx(262, abs=6)
    assert missed(trace, 6144) == pytest.approx(217, abs=6)


@pytest.mark.parametrize(
    "wrong", [{"steps": 3}, {"hot": 200}, {"context": 1000}, {"top_k": 0}, {"top_k": 1490}]
)
def test_what_cannot_be_made(traces: ModuleType, wrong: dict[str, int]) -> None:
    given = {"steps": 60, "requests": 1, "context": 5000, "top_k": 200, "hot": 1500, **wrong}
    with pytest.raises(ValueError, match=r"hot tokens|too few"):
        traces.closed(**given)


def test_recorded_lanes_as_requests(traces: ModuleType, tmp_path: Path) -> None:
    with Recorder(tmp_path / "t", top_k=3, heads=2, requests=1, ring=100) as recorder:
        for step in range(4):
            for layer in range(3):
                base = 100 * layer + 10 * step
                tokens = base + np.array([[[0, 1, 2], [5, 6, 7]]])
                recorder.record(0, layer, [0], tokens)
    trace, units = traces.recorded(tmp_path / "t", 6)
    # Forwards, then back without the two ends.
    assert trace.shape == (6, 6, 3)
    assert trace[:, 0].tolist() == [
        [10 * n, 10 * n + 1, 10 * n + 2] for n in (0, 1, 2, 3, 2, 1)
    ]
    assert trace[0, :, 0].tolist() == [0, 5, 100, 105, 200, 205]
    assert units == 100 * 2 + 10 * 3 + 7 + 1
    assert traces.recorded(tmp_path / "t", 13)[0].shape == (6, 13, 3)


def test_a_trace_without_lanes(traces: ModuleType, tmp_path: Path) -> None:
    with Recorder(tmp_path / "t", top_k=3, requests=1):
        pass
    with pytest.raises(SystemExit, match="no lane"):
        traces.recorded(tmp_path / "t", 1)


# ------------------------------------------------------- what the GPU benchmarks stand on


@needs_torch
def test_rows_say_whose_they_are(traces: ModuleType) -> None:
    import torch
    from hot.payload import wrong
    from hot.pool import Contexts

    tokens = torch.tensor([0, 1, 63, 64, 64 * 40 - 1])
    with Contexts(3, 64 * 40, 656) as pool:
        addresses = pool.addresses()
        assert addresses.shape == (3, 40)
        assert len(np.unique(addresses)) == 120
        for request, prefix in enumerate(pool.prefixes):
            rows = torch.from_numpy(np.asarray(prefix.gather("row", 0, tokens.numpy())))
            whose = torch.full_like(tokens, request)
            assert int(wrong(rows, whose, tokens)) == 0
            assert int(wrong(rows, whose + 1, tokens)) == 5
            assert int(wrong(rows, whose, tokens.flip(0))) == 4  # the one amidst stays
            rows[2, 655] ^= 1  # a single bit of the last byte
            assert int(wrong(rows, whose, tokens)) == 1
    del prefix


@needs_torch
def test_table_and_goals(traces: ModuleType) -> None:
    from hot.measure import Figures
    from hot.report import goals, table

    def figures(blocks: int, whole: float) -> Figures:
        return Figures(
            batch=32,
            slots=4096,
            row=1152,
            blocks=blocks,
            misses=262.1,
            whole_us=whole,
            plan_us=6.5,
            hits_us=6.9,
            floor_us=190.0,
            gbps=45.0,
            ratio=190 / whole,
            wrong=0,
        )

    found = [figures(2, 194.0), figures(4, 230.0)]
    lines = table(found).splitlines()
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[-1] == "0"
    met = goals(found, {"128K tokens": 0.32}).splitlines()
    assert ["NOT" in line for line in met] == [False, False, False, True]
    assert met[0].startswith("whole call, batch 32, 4096 slots, 1152 B")
    assert "194" in met[0]
