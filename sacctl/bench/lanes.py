# SPDX-License-Identifier: Apache-2.0
"""Selections of a trace, sorted by lane: what ``sacctl bench policy`` plays.

A trace may come from anywhere, and one selection can name a thousand heads with a unit each.
So nothing here is an object a lane: selections are rows of a few columns, lanes come out of
sorting these, and are looked at a bounded number of units at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libsac.trace import Bound, Lost, Released, Selection, Trace

__all__ = ["CHUNK", "UNKNOWN_UNITS", "Chunk", "Lane", "Rows"]

UNKNOWN_UNITS = (1 << 31) - 1
CHUNK = 1 << 16  # units looked at together, more only where a single lane has more
_UNIT_BITS = 31

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Lane:
    """The selections of one lane that name a unit the request has, in their order.

    numbers: of each selection among all of the lane, from 0. cuts: selection i has the units
    cuts[i] .. cuts[i + 1] - 1 of ``units``, each once and ascending. following: of each unit
    the number of the next selection that has it, ``never`` where there is none.
    """

    numbers: Ints
    cuts: Longs
    units: Ints
    following: Ints
    never: int

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        """Number and units of each selection."""
        cuts = self.cuts.tolist()
        for i, number in enumerate(self.numbers.tolist()):
            yield number, self.units[cuts[i] : cuts[i + 1]].tolist()


class Chunk:
    """Some lanes with all their selections.

    Attributes:
        selected, distinct: of each lane, units of all selections (each once a selection), and
            units that any of them has.
        settled: lanes all of whose units are in the first selection that has any.
    """

    def __init__(self, key: Longs, steps: Ints, of_lane: Longs) -> None:
        """key, steps: of each entry, lane << 31 | unit and the number of its selection in the
        lane; ascending in the two. of_lane: how many selections each lane has."""
        fresh = _changes(key)
        once = fresh | _changes(steps)
        self._key, self._fresh, steps = key[once], fresh[once], steps[once]
        count = len(of_lane)
        self._of_lane = of_lane
        self._base = np.cumsum(of_lane) - of_lane  # number of a lane's first selection
        lanes = self._lanes(self._key)
        self.selected = np.bincount(lanes, minlength=count)
        self.distinct = np.bincount(lanes[self._fresh], minlength=count)
        self.settled = np.ones(count, bool)
        if len(lanes):
            first, there = steps[self._fresh], np.flatnonzero(self.distinct)
            starts = (np.cumsum(self.distinct) - self.distinct)[there]
            low, high = (f.reduceat(first, starts) for f in (np.minimum, np.maximum))
            self.settled[there] = low == high
        # The number of each entry's selection among the chunk's, by lane.
        self._selection: Ints = self._base.astype(np.int32)[lanes]
        self._selection += steps

    @staticmethod
    def _lanes(key: Longs) -> Ints:
        """Of each entry its lane. Lanes are fewer than 2^31: each has four bytes of a chunk."""
        return (key >> _UNIT_BITS).astype(np.int32)

    def overlaps(self) -> tuple[Longs, Longs]:
        """Of each number n of units: how many selections of n units have one before them in
        their lane, and how many units they have in common with that, together."""
        sizes = np.bincount(self._selection, minlength=int(self._of_lane.sum()))
        again = np.zeros(len(self._key), bool)
        again[1:] = ~self._fresh[1:] & (np.diff(self._selection) == 1)
        common = np.bincount(self._selection[again], minlength=len(sizes))
        sizes[self._base] = 0  # none before
        counts = np.bincount(sizes)
        together = np.bincount(sizes, weights=common).astype(np.int64)
        counts[0] = together[0] = 0
        return counts, together

    def lanes(self, wanted: Flags) -> Iterator[tuple[int, Lane]]:
        """Those wanted, with their numbers here."""
        chosen = wanted[self._lanes(self._key)]
        if not chosen.any():
            return
        key, selection = self._key[chosen], self._selection[chosen]
        never, lanes = self._of_lane.astype(np.int32), self._lanes(key)
        following = never[lanes]
        follows = np.flatnonzero(~self._fresh[chosen][1:])  # the same unit of the same lane
        following[follows] = selection[follows + 1] - self._base[lanes[follows]]
        del follows, lanes, chosen
        units = (key & UNKNOWN_UNITS).astype(np.int32)
        del key
        # By selection, and in each by unit: they are in the order of units.
        order = np.argsort(selection, kind="stable")
        units, following, selection = units[order], following[order], selection[order]
        del order
        cuts = np.flatnonzero(_changes(selection))
        selection = selection[cuts]
        owners = np.searchsorted(self._base, selection, "right") - 1
        numbers = (selection - self._base[owners]).astype(np.int32)
        firsts = np.flatnonzero(_changes(owners))
        cuts = np.append(cuts, len(units))
        ends = [*firsts[1:].tolist(), len(owners)]
        for first, end in zip(firsts.tolist(), ends, strict=True):
            lane, start, stop = int(owners[first]), int(cuts[first]), int(cuts[end])
            yield (
                lane,
                Lane(
                    numbers[first:end],
                    cuts[first : end + 1] - start,
                    units[start:stop],
                    following[start:stop],
                    int(never[lane]),
                ),
            )


class Rows:
    """A trace's selections, a row for each request of a batch.

    Attributes:
        lanes, selections: how many there are in all. lost: left out by the recorder.
    """

    def __init__(self, trace: Trace) -> None:
        """Reads all of it; raises what iterating over it raises."""
        self._heads = trace.heads
        self.lost = 0
        self._tokens = array("i")
        life, have = array("q"), array("i")  # of each row
        name, batch, width = array("Q"), array("i"), array("i")  # of each record
        # A request's life gets the next number when it begins and when it ends. This is all
        # that a header alone makes us allocate: 12 bytes a request number, of at most 2^20.
        lives = np.arange(trace.requests, dtype=np.int64)
        units = np.full(trace.requests, UNKNOWN_UNITS, np.int32)
        following = trace.requests
        for event in trace:
            match event:
                case Bound(request=request, fresh=fresh):
                    if fresh:
                        lives[request], following = following, following + 1
                    units[request] = event.units
                case Released(request=request):
                    lives[request], following = following, following + 1
                    units[request] = 0
                case Lost(count=count):
                    self.lost += count
                case Selection(requests=requests, tokens=tokens):
                    life.frombytes(lives[requests].tobytes())
                    have.frombytes(units[requests].tobytes())
                    name.append(event.group << 32 | event.layer)
                    batch.append(len(requests))
                    width.append(tokens.shape[2])
                    self._tokens.frombytes(tokens.astype(np.int32, copy=False).tobytes())
        del lives, units
        of_row = np.repeat(np.arange(len(batch)), np.frombuffer(batch, np.int32))
        names, lived = np.frombuffer(name, np.uint64)[of_row], np.frombuffer(life, np.int64)
        order = np.lexsort((names, lived))  # stable: rows of a stream stay in their order
        self._width = np.frombuffer(width, np.int32)[of_row].astype(np.int64)
        del of_row
        self._at = (np.cumsum(self._width) - self._width) * self._heads
        self._width, self._at = self._width[order], self._at[order]
        self._have = np.frombuffer(have, np.int32)[order]
        begins = _changes(lived[order]) | _changes(names[order])
        # A stream: the rows of a life in one group and layer, so of as many lanes as heads.
        self._streams = np.append(np.flatnonzero(begins), len(order))
        self.lanes = (len(self._streams) - 1) * self._heads
        self.selections = len(order) * self._heads

    def __iter__(self) -> Iterator[Chunk]:
        """All lanes, each in one chunk."""
        ends = np.append(0, np.cumsum(self._width))[self._streams] * self._heads
        first, count = 0, len(self._streams) - 1
        while first < count:
            end = int(np.searchsorted(ends, ends[first] + CHUNK, "right")) - 1
            if end > first:
                yield self._chunk(first, end, 0, self._heads)
            else:  # a part of its heads at a time
                end = first + 1
                part = max(1, CHUNK * self._heads // int(ends[end] - ends[first]))
                for head in range(0, self._heads, part):
                    yield self._chunk(first, end, head, min(self._heads, head + part))
            first = end

    def _chunk(self, first: int, end: int, head: int, heads_end: int) -> Chunk:
        """These streams' lanes of these heads."""
        streams = self._streams[first : end + 1]
        rows, heads = slice(int(streams[0]), int(streams[-1])), heads_end - head
        width, have = self._width[rows], self._have[rows]
        long = np.diff(streams)  # rows of each stream
        stream = np.repeat(np.arange(len(long)), long)
        step = (np.arange(len(stream)) - (streams[:-1] - streams[0])[stream]).astype(np.int32)
        # Of each head of each row: where its units are; then of each unit.
        lane = (stream[:, None] * heads + np.arange(heads)).reshape(-1)
        at = (
            (self._at[rows] + head * width)[:, None] + width[:, None] * np.arange(heads)
        ).reshape(-1)
        row = np.repeat(np.arange(len(width), dtype=np.int32), heads)
        counts = width[row]
        # place, units, owner: of each unit, as many as that head has of that row.
        place = np.arange(int(counts.sum()))
        place += np.repeat(at - (np.cumsum(counts) - counts), counts)
        units = np.frombuffer(self._tokens, np.int32)[place]
        del place
        owner = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        valid = (units >= 0) & (units < have[row][owner])
        units, owner = units[valid], owner[valid]
        key = lane[owner]
        key <<= _UNIT_BITS
        key |= units
        steps = step[row][owner]
        del units, owner, valid
        order = np.argsort(key, kind="stable")
        steps = steps[order]
        del order
        key.sort()
        return Chunk(key, steps, np.repeat(long, heads))


def _changes(values: NDArray[np.int64] | NDArray[np.int32] | NDArray[np.uint64]) -> Flags:
    """Whether each differs from the one before; the first one does."""
    found = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=found[1:])
    return found
