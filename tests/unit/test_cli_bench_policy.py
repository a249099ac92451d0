# SPDX-License-Identifier: Apache-2.0
"""sacctl bench policy: miss rates over a trace, against a plain model of each policy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.test_cli_json import compare

from libsac.trace import Recorder
from libsac.trace_file import Writer
from sacctl.bench.policy import (
    BEST,
    MAX_SLOTS,
    POLICIES,
    PolicyBenchRecord,
    PolicyRecord,
    default_slots,
    policy,
)
from sacctl.cli import root
from sacctl.errors import UsageError

TOP_K, SLOTS = 6, 9


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(root, list(words))
    assert result.exit_code == code, result.output
    return result


def write(path: Path, selections: list[list[int]], units: int = 100) -> Path:
    """One request's selections, of any widths."""
    with Recorder(path, top_k=TOP_K, requests=2, ring=4096) as recorder:
        recorder.bind(0, units)
        for picked in selections:
            recorder.record(0, 0, [0], np.array([picked], np.int32))
    return path


def lru(selections: list[list[int]], slots: int, units: int = 100) -> tuple[int, int]:
    """Hits and misses of an LRU of whole steps: a unit is as old as its last step, and of two
    as old the one in the lower slot leaves first. Written without the product."""
    last: dict[int, tuple[int, int]] = {}  # unit -> (step, slot)
    free = list(range(slots))
    hits = misses = 0
    for step, picked in enumerate(selections):
        wanted = sorted({u for u in picked if 0 <= u < units})
        fresh = [u for u in wanted if u not in last]
        hits, misses = hits + len(wanted) - len(fresh), misses + len(fresh)
        for unit in wanted:
            if unit in last:
                last[unit] = (step, last[unit][1])
        for unit in fresh:
            if free:
                slot = free.pop(0)
            else:
                victim = min((u for u in last if last[u][0] < step), key=lambda u: last[u])
                slot = last.pop(victim)[1]
            last[unit] = (step, slot)
    return hits, misses


def fewest(selections: list[list[int]], slots: int) -> int:
    """The fewest misses that any choice of victims gives: all of them are tried."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for picked in selections:
        wanted = frozenset(u for u in picked if u >= 0)
        following: dict[frozenset[int], int] = {}
        for held, missed in states.items():
            cost = missed + len(wanted - held)
            kept: list[frozenset[int]] = [held | wanted]
            while len(kept[0]) > slots:
                kept = list({s - {u} for s in kept for u in s - wanted})
            for state in kept:
                following[state] = min(cost, following.get(state, cost))
        states = following
    return min(states.values())


def by_policy(found: PolicyBenchRecord) -> dict[str, PolicyRecord]:
    return {result["policy"]: result for result in found["results"]}


units = st.integers(-2, 24)
picks = st.lists(st.lists(units, min_size=1, max_size=TOP_K), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(selections=picks)
def test_lru_is_that_of_a_plain_model(selections: Any, tmp_path_factory: Any) -> None:
    path = write(tmp_path_factory.mktemp("t") / "t", selections, units=20)
    found = policy(path, [SLOTS], ["lru"])
    hits, misses = lru(selections, SLOTS, units=20)
    assert found["selected"] == hits + misses
    assert [(r["hits"], r["misses"]) for r in found["results"]] == (
        [(hits, misses)] if found["selected"] else []
    )
    seen = {u for picked in selections for u in picked if 0 <= u < 20}
    assert found["first_touches"] == len(seen)


@settings(max_examples=40, deadline=None)
@given(
    selections=st.lists(
        st.lists(st.integers(0, 7), min_size=1, max_size=3), min_size=1, max_size=10
    )
)
def test_best_is_the_best(selections: Any, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    with Recorder(path, top_k=3, requests=1, ring=4096) as recorder:
        for picked in selections:
            recorder.record(0, 0, [0], np.array([picked], np.int32))
    found = by_policy(policy(path, [4]))
    assert found[BEST]["misses"] == fewest(selections, 4)
    assert set(found) == set(POLICIES)
    for result in found.values():
        assert result["misses"] >= found[BEST]["misses"]
        assert result["hits"] + result["misses"] == (
            found[BEST]["hits"] + found[BEST]["misses"]
        )


def test_lanes_and_lives_are_apart(tmp_path: Path) -> None:
    """The same tokens in another request, group, layer, head or life are no hits."""
    same = np.arange(4, dtype=np.int32)
    with Recorder(tmp_path / "t", top_k=4, heads=2, requests=2) as recorder:
        recorder.bind(0, 10)
        both = np.stack([same, same])[None]
        for group, layer in ((0, 0), (1, 0), (0, 1)):
            recorder.record(group, layer, [0], both)
        recorder.record(0, 0, [1], both)
        recorder.bind(0, 10, fresh=False)  # it grew: what it had stays
        recorder.record(0, 0, [0], both)
        recorder.bind(0, 10)  # another request under the same number
        recorder.record(0, 0, [0], both)
        recorder.release(0)
        recorder.bind(0, 10)
        recorder.record(0, 0, [0], both)
    found = policy(tmp_path / "t", [4], ["lru"])
    assert (found["lanes"], found["selections"]) == (12, 14)
    assert by_policy(found)["lru"]["hits"] == 8
    assert by_policy(found)["lru"]["misses"] == found["first_touches"] == 48


def test_the_length_of_a_request_counts(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t", top_k=4, requests=2) as recorder:
        tokens = np.array([[0, 5, 9, -1]], np.int32)
        recorder.bind(0, 6)
        recorder.record(0, 0, [0], tokens)
        recorder.bind(0, 10, fresh=False)
        recorder.record(0, 0, [0], tokens)
        recorder.record(0, 0, [1], tokens)  # never bound: its length is not known
    found = policy(tmp_path / "t", [4], ["lru"])
    assert (found["selected"], found["first_touches"]) == (2 + 3 + 3, 3 + 3)
    assert found["overlap"] == pytest.approx(2 / 3)


def test_json_and_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    write(tmp_path / "a.sactrace", [rng.choice(40, TOP_K).tolist() for _ in range(50)])
    compare("bench.policy", run("-o", "json", "bench", "policy", "a.sactrace").stdout)
    found = json.loads(run("bench", "policy", "a.sactrace", "-o", "json").stdout)
    assert set(found) == {"schema", *get_type_hints(PolicyBenchRecord)}
    assert all(set(r) == set(get_type_hints(PolicyRecord)) for r in found["results"])
    assert [r["slots"] for r in found["results"]] == [12, 18] * 5
    text = run("bench", "policy", "a.sactrace", "--slots", "6,30", "--policy", "lru,best")
    assert text.stderr == ""
    lines = text.stdout.split("\n")
    assert [line.split()[:2] for line in lines if line.startswith(("lru", "best"))] == [
        ["lru", "6"],
        ["lru", "30"],
        ["best", "6"],
        ["best", "30"],
    ]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with path.open("wb") as out:
        writer = Writer(out, top_k=2, requests=1)
        writer.lost(0, 7)
        writer.selection(7, 0, 0, np.array([0], np.int32), np.array([[1, 2]], np.int32))
        writer.release(8, 0)
    path.write_bytes(path.read_bytes()[:-1])
    done = run("-o", "json", "bench", "policy", str(path))
    found = json.loads(done.stdout)
    assert (found["lost"], found["truncated"], found["selections"]) == (7, True, 1)
    assert "7 selections are missing" in done.stderr
    assert "ends within a record" in done.stderr


def test_an_empty_trace(tmp_path: Path) -> None:
    """No rows of zeros, which read as a buffer that misses nothing."""
    found = policy(write(tmp_path / "t", []))
    assert (found["lanes"], found["selected"], found["overlap"]) == (0, 0, 0.0)
    assert found["results"] == []
    for words in ([], ["-o", "json"]):
        done = run(*words, "bench", "policy", str(tmp_path / "t"))
        assert "the trace has no selections" in done.stderr
        assert "lru" not in done.stdout
    assert json.loads(done.stdout)["results"] == []


def test_a_trace_whose_selections_name_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [[-1, -1], [70, 5]], units=5)
    done = run("bench", "policy", str(path))
    assert "names a unit that its request has" in done.stderr
    assert "lru" not in done.stdout


def test_no_more_slots_than_a_hot_buffer_has(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "libsac/hotbuffer/kernels/args.h"
    if source.exists():
        most = re.search(r"HOT_SLOTS_MAX = (\d+)", source.read_text())
        assert most is not None
        assert int(most[1]) == MAX_SLOTS
    assert default_slots(2048) == [4096, 6144]
    assert default_slots(3000) == [6000, 8192]
    assert default_slots(8192) == [8192, 8192]


@pytest.mark.parametrize("words", [[], ["--slots", "8192"], ["--slots", "50000"]])
def test_selections_that_no_buffer_holds(tmp_path: Path, words: list[str]) -> None:
    with Recorder(tmp_path / "t", top_k=40_000, requests=1) as recorder:
        recorder.record(0, 0, [0], np.arange(40_000, dtype=np.int32)[None])
    with pytest.raises(UsageError, match="up to 40000 units; a hot buffer has at most 8192"):
        policy(tmp_path / "t", [int(word) for word in words[1:]])
    done = CliRunner().invoke(root, ["bench", "policy", str(tmp_path / "t"), *words])
    assert done.exit_code == 2
    assert "8192 or less" in f"{done.exception}{done.output}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--slots", "5"], "5 slots for selections of up to 6"),
        (["--slots", "8193"], "8193 slots"),
        (["--slots", "ten"], "'ten' is not a whole number"),
        (["--slots", "-1"], "'-1' is not a whole number"),
        (["--policy", "mru"], "no policy 'mru'"),
        (["--policy", "lru_score"], "no policy 'lru_score'"),
    ],
)
def test_wrong_words(tmp_path: Path, words: list[str], says: str) -> None:
    write(tmp_path / "t", [[1]])
    done = CliRunner().invoke(root, ["bench", "policy", str(tmp_path / "t"), *words])
    assert isinstance(done.exception, UsageError) or done.exit_code == 2
    assert says in f"{done.exception}{done.output}"


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"SACTRACE" + bytes(100))
    for name in ("t", "absent"):
        code = root.run(["bench", "policy", str(tmp_path / name)])
        assert code != 0
    (tmp_path / "folder").mkdir()
    assert root.run(["bench", "policy", str(tmp_path / "folder")]) != 0
