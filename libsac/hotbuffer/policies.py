# SPDX-License-Identifier: Apache-2.0
"""Which slots of a lane give way: every policy of the hot buffer in NumPy.

This is the definition; kernels/policy.cuh does the same bit for bit. A policy is asked once
a step (a resolve, a prefetch or an append of one lane) for slots for the units that are
missing, in ascending order of the units.

Slots that the last resolve used are marked; a prefetch does not take them.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["NAMES", "Mode", "Policy", "belady", "make"]

Slots = NDArray[np.int64]
Flags = NDArray[np.bool_]

_STRIDE = 2147483647  # of RandomPolicy: prime, above any number of slots


class Mode(Enum):
    """What a step is for."""

    RESOLVE = "resolve"
    PREFETCH = "prefetch"
    APPEND = "append"


class Policy(ABC):
    """What one lane remembers about its ``slots`` slots, all free at first.

    ``used`` (bool, a slot each) says which the last resolve used.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.used: Flags = np.zeros(slots, bool)

    def step(
        self,
        hit: Flags,
        missing: int,
        mode: Mode,
        scores: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Slots:
        """Slots for ``missing`` units: fewer where too few may be taken, never in a resolve
        of no more units than slots.

        hit: bool, a slot each: holds a unit that was selected (or, in an append, written).
        scores: float32 of every slot (looked at where hit) and of every missing unit.
        Changes what is remembered as if the units were brought in.
        """
        waits = ~hit
        if mode is Mode.PREFETCH:
            waits &= ~self.used
        taken = self._take(waits, missing)
        fresh = np.zeros(self.slots, bool)
        fresh[taken] = True
        key = None
        if scores is not None:
            key = np.array(scores[0], np.float32)
            key[taken] = np.asarray(scores[1], np.float32)[: len(taken)]
        self._remember(hit, fresh, mode, key)
        if mode is Mode.RESOLVE:
            self.used = hit | fresh
        else:
            self.used = self.used & ~fresh
        return taken

    @abstractmethod
    def _take(self, waits: Flags, missing: int) -> Slots:
        """At most ``missing`` of the slots that wait."""

    @abstractmethod
    def _remember(
        self, hit: Flags, taken: Flags, mode: Mode, scores: NDArray[np.float32] | None
    ) -> None:
        """Learns what the step used."""


class _Listed(Policy):
    """The slots as a list ``order``, longest waiting first: the first ones that wait go.

    Slots that join the end do so in slot order.
    """

    hits_join = True  # units used again go to the end, too

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.order: Slots = np.arange(slots)

    def _take(self, waits: Flags, missing: int) -> Slots:
        return self.order[waits[self.order]][:missing]

    def _remember(
        self, hit: Flags, taken: Flags, mode: Mode, scores: NDArray[np.float32] | None
    ) -> None:
        joins = hit | taken if self.hits_join and mode is not Mode.APPEND else taken
        end = np.flatnonzero(joins)
        if scores is not None and mode is not Mode.APPEND:
            end = end[np.argsort(_ranks(scores[end]), kind="stable")]
        self.order = np.concatenate([self.order[~joins[self.order]], end])


class Lru(_Listed):
    """The unit that was not used for the longest: by (step of its last use, slot)."""

    def _remember(
        self, hit: Flags, taken: Flags, mode: Mode, scores: NDArray[np.float32] | None
    ) -> None:
        super()._remember(hit, taken, mode, None)


class LruScore(_Listed):
    """Like Lru, but those of one step by (score, slot): the lowest score goes first.

    NaN counts as below all others. Without scores all are equal.
    """


class Fifo(_Listed):
    """The unit that came in first, used or not."""

    hits_join = False

    def _remember(
        self, hit: Flags, taken: Flags, mode: Mode, scores: NDArray[np.float32] | None
    ) -> None:
        super()._remember(hit, taken, mode, None)


class Random(Policy):
    """Any slot that waits, the same ones in every run.

    With the W slots that wait in slot order, victim k is number (h + k * 2147483647) mod W;
    h = mix(steps), steps counting the lane's resolves, prefetches and the appends that
    wanted a slot, modulo 2^32. The factor is a prime above W, so that no victim comes twice.
    """

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.steps = 0

    def _take(self, waits: Flags, missing: int) -> Slots:
        candidates = np.flatnonzero(waits)
        h = mix(self.steps)
        self.steps = (self.steps + 1) % 2**32
        count = min(missing, len(candidates))
        places = [(h + k * _STRIDE) % len(candidates) for k in range(count)]
        return candidates[np.array(places, np.int64)]

    def _remember(
        self, hit: Flags, taken: Flags, mode: Mode, scores: NDArray[np.float32] | None
    ) -> None:
        pass


class Clock(Policy):
    """A hand goes round over the slots; a slot whose bit is set is spared once.

    First the waiting slots without the bit, in slot order from the hand; the bits of waiting
    slots before the last victim are cleared. If they do not suffice, all bits of waiting
    slots are cleared and those slots follow, again in slot order from the hand. The hand then
    stands behind the last victim. Slots hit or taken get the bit (an append: taken).
    """

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.referenced: Flags = np.zeros(slots, bool)
        self.hand = 0

    def _take(self, waits: Flags, missing: int) -> Slots:
        round_ = np.roll(np.arange(self.slots), -self.hand)  # slots from the hand
        clear = round_[(waits & ~self.referenced)[round_]]
        spared = round_[(waits & self.referenced)[round_]]
        taken = np.concatenate([clear, spared])[:missing]
        if len(taken) == 0:
            return taken
        if len(taken) > len(clear):
            self.referenced[spared] = False
        else:
            passed = round_[: (int(taken[-1]) - self.hand) % self.slots]
            self.referenced[passed[waits[passed]]] = False
        self.hand = (int(taken[-1]) + 1) % self.slots
        return taken

    def _remember(
        self, hit: Flags, taken: Flags, mode: Mode, scores: NDArray[np.float32] | None
    ) -> None:
        self.referenced |= taken if mode is Mode.APPEND else hit | taken


_POLICIES: dict[str, type[Policy]] = {
    "lru": Lru,
    "fifo": Fifo,
    "random": Random,
    "clock": Clock,
    "lru_score": LruScore,
}
NAMES = tuple(_POLICIES)  # in the order of HotPolicy in kernels/args.h


def make(name: str, slots: int) -> Policy:
    """A policy by its name. ValueError for an unknown name or no slots."""
    if name not in _POLICIES:
        raise ValueError(f"there is no policy '{name}': there are {', '.join(NAMES)}")
    if slots < 1:
        raise ValueError(f"slots is {slots}, less than 1")
    return _POLICIES[name](slots)


def mix(x: int) -> int:
    """A bijection of 32-bit words in which each input bit moves half of the output's."""
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def _ranks(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Keys that ascend with the scores, NaN before all. float64 holds every float32."""
    keys = scores.astype(np.float64)
    finite = np.where(np.isneginf(keys), -1e300, keys)
    return np.where(np.isnan(keys), -np.inf, finite)


def belady(selections: Sequence[ArrayLike], slots: int) -> tuple[int, int]:
    """Hits and misses of the best that any policy could do, knowing all selections of a lane.

    Each selected unit must have a slot in its step; of the others, the one whose next use is
    the furthest goes. Units below 0 are padding. ValueError where a selection has more
    distinct units than there are slots. (L. A. Belady, IBM Systems Journal 5(2), 1966.)
    """
    steps = [np.unique(np.asarray(s, np.int64)) for s in selections]
    steps = [s[s >= 0] for s in steps]
    never = len(steps)
    upcoming: dict[int, int] = {}
    following: list[list[int]] = [[] for _ in steps]
    for i in range(len(steps) - 1, -1, -1):
        following[i] = [upcoming.get(int(u), never) for u in steps[i]]
        upcoming.update((int(u), i) for u in steps[i])
    held: dict[int, int] = {}  # unit: step of its next use
    furthest: list[tuple[int, int]] = []  # (-next use, unit), outdated ones among them
    hits = misses = 0
    for i, units in enumerate(steps):
        if len(units) > slots:
            raise ValueError(f"step {i} selects {len(units)} units, more than {slots} slots")
        selected = {int(u) for u in units}
        missing = [u for u in selected if u not in held]
        hits += len(selected) - len(missing)
        misses += len(missing)
        held.update((int(u), n) for u, n in zip(units, following[i], strict=True))
        while len(held) > slots:
            use, unit = heapq.heappop(furthest)
            if held.get(unit) == -use and unit not in selected:
                del held[unit]
        for u, n in zip(units, following[i], strict=True):
            heapq.heappush(furthest, (-n, int(u)))
    return hits, misses
