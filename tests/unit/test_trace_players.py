# SPDX-License-Identifier: Apache-2.0
"""sacctl bench policy against the hot buffer's reference: the same hits and misses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libsac.hotbuffer.policies import belady
from libsac.hotbuffer.reference import Lane
from libsac.trace import Bound, Recorder, Released, Selection, Trace
from sacctl.bench import lanes
from sacctl.bench.policy import BEST, POLICIES, policy

Life = list[tuple[Any, int]]


def lives(path: Path) -> list[Life]:
    """Each lane's selections with the units its request had then, one life after another."""
    now: dict[tuple[int, ...], Life] = {}
    found: list[Life] = []
    units: dict[int, int] = {}
    with Trace(path) as trace:
        for event in trace:
            if isinstance(event, Released) or (isinstance(event, Bound) and event.fresh):
                now = {key: life for key, life in now.items() if key[0] != event.request}
            if isinstance(event, Released | Bound):
                units[event.request] = event.units if isinstance(event, Bound) else 0
            if isinstance(event, Selection):
                for row, request in enumerate(event.requests.tolist()):
                    for head, picked in enumerate(event.tokens[row]):
                        key = (request, event.group, event.layer, head)
                        if key not in now:
                            now[key] = []
                            found.append(now[key])
                        now[key].append((picked, units.get(request, 2**31 - 1)))
    return found


def valid(life: Life) -> Iterator[Any]:
    for picked, units in life:
        kept = np.unique(picked)
        yield kept[(kept >= 0) & (kept < units)]


def expected(path: Path, sizes: list[int]) -> dict[str, Any]:
    """Everything that policy finds, from the reference of the hot buffer."""
    all_lives = lives(path)
    parts, selected, touched = [], 0, 0
    for life in all_lives:
        before: Any = None
        seen: set[int] = set()
        for picked in valid(life):
            now = set(picked.tolist())
            selected += len(now)
            touched += len(now - seen)
            seen |= now
            if before is not None and now:
                parts.append(len(now & before) / len(now))
            before = now
    results = []
    for name in POLICIES:
        for size in sizes:
            hits = misses = 0
            for life in all_lives:
                lane = Lane(size, name) if name != BEST else None
                if lane is None:
                    steps = [belady(list(valid(life)), size)]
                else:
                    steps = [(s.hits, s.misses) for s in (lane.resolve(*one) for one in life)]
                hits += sum(step[0] for step in steps)
                misses += sum(step[1] for step in steps)
            results.append((name, size, hits, misses))
    return {
        "lanes": len(all_lives),
        "selections": sum(map(len, all_lives)),
        "selected": selected,
        "first_touches": touched,
        "overlap": pytest.approx(float(np.mean(parts)) if parts else 0.0),
        "results": results if selected else [],
    }


def same(path: Path, sizes: list[int]) -> None:
    found: dict[str, Any] = dict(policy(path, sizes))
    found["results"] = [
        (r["policy"], r["slots"], r["hits"], r["misses"]) for r in found["results"]
    ]
    wanted = expected(path, sizes)
    assert {name: found[name] for name in wanted} == wanted


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_trace_as_the_reference_plays_it(data: Any, tmp_path_factory: Any) -> None:
    """Small numbers, so that units, requests and layers meet again; chunks of a few units."""
    path = tmp_path_factory.mktemp("t") / "t"
    heads, top_k = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    seed, spread = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.sampled_from([3, 9, 40]))
    rng = np.random.default_rng(seed)
    with Recorder(path, top_k=top_k, heads=heads, requests=3, ring=4096) as recorder:
        for kind in data.draw(st.lists(st.sampled_from("rrrrrrbgx"), max_size=60)):
            request = int(rng.integers(3))
            if kind == "r":
                shape = (int(rng.integers(1, 4)), heads, int(rng.integers(1, top_k + 1)))
                named = rng.integers(0, 3, shape[0])  # one may be named twice
                group, layer = rng.integers(0, 2, 2).tolist()
                assert recorder.record(group, layer, named, rng.integers(-2, spread, shape))
            elif kind == "x":
                recorder.release(request)
            else:
                recorder.bind(request, int(rng.integers(0, spread + 3)), fresh=kind == "b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "CHUNK", data.draw(st.sampled_from([1, 20, 1 << 18])))
        same(path, sorted({top_k, top_k + 1, 2 * top_k, 30}))


@pytest.mark.parametrize("spread", [150, 400])
def test_long_lanes(tmp_path: Path, spread: int) -> None:
    """One request for many steps, mostly with what it had: every slot is given away often."""
    rng = np.random.default_rng(spread)
    picked = rng.choice(spread, 32, replace=False)
    with Recorder(tmp_path / "t", top_k=32, requests=1, ring=4096) as recorder:
        for step in range(400):
            picked[rng.integers(0, 32, 5)] = rng.integers(0, spread, 5)
            width = int(rng.integers(1, 33)) if step % 7 == 0 else 32
            recorder.record(0, 0, [0], picked[None, :width])
    same(tmp_path / "t", [32, 33, 64, 100])


def test_no_policy_and_many_sizes(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t", top_k=2, requests=1) as recorder:
        recorder.record(0, 0, [0], np.array([[1, 2]]))
    assert policy(tmp_path / "t", [2], [])["results"] == []
    assert len(policy(tmp_path / "t", range(2, 40), ["lru", "lru"])["results"]) == 38
