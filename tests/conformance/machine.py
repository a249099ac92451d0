# SPDX-License-Identifier: Apache-2.0
"""A namespace and a plain Python model of it, driven by hypothesis.

The model holds which parts are stored, learned from the page events alone, so that every
lookup, pin and count has one right answer. Pages leave only by evict() or where a put or a
sequence needs their room, never while they are pinned; every byte read follows from its key.
"""

from __future__ import annotations

import numpy as np
from conformance.backends import OpenPool
from conformance.content import check, stream, tail_start, write
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from libsac import Keys, Layout, Namespace, Plane, Prefix, Put, Sequence, errors

LAYOUT = Layout(
    [
        Plane("kv", [0, 1], 8192, heads=2),
        Plane("packed", [1], 512, tokens_per_row=2),
        Plane("window", [0], 1024, kind="window", window_tokens=6),
    ],
    page_tokens=4,
)
PAGES = 8
SIZE = "6M"
ROOM = 30  # of the three slabs one holds tails, the others 15 bodies each
# Chains that share their first pages: (page at which they part from chain 0, number).
CHAINS = [(PAGES, 0), (0, 1), (3, 2), (5, 3), (0, 4), (2, 5), (0, 6)]
TOKENS = [
    [*range(split * 4), *range(1000 * n, 1000 * n + (PAGES - split) * 4)] for split, n in CHAINS
]

chains = st.integers(0, len(CHAINS) - 1)
lengths = st.integers(0, PAGES)


class Machine(RuleBasedStateMachine):
    """Set ``open_pool`` in a subclass."""

    open_pool: OpenPool
    checksum = False

    def __init__(self) -> None:
        super().__init__()
        self.open_pool.close()
        self.pool = self.open_pool(SIZE)
        for name in self.pool.namespaces():
            self.pool.drop(name)
        self.ns: Namespace = self.pool.namespace("n", layout=LAYOUT, checksum=self.checksum)
        self.keys: list[Keys] = [self.ns.keys(tokens) for tokens in TOKENS]
        self.stored: tuple[set[bytes], set[bytes]] = (set(), set())  # bodies, tails
        self.prefixes: list[tuple[Prefix, Keys]] = []
        self.puts: list[tuple[Put, Keys]] = []
        self.sequences: list[tuple[Sequence, int]] = []
        self.events = self.ns.events()

    # ---- the model -------------------------------------------------------------------

    def learn(self, may_leave: bool) -> list[bytes]:
        """Takes the events in; returns the bodies stored since the last call."""
        pinned = self.pinned() if may_leave else (set(), set())
        new = []
        for event in self.events:
            part = event.part == "tail"
            if event.kind == "stored":
                assert event.key not in self.stored[part]
                self.stored[part].add(event.key)
                new += [event.key] * (not part)
            else:
                assert may_leave
                assert event.key not in pinned[part]
                self.stored[part].remove(event.key)
        assert self.events.lost == 0
        return new

    def pinned(self) -> tuple[set[bytes], set[bytes]]:
        """Bodies and tails that prefixes hold."""
        bodies, tails = set(), set()
        for prefix, keys in self.prefixes:
            names = [key.tobytes() for key in keys.values[: prefix.pages]]
            bodies.update(names)
            tails.update(names[tail_start(LAYOUT, len(names)) :])
        return bodies, tails

    def longest(self, keys: Keys) -> int:
        names = [key.tobytes() for key in keys.values]
        best = 0
        for n in range(1, len(names) + 1):
            if names[n - 1] not in self.stored[0]:
                break
            if all(name in self.stored[1] for name in names[tail_start(LAYOUT, n) : n]):
                best = n
        return best

    def idle(self) -> bool:
        return not (self.prefixes or self.puts or self.sequences)

    # ---- rules -----------------------------------------------------------------------

    def reserve(self, keys: Keys, first_tail: int | None) -> Put | None:
        try:
            batch = self.ns.put(keys, first_tail=first_tail)
        except errors.NoSpaceError:
            assert not self.idle()
            self.learn(True)
            return None
        self.learn(True)
        return batch

    @rule(chain=chains, n=lengths, first_tail=st.none() | lengths)
    def put(self, chain: int, n: int, first_tail: int | None) -> None:
        keys = self.keys[chain][:n]
        batch = self.reserve(keys, first_tail)
        if batch is None:
            return
        names = [key.tobytes() for key in keys.values]
        missing = [i for i in range(n) if names[i] not in self.stored[0]]
        assert batch.missing.tolist() == missing
        write(batch, keys, LAYOUT)
        assert batch.commit() == len(missing)
        batch.close()
        assert self.learn(False) == [names[i] for i in missing]
        if first_tail is None:
            assert self.longest(keys) == n

    @rule(chain=chains, n=lengths)
    def abort(self, chain: int, n: int) -> None:
        keys = self.keys[chain][:n]
        batch = self.reserve(keys, None)
        if batch is not None:
            write(batch, keys, LAYOUT)
            batch.close()
        assert self.learn(False) == []

    @precondition(lambda self: len(self.puts) < 3)
    @rule(chain=chains, n=lengths)
    def begin_put(self, chain: int, n: int) -> None:
        keys = self.keys[chain][:n]
        batch = self.reserve(keys, None)
        if batch is not None:
            self.puts.append((batch, keys))

    @precondition(lambda self: self.puts)
    @rule(which=st.integers(0, 9), commit=st.booleans())
    def end_put(self, which: int, commit: bool) -> None:
        batch, keys = self.puts.pop(which % len(self.puts))
        if commit:
            write(batch, keys, LAYOUT)
            brought = batch.commit()
            assert brought == len(self.learn(False))
            assert self.ns.lookup(keys).all()
            assert self.longest(keys) == len(keys)
        batch.close()

    @precondition(lambda self: len(self.prefixes) < 4)
    @rule(chain=chains, n=lengths)
    def pin(self, chain: int, n: int) -> None:
        keys = self.keys[chain][:n]
        prefix = self.ns.pin(keys)
        assert prefix.pages == self.longest(keys)
        self.prefixes.append((prefix, keys))

    @precondition(lambda self: self.prefixes)
    @rule(which=st.integers(0, 9), data=st.data())
    def gather(self, which: int, data: st.DataObject) -> None:
        prefix, keys = self.prefixes[which % len(self.prefixes)]
        rows = prefix.tokens
        index = np.array(data.draw(st.lists(st.integers(-1, rows - 1), max_size=20)), np.int64)
        want = np.zeros((2, len(index), 8192), np.uint8)
        there = index >= 0
        want[:, there] = stream(keys, LAYOUT.plane("kv"), 1)[:, index[there]]
        got = prefix.gather("kv", 1, np.tile(index, (2, 1)))
        assert np.array_equal(got, want)

    @precondition(lambda self: self.prefixes)
    @rule(which=st.integers(0, 9))
    def unpin(self, which: int) -> None:
        prefix, keys = self.prefixes.pop(which % len(self.prefixes))
        check(prefix, keys, LAYOUT, prefix.pages)
        prefix.close()

    @precondition(lambda self: len(self.sequences) < 2)
    @rule(chain=chains, n=lengths)
    def open_sequence(self, chain: int, n: int) -> None:
        seq = self.ns.sequence(TOKENS[chain][: n * 4 + 3])
        assert seq.tokens == 4 * self.longest(self.keys[chain][:n])
        self.sequences.append((seq, chain))

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 9), count=st.integers(1, 9), flush=st.booleans())
    def append(self, which: int, count: int, flush: bool) -> None:
        seq, chain = self.sequences[which % len(self.sequences)]
        start, keys = seq.tokens, self.keys[chain]
        tokens = TOKENS[chain][start : start + count]
        try:
            seq.extend(tokens)
        except errors.NoSpaceError:
            assert seq.tokens == start
            self.learn(True)
            return
        self.learn(True)
        stop = start + len(tokens)
        for plane in LAYOUT.planes:
            first, last = start // plane.tokens_per_row, -(-stop // plane.tokens_per_row)
            for layer in plane.layers:
                seq.write(plane.name, layer, stream(keys, plane, layer)[..., first:last, :])
        if flush:
            seq.flush()
            self.learn(False)
            assert self.ns.lookup(keys[: stop // 4]).all()
        got = seq.gather("kv", 0, np.tile(np.arange(stop), (2, 1)))
        assert np.array_equal(got, stream(keys, LAYOUT.plane("kv"), 0)[:, :stop])

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 9))
    def close_sequence(self, which: int) -> None:
        self.sequences.pop(which % len(self.sequences))[0].close()

    @rule(count=st.integers(0, 40))
    def evict(self, count: int) -> None:
        before = len(self.stored[0]) + len(self.stored[1])
        evicted = self.ns.evict(count)
        self.learn(True)
        assert evicted <= count
        gone = before - len(self.stored[0]) - len(self.stored[1])
        assert evicted <= gone <= 2 * evicted  # a body takes its tail along
        if self.idle() and evicted < count:
            assert self.stored == (set(), set())

    @rule()
    def verify(self) -> None:
        assert self.ns.verify() == (len(self.stored[0]) + len(self.stored[1]), 0)

    @precondition(lambda self: self.open_pool.on_disk)
    @rule(crash=st.booleans())
    def recover(self, crash: bool) -> None:
        """By another owner: nothing committed is lost, nothing else is there."""
        if crash:  # with everything still held
            self.pool = self.open_pool.crash()
        self.release()
        if not crash:
            self.pool = self.open_pool.reopen()
        assert self.pool.info.recovered == crash
        self.ns = self.pool.namespace("n", layout=LAYOUT, checksum=self.checksum)
        self.events = self.ns.events()
        self.all_bytes()

    # ---- what always holds -------------------------------------------------------------

    @invariant()
    def lookups_agree(self) -> None:
        for keys in self.keys:
            found = [key.tobytes() in self.stored[0] for key in keys.values]
            assert self.ns.lookup(keys).tolist() == found
            assert self.ns.longest(keys) == self.longest(keys)

    @invariant()
    def counts_agree(self) -> None:
        stats = self.ns.stats()
        assert (stats.pages, stats.tails) == tuple(map(len, self.stored))
        assert stats.quarantined == stats.checks_failed == 0
        if self.idle():
            assert (stats.pinned, stats.reserved) == (0, 0)
        else:
            assert stats.pinned >= sum(map(len, self.pinned()))

    def all_bytes(self) -> None:
        for keys in self.keys:
            with self.ns.pin(keys) as prefix:
                assert prefix.pages == self.longest(keys)
                check(prefix, keys, LAYOUT, prefix.pages)

    def release(self) -> None:
        for batch, _ in self.puts:
            batch.close()
        for prefix, _ in self.prefixes:
            prefix.close()
        for seq, _ in self.sequences:
            seq.close()
        self.puts, self.prefixes, self.sequences = [], [], []

    def teardown(self) -> None:
        self.release()
        self.learn(False)
        self.counts_agree()
        self.all_bytes()
        # No slot was lost: there is room for as many new pages as ever.
        self.ns.evict(1000)
        fresh = self.ns.keys(range(10**6, 10**6 + 4 * ROOM))
        with self.ns.put(fresh) as batch:
            assert len(batch.missing) == ROOM
            batch.close()
        self.events = self.ns.events()
        self.open_pool.close()
