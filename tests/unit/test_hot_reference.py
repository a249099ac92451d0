# SPDX-License-Identifier: Apache-2.0
"""The hot buffer's reference against a plain model: slots with stamps, looked at one by one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from libsac.hotbuffer.policies import NAMES, belady, make
from libsac.hotbuffer.reference import Errors, Lane

UNITS = 24


class Model:
    """A lane as the documents describe it. Each slot remembers when it was used or came in."""

    def __init__(self, slots: int, policy: str) -> None:
        self.slots, self.policy = slots, policy
        self.unit: list[int | None] = [None] * slots
        self.stamp = [-1] * slots  # of the last use (fifo: of coming in)
        self.score = [0.0] * slots
        self.bit = [False] * slots
        self.used: set[int] = set()
        self.now = self.hand = self.steps = 0

    def victims(self, busy: set[int], count: int) -> list[int]:
        free = [s for s in range(self.slots) if s not in busy]
        if self.policy == "random":
            x = self.steps
            for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
                x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
            self.steps += 1
            return [
                free[(x + k * 2147483647) % len(free)] for k in range(min(count, len(free)))
            ]
        if self.policy == "clock":
            return self.sweep(free, min(count, len(free)))

        def longest_waiting(slot: int) -> tuple[float, ...]:
            score = self.score[slot] if self.policy == "lru_score" else 0.0
            return (self.stamp[slot], score, slot)

        return sorted(free, key=longest_waiting)[:count]

    def sweep(self, free: list[int], count: int) -> list[int]:
        """The hand goes round, slot by slot, from where it stands; once to clear bits, and
        once more over those it spared."""
        taken: list[int] = []
        start, spared = self.hand, []
        for slot in ((start + i) % self.slots for i in range(self.slots)):
            if len(taken) == count:
                break
            if slot in free and self.bit[slot]:
                self.bit[slot] = False
                spared.append(slot)
            elif slot in free:
                taken.append(slot)
                self.hand = (slot + 1) % self.slots
        if len(taken) == count:
            # Only what lies before the last victim counts as passed.
            return taken
        for slot in spared:
            if len(taken) < count:
                taken.append(slot)
                self.hand = (slot + 1) % self.slots
        return taken

    def step(
        self, mode: str, row: list[int], units: int, dead: set[int], scores: list[float] | None
    ) -> tuple[list[int], set[str]]:
        """The slot of each entry (-1: none), and what was wrong."""
        self.now += 1
        wrong = set()
        best: dict[int, float] = {}
        for i, unit in enumerate(row):
            if 0 <= unit < units:
                score = scores[i] if scores else 0.0
                score = -math.inf if math.isnan(score) else max(score, -1e38)
                best[unit] = max(best.get(unit, -math.inf), score)
            elif unit != -1:
                wrong.add("range")
        if mode == "append":
            if any(u in dead for u in best):
                wrong.add("page")
            best = {u: s for u, s in best.items() if u not in dead}
        where = {u: s for s, u in enumerate(self.unit) if u in best}
        hits = set(where.values())
        missing = sorted(u for u in best if u not in where and u not in dead)
        if mode == "resolve" and any(u not in where and u in dead for u in best):
            wrong.add("page")
        busy = hits | (self.used if mode == "prefetch" else set())
        taken: list[int] = []
        if missing or mode != "append":
            taken = self.victims(busy, len(missing))
        for unit, slot in zip(missing, taken, strict=False):
            self.unit[slot] = unit
            where[unit] = slot
        for unit, slot in where.items():
            joins = slot in taken or (self.policy != "fifo" and mode != "append")
            if joins:
                self.stamp[slot], self.score[slot] = self.now, best[unit]
            if mode != "append" or slot in taken:
                self.bit[slot] = True
        if mode == "append":
            for slot in taken:
                self.score[slot] = 0.0
        if mode == "resolve":
            self.used = set(where.values())
        else:
            self.used -= set(taken)
        return [where.get(u, -1) if 0 <= u < units else -1 for u in row], wrong


def names(errors: Errors) -> set[str]:
    return {str(e.name).lower() for e in Errors if e and e in errors}


unit = st.integers(-3, UNITS + 3)
score = st.sampled_from([math.nan, -math.inf, -1.5, -0.0, 0.0, 0.25, 2.0, math.inf])
entry = st.tuples(unit, score)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("resolve"), st.lists(entry, max_size=6), st.booleans()),
        st.tuples(st.just("prefetch"), st.lists(entry, max_size=6), st.booleans()),
        st.tuples(st.just("append"), st.integers(0, UNITS), st.integers(1, 4)),
        st.tuples(st.just("die"), st.integers(0, UNITS), st.integers(0, 3)),
        st.tuples(st.just("truncate"), st.integers(1, UNITS), st.just(0)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("policy", NAMES)
@given(slots=st.integers(6, 12), steps=steps)
def test_reference_is_the_model(policy: str, slots: int, steps: list[Any]) -> None:
    lane, model = Lane(slots, policy), Model(slots, policy)
    units, dead = UNITS, set[int]()
    for kind, what, how in steps:
        if kind == "die":
            dead = set(range(what, what + how))
        elif kind == "truncate":
            units = what
            lane.truncate(units)
            model.unit = [None if u is None or u >= units else u for u in model.unit]
        elif kind == "append":
            row = list(range(what, what + how))
            got = lane.append(row, units, dead)
            want, wrong = model.step("append", row, units, dead, None)
            assert (got.slots.tolist(), names(got.errors)) == (want, wrong)
        else:
            row, scores = [u for u, _ in what], [s for _, s in what] if how else None
            ask = lane.resolve if kind == "resolve" else lane.prefetch
            before = lane.slot_token.copy()
            got = ask(row, units, dead, scores)
            want, wrong = model.step(kind, row, units, dead, scores)
            if kind == "resolve":
                assert got.slots.tolist() == want
                assert got.hits == len({u for u in want if u >= 0} - {s for _, s in got.moves})
            assert names(got.errors) == wrong
            assert got.misses == len(got.moves)
            assert got.evictions == sum(before[s] >= 0 for _, s in got.moves)
            assert all(lane.slot_token[s] == u for u, s in got.moves)
            assert [u for u, _ in got.moves] == sorted(u for u, _ in got.moves)
        held = [None if u < 0 else int(u) for u in lane.slot_token]
        assert held == model.unit
        assert set(np.flatnonzero(lane.policy.used)) == model.used


@given(
    slots=st.integers(1, 4),
    rows=st.lists(st.lists(st.integers(-1, 5), min_size=1, max_size=4), max_size=6),
)
@example(slots=2, rows=[[0, 1], [2], [0, 1]])
def test_belady_is_the_best_of_all_ways(slots: int, rows: list[list[int]]) -> None:
    """Tried exhaustively: no choice of victims has fewer misses."""
    rows = [row[:slots] for row in rows]

    def least(i: int, held: frozenset[int]) -> int:
        if i == len(rows):
            return 0
        chosen = frozenset(u for u in rows[i] if u >= 0)
        others = sorted(held - chosen)
        keep = min(len(others), slots - len(chosen))
        ways = itertools.combinations(others, keep)
        return len(chosen - held) + min(least(i + 1, chosen | set(way)) for way in ways)

    hits, misses = belady(rows, slots)
    assert misses == least(0, frozenset())
    assert hits + misses == sum(len({u for u in row if u >= 0}) for row in rows)


def test_belady_refuses_a_selection_larger_than_the_buffer() -> None:
    with pytest.raises(ValueError, match="step 1 selects 3 units, more than 2 slots"):
        belady([[0], [0, 1, 2]], 2)


@pytest.mark.parametrize("policy", NAMES)
def test_no_policy_beats_belady(policy: str, rng: np.random.Generator) -> None:
    rows = [rng.zipf(1.3, 16) % 200 for _ in range(200)]
    lane = Lane(48, policy)
    misses = sum(lane.resolve(row, 200).misses for row in rows)
    assert belady(rows, 48)[1] <= misses


class TestDirect:
    """Requests that fit have the slots of their numbers."""

    def test_translates_what_was_loaded(self) -> None:
        lane = Lane(8, direct=True)
        assert lane.load(0, 99, 5, dead={3}).moves == [(0, 0), (1, 1), (2, 2), (4, 4)]
        assert lane.resolve([4, -1, 3], 5, dead={3}).errors == Errors.PAGE
        assert lane.resolve([4, -1, 3], 5).errors == Errors.RANGE  # not written yet
        step = lane.resolve([4, -1, 3, 0, 4, 5], 5, dead={3})
        assert step.slots.tolist() == [4, -1, -1, 0, 4, -1]
        assert (step.errors, step.hits, step.misses) == (Errors.PAGE | Errors.RANGE, 2, 0)

    def test_appends_to_the_next_slot_and_then_goes_on_as_lru(self) -> None:
        lane = Lane(4, direct=True)
        lane.load(0, 3, 3)
        assert lane.append([3], 4).slots.tolist() == [3]
        assert lane.resolve([3, 0], 4).slots.tolist() == [3, 0]
        assert lane.append([4], 5).slots.tolist() == [0]  # the longest waiting: none was used
        assert lane.resolve([0, 1, 4], 5).slots.tolist() == [2, 1, 0]

    def test_prefetch_has_nothing_to_do(self) -> None:
        lane = Lane(4, direct=True)
        lane.load(0, 3, 3)
        assert lane.prefetch([0, 1], 3).moves == []


def test_prefetch_leaves_the_highest_units_out_where_slots_are_used() -> None:
    lane = Lane(4)
    lane.resolve([0, 1, 2], 20)
    step = lane.prefetch([9, 8, 7], 20)
    assert step.moves == [(7, 3)]
    assert lane.resolve([0, 1, 2, 7], 20).misses == 0


def test_unknown_policies_and_no_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no policy 'mru': there are lru, fifo"):
        make("mru", 4)
    with pytest.raises(ValueError, match="slots is 0"):
        make("lru", 0)
