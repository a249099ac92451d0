# SPDX-License-Identifier: Apache-2.0
"""The hot buffer in NumPy: what the kernels must do, step by step and bit for bit.

A lane (one request and head, in one group and layer) has a number of slots; a slot holds one
unit (a row, or a block of rows) or nothing. Nothing here knows of bytes: a step says which
units to copy into which slots.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntFlag

import numpy as np
from numpy.typing import ArrayLike, NDArray

from libsac.hotbuffer.policies import Mode, Policy, make

__all__ = ["Errors", "Lane", "Step"]

Ints = NDArray[np.int64]


class Errors(IntFlag):
    """Error bits of a request. The numbers are those of HotError in kernels/args.h."""

    NONE = 0
    # A unit below -1, at or past the request's end, or, direct, one that has no rows yet; a new
    # row at or past the end, or in a committed page.
    RANGE = 1
    UNBOUND = 2  # the request is not bound
    PAGE = 4  # a unit on a quarantined page
    TWICE = 8  # a request named twice in one call: only the first one counts


@dataclass
class Step:
    """What one step of a lane did.

    slots: of each entry of the selection, -1: none. moves: (unit, slot) to copy, units
    ascending. hits, misses: distinct units found and fetched. evictions: units that gave
    their slot to another.
    """

    slots: NDArray[np.int32]
    errors: Errors = Errors.NONE
    moves: list[tuple[int, int]] = field(default_factory=list)
    hits: int = 0
    misses: int = 0
    evictions: int = 0


class Lane:
    """One lane of ``slots`` slots under the policy of that name, as after bind.

    direct: while the request has no more units than slots, each unit has the slot of its own
    number and nothing is evicted; ``load`` brings units in. Once it had more, it is under the
    policy for good, also where it becomes shorter again.
    slot_token (int32, a slot each): the unit that it holds, -1: none.
    """

    def __init__(self, slots: int, policy: str = "lru", *, direct: bool = False) -> None:
        self.slots = slots
        self.direct = direct
        self.policy: Policy = make(policy, slots)
        self.slot_token = np.full(slots, -1, np.int32)

    def resolve(
        self,
        selection: ArrayLike,
        units: int,
        dead: Collection[int] = (),
        scores: ArrayLike | None = None,
    ) -> Step:
        """Brings in what a selection names of a request that has ``units`` units.

        selection: int32, -1 is padding; no more distinct units than slots. dead: units whose
        page is quarantined; one that is in the buffer is still a hit. scores: float32, one an
        entry (policy lru_score); of duplicates the highest counts.
        """
        entries = np.asarray(selection, np.int64)
        valid = (entries >= 0) & (entries < units)
        errors = Errors.RANGE if np.any(~valid & (entries != -1)) else Errors.NONE
        if self._is_direct(units):
            return self._translate(entries, valid, errors, dead)
        step = self._plan(Mode.RESOLVE, entries, valid, dead, scores)
        step.errors |= errors
        return step

    def prefetch(
        self,
        selection: ArrayLike,
        units: int,
        dead: Collection[int] = (),
        scores: ArrayLike | None = None,
    ) -> Step:
        """As resolve, ahead of it: never takes a slot that the last resolve used.

        Where too few slots may be taken, the highest units are left out; so are those on dead
        pages, of which the resolve that needs them will tell. Its ``slots`` mean nothing;
        misses are the units fetched.
        """
        entries = np.asarray(selection, np.int64)
        valid = (entries >= 0) & (entries < units)
        errors = Errors.RANGE if np.any(~valid & (entries != -1)) else Errors.NONE
        none = np.full(len(entries), -1, np.int32)
        if self._is_direct(units):
            return Step(none)
        step = self._plan(Mode.PREFETCH, entries, valid, dead, scores)
        step.errors = errors
        step.slots, step.hits = none, 0
        return step

    def append(
        self, new: ArrayLike, units: int, dead: Collection[int] = (), first_open: int = 0
    ) -> Step:
        """New rows of one-row units ``new`` (ascending, each once): where each is written.

        A unit that is there keeps its place in the order; the others get slots, and join as
        units that no resolve used. -1: written to the pool alone, or (dead page, not a unit, a
        unit below ``first_open``, whose page is committed) not at all.
        """
        entries = np.asarray(new, np.int64)
        valid = (entries >= max(first_open, 0)) & (entries < units)
        step = Step(np.full(len(entries), -1, np.int32))
        if np.any(~valid & (entries != -1)):
            step.errors |= Errors.RANGE
        on_dead = np.isin(entries, _array(dead)) & valid
        if np.any(on_dead):
            step.errors |= Errors.PAGE
        valid &= ~on_dead
        if self._is_direct(units):
            for i in np.flatnonzero(valid):
                step.slots[i] = self.slot_token[entries[i]] = entries[i]
            return step
        at = self.find(entries[valid])
        hit = np.zeros(self.slots, bool)
        hit[at[at >= 0]] = True
        missing = entries[valid][at < 0]
        if len(missing):
            self._bring(step, missing, self.policy.step(hit, len(missing), Mode.APPEND))
        step.slots[valid] = self.find(entries[valid])
        return step

    def load(self, first: int, end: int, units: int, dead: Collection[int] = ()) -> Step:
        """Brings units first .. end - 1 of a direct request to the slots of their numbers."""
        loaded = np.arange(first, max(first, min(end, units, self.slots)))
        loaded = loaded[~np.isin(loaded, _array(dead))]
        self.slot_token[loaded] = loaded
        return Step(np.empty(0, np.int32), moves=[(int(u), int(u)) for u in loaded])

    def truncate(self, units: int) -> None:
        """Units from ``units`` on leave their slots, which keep their places in the order."""
        self.slot_token[self.slot_token >= units] = -1

    def find(self, units: Ints) -> Ints:
        """The slot of each unit, -1: none."""
        where = {int(u): s for s, u in enumerate(self.slot_token) if u >= 0}
        return np.array([where.get(int(u), -1) for u in units], np.int64)

    def _translate(
        self,
        entries: Ints,
        valid: NDArray[np.bool_],
        errors: Errors,
        dead: Collection[int],
    ) -> Step:
        there = valid.copy()
        there[valid] = self.slot_token[entries[valid]] == entries[valid]
        absent, lost = valid & ~there, np.isin(entries, _array(dead))
        if np.any(absent & lost):
            errors |= Errors.PAGE
        if np.any(absent & ~lost):
            errors |= Errors.RANGE
        slots = np.where(there, entries, -1).astype(np.int32)
        return Step(slots, errors, hits=len(np.unique(entries[there])))

    def _plan(
        self,
        mode: Mode,
        entries: Ints,
        valid: NDArray[np.bool_],
        dead: Collection[int],
        scores: ArrayLike | None,
    ) -> Step:
        units, number = np.unique(entries[valid], return_inverse=True)
        at = self.find(units)
        hit = np.zeros(self.slots, bool)
        hit[at[at >= 0]] = True
        lost = (at < 0) & np.isin(units, _array(dead))
        missing = (at < 0) & ~lost
        keys = None
        if scores is not None:
            best = _best(np.asarray(scores, np.float32)[valid], number, len(units))
            of_slot = np.zeros(self.slots, np.float32)
            of_slot[at[at >= 0]] = best[at >= 0]
            keys = (of_slot, best[missing])
        step = Step(np.full(len(entries), -1, np.int32), hits=int(hit.sum()))
        if np.any(lost):
            step.errors |= Errors.PAGE
        taken = self.policy.step(hit, int(missing.sum()), mode, keys)
        self._bring(step, units[missing], taken)
        step.slots[valid] = self.find(units)[number]
        return step

    def _bring(self, step: Step, units: Ints, slots: Ints) -> None:
        units = units[: len(slots)]
        step.misses = len(slots)
        step.evictions = int((self.slot_token[slots] >= 0).sum())
        step.moves = [(int(u), int(s)) for u, s in zip(units, slots, strict=True)]
        self.slot_token[slots] = units

    def _is_direct(self, units: int) -> bool:
        if units > self.slots:
            self.direct = False
        return self.direct


def _array(numbers: Collection[int]) -> Ints:
    return np.fromiter(numbers, np.int64, len(numbers))


def _best(scores: NDArray[np.float32], number: Ints, count: int) -> NDArray[np.float32]:
    """The highest score of each unit; NaN only where all of a unit's are."""
    best = np.full(count, np.nan, np.float32)
    for score, i in zip(scores, number, strict=True):
        best[i] = np.fmax(best[i], score)
    return best
