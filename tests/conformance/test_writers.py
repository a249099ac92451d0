# SPDX-License-Identifier: Apache-2.0
"""Two writers of one key: the first to commit is kept, the other learns of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from conformance.backends import OpenPool
from conformance.content import PLAIN, RICH, assert_idle, check_stored, put, stream, write

from libsac import Keys, Namespace


def in_threads(*jobs: Callable[[], None]) -> None:
    """Runs the jobs at once; an exception of any of them is raised here."""
    failures: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_first_commit_counts(open_pool: OpenPool, order: tuple[int, int]) -> None:
    ns = open_pool().namespace("n", layout=PLAIN)
    keys = ns.keys(range(64))
    puts = [ns.put(keys), ns.put(keys)]
    assert [p.missing.tolist() for p in puts] == [[0, 1, 2, 3]] * 2
    for value, batch in enumerate(puts):
        for layer in range(2):
            batch.write("kv", layer, np.full((4, 16, 64), value + 1, np.uint8))
    assert puts[order[0]].commit() == 4
    with ns.pin(keys) as prefix:
        assert (prefix.gather("kv", 0) == order[0] + 1).all()
        assert puts[order[1]].commit() == 0
        assert (prefix.gather("kv", 0) == order[0] + 1).all()
    stats = ns.stats()
    assert (stats.pages, stats.commits, stats.duplicates) == (4, 4, 4)
    assert_idle(ns)


def test_overlapping_puts(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(160))
    long, short = ns.put(keys), ns.put(keys[:6])
    write(short, keys, RICH)
    write(long, keys, RICH)
    assert short.commit() == 6
    assert long.commit() == 4
    check_stored(ns, keys)
    check_stored(ns, keys[:6])
    assert_idle(ns)


def test_threads_race_for_the_same_keys(open_pool: OpenPool, seed: int) -> None:
    """Many rounds, both orders: each page is brought exactly once and is never torn."""
    ns: Namespace = open_pool("8M").namespace("n", layout=RICH)
    rounds = 30
    rng = np.random.default_rng(seed)
    chains = [
        ns.keys(range(i * 1000, i * 1000 + 16 * int(rng.integers(1, 9)))) for i in range(rounds)
    ]
    barrier = threading.Barrier(2, timeout=120)
    brought = [[0] * rounds, [0] * rounds]

    def writer(me: int) -> None:
        for i, keys in enumerate(chains):
            barrier.wait()
            brought[me][i] = put(ns, keys)
            check_stored(ns, keys)

    in_threads(lambda: writer(0), lambda: writer(1))
    for i, keys in enumerate(chains):
        assert brought[0][i] + brought[1][i] == len(keys)
    assert ns.stats().pages == sum(map(len, chains))
    assert_idle(ns)


def test_a_put_and_a_sequence(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=PLAIN)
    keys: Keys = ns.keys(range(48))
    with ns.sequence() as seq:
        seq.extend(range(48))
        put(ns, keys[:2])
        for layer in range(2):
            seq.write("kv", layer, stream(keys, PLAIN.plane("kv"), layer))
        assert seq.flush() == 3
        assert ns.stats().duplicates == 2
        for layer in range(2):
            got = seq.gather("kv", layer)
            assert np.array_equal(got, stream(keys, PLAIN.plane("kv"), layer))
    check_stored(ns, keys)
    assert_idle(ns)
