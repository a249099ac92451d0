# SPDX-License-Identifier: Apache-2.0
"""Page events: what came and what left, in order, and what was missed."""

from __future__ import annotations

import numpy as np
from conformance.backends import OpenPool
from conformance.content import RICH, put

from libsac import Layout, PageEvent, Plane

TINY = Layout([Plane("kv", [0], 64)], page_tokens=1)
RING = 16384  # events that are kept for a reader


def test_stored_and_removed(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(48))
    put(ns, keys)  # before the reader: not its business
    events = ns.events()
    assert events.poll() == []
    more = ns.keys(range(16), parent=keys.values[2].tobytes())
    put(ns, more)
    stored = events.poll()
    # The tail comes first: a body that is seen has its tail.
    assert [(e.kind, e.part) for e in stored] == [("stored", "tail"), ("stored", "body")]
    for event in stored:
        assert event.key == more.values[0].tobytes()
        assert event.parent == keys.values[2].tobytes()
    assert ns.evict(1) == 1
    removed = events.poll()
    assert [e.kind for e in removed] == ["removed", "removed"]
    assert {(e.part, e.slot, e.generation, e.key) for e in removed} == {
        (e.part, e.slot, e.generation, e.key) for e in stored
    }
    assert ns.evict(10) == 3
    gone = [e.key for e in events if e.part == "body"]
    assert gone == [key.tobytes() for key in keys.values[::-1]]
    assert events.lost == 0
    numbers = [e.sequence for e in stored + removed]
    assert numbers == sorted(numbers)


def test_of_a_sequence(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=TINY)
    events = ns.events()
    with ns.sequence() as seq:
        for token in range(5):
            seq.extend([token])
            seq.write("kv", 0, np.zeros((1, 64), np.uint8))
        seq.flush()
    keys = ns.keys(range(5))
    seen = list(events)
    assert [e.key for e in seen] == [key.tobytes() for key in keys.values]
    assert [e.parent for e in seen] == [key.tobytes() for key in keys.parents]


def test_duplicates_are_no_events(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=TINY)
    keys = ns.keys([1])
    events = ns.events()
    a, b = ns.put(keys), ns.put(keys)
    for batch in (a, b):
        batch.write("kv", 0, np.zeros((1, 1, 64), np.uint8))
    assert (a.commit(), b.commit()) == (1, 0)
    assert [e.kind for e in events] == ["stored"]


def test_a_reader_that_is_too_slow(open_pool: OpenPool) -> None:
    ns = open_pool("8M").namespace("n", layout=TINY)
    events, late = ns.events(), ns.events()
    first: list[PageEvent] = []
    total = 0
    for start in range(0, 3 * RING, RING // 2):
        keys = ns.keys(range(start, start + RING // 2))
        with ns.put(keys) as batch:
            batch.write("kv", 0, np.zeros((len(keys), 1, 64), np.uint8))
        total += RING // 2
        first += events.poll()
    assert len(first) == total
    assert events.lost == 0
    assert [e.sequence for e in first] == list(range(total))
    seen = late.poll()
    assert len(seen) == RING
    assert late.lost == total - RING
    assert seen == first[-RING:]
    assert late.poll() == []
