# SPDX-License-Identifier: Apache-2.0
"""Misses of one lane under each policy, in work by the units selected and not by the slots.

libsac.hotbuffer.policies defines the policies; there each selection looks at every slot. Here
each unit costs a few steps, whatever a trace holds; tests/unit/test_trace_players.py compares.

A player returns the distinct units fetched. It is asked only where a lane has more distinct
units than slots, ``random`` alone also where it has fewer: it may evict while slots are free.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from libsac.hotbuffer.policies import mix
from sacctl.bench.lanes import Lane

__all__ = ["BEST", "PLAYERS", "RANDOM"]

# The best that any policy could do: it knows what comes.
BEST, RANDOM = "best", "random"
_STRIDE = 2147483647  # of libsac.hotbuffer.policies.Random


def _lru(lane: Lane, slots: int) -> int:
    """By (selection that used it last, slot)."""
    slot_of: dict[int, int] = {}
    order: OrderedDict[int, int] = OrderedDict()  # slot: unit, longest waiting first
    misses = 0
    for _, units in lane:
        joins = {slot_of[unit]: unit for unit in units if unit in slot_of}
        for slot in joins:
            order.move_to_end(slot)
        missing = [unit for unit in units if unit not in slot_of]
        misses += len(missing)
        for unit in missing:
            slot = len(slot_of)
            if slot == slots:
                slot, gone = order.popitem(last=False)
                del slot_of[gone]
            # Not to be taken again in this selection, which has no more units than slots.
            slot_of[unit], joins[slot] = slot, unit
        for slot in sorted(joins):
            order[slot] = joins[slot]
            order.move_to_end(slot)
    return misses


def _fifo(lane: Lane, slots: int) -> int:
    """By (selection that brought it in, slot)."""
    slot_of: dict[int, int] = {}
    order: deque[tuple[int, int]] = deque()  # slot, unit; first in first
    misses = 0
    for _, units in lane:
        selected = set(units)
        missing = [unit for unit in units if unit not in slot_of]
        misses += len(missing)
        spared, joins = [], []
        for unit in missing:
            slot = len(slot_of)
            if slot == slots:
                while (oldest := order.popleft())[1] in selected:
                    spared.append(oldest)
                slot = oldest[0]
                del slot_of[oldest[1]]
            slot_of[unit] = slot
            joins.append((slot, unit))
        order.extendleft(reversed(spared))
        order.extend(sorted(joins))
    return misses


def _random(lane: Lane, slots: int) -> int:
    """Any slot that does not hold a selected unit, free or not."""
    slot_of: dict[int, int] = {}
    holds: dict[int, int] = {}
    misses = 0
    for number, units in lane:
        missing = [unit for unit in units if unit not in slot_of]
        if not missing:
            continue
        misses += len(missing)
        hit = sorted(slot_of[unit] for unit in units if unit in slot_of)
        before = [slot - i for i, slot in enumerate(hit)]  # slots that wait below each
        waiting, start = slots - len(hit), mix(number % 2**32)
        for k, unit in enumerate(missing):
            place = (start + k * _STRIDE) % waiting
            slot = place + bisect_right(before, place)
            gone = holds.get(slot)
            if gone is not None:
                del slot_of[gone]
            slot_of[unit], holds[slot] = slot, unit
    return misses


def _clock(lane: Lane, slots: int) -> int:
    """A hand goes round; a slot that was used since it passed is spared once.

    Each slot that the hand passes had been used, or is used now: so as many as units.
    """
    slot_of: dict[int, int] = {}
    holds = [-1] * slots
    used = bytearray(slots)
    hand = misses = 0
    for _, units in lane:
        hit = {slot_of[unit] for unit in units if unit in slot_of}
        missing = [unit for unit in units if unit not in slot_of]
        if missing:
            misses += len(missing)
            taken: list[int] = []
            spared: list[int] = []
            for place in range(hand, hand + slots):
                slot = place % slots
                if slot not in hit:
                    (spared if used[slot] else taken).append(slot)
                    if len(taken) == len(missing):
                        break
            for slot in spared:
                used[slot] = 0
            taken += spared[: len(missing) - len(taken)]
            hand = (taken[-1] + 1) % slots
            for unit, slot in zip(missing, taken, strict=True):
                if holds[slot] >= 0:
                    del slot_of[holds[slot]]
                slot_of[unit], holds[slot] = slot, unit
                used[slot] = 1
        for slot in hit:
            used[slot] = 1
    return misses


def _best(lane: Lane, slots: int) -> int:
    """Of those not selected the one goes whose next use is the furthest (L. A. Belady, IBM
    Systems Journal 5(2), 1966)."""
    held: dict[int, int] = {}  # unit: number of the selection that uses it next
    furthest: list[int] = []  # -(next use, unit), outdated ones among them
    cuts = lane.cuts.tolist()
    misses = 0
    for i, (_, units) in enumerate(lane):
        following = lane.following[cuts[i] : cuts[i + 1]].tolist()
        misses += sum(unit not in held for unit in units)
        held.update(zip(units, following, strict=True))
        selected = set(units)
        while len(held) > slots:
            use, unit = divmod(-heappop(furthest), 1 << 32)
            if held.get(unit) == use and unit not in selected:
                del held[unit]
        if len(furthest) > 4 * slots:  # mostly outdated
            furthest = [-(use << 32 | unit) for unit, use in held.items()]
            heapify(furthest)
        else:
            for unit, use in zip(units, following, strict=True):
                heappush(furthest, -(use << 32 | unit))
    return misses


PLAYERS: dict[str, Callable[[Lane, int], int]] = {
    "lru": _lru,
    "fifo": _fifo,
    RANDOM: _random,
    "clock": _clock,
    BEST: _best,
}
