# SPDX-License-Identifier: Apache-2.0
"""Threads: readers during eviction, and native calls that let others run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conformance.content import LARGE, RICH, assert_idle, check, page, put, stream
from conformance.test_writers import in_threads

import libsac
from libsac import Keys, Layout, Namespace, Plane, errors

# Eight pages fill a slab; the pool has room for half of what is used.
LAYOUT = Layout(
    [
        Plane("kv", [0, 1], 4096, heads=2),
        Plane("window", [0], 1024, kind="window", window_tokens=24),
    ],
    page_tokens=16,
)


def test_readers_during_eviction(seed: int) -> None:
    """Each byte that a reader gets is right, whatever is evicted meanwhile."""
    ns: Namespace = libsac.embedded("8M").namespace("n", layout=LAYOUT)
    chains = [ns.keys(range(n * 1000, n * 1000 + 16 * 5)) for n in range(10)]
    done = threading.Event()
    found = [0, 0, 0]

    def write() -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(250):
                try:
                    put(ns, chains[rng.integers(len(chains))], timeout=30)
                except errors.NoSpaceError:
                    continue
                if rng.random() < 0.3:
                    ns.evict(int(rng.integers(1, 8)))
        finally:
            done.set()

    def read(me: int) -> None:
        rng = np.random.default_rng([seed, me])
        kv = LAYOUT.plane("kv")
        while not done.is_set():
            keys: Keys = chains[rng.integers(len(chains))]
            with ns.pin(keys) as prefix:
                if prefix.pages == 0:
                    continue
                found[me] += 1
                if rng.random() < 0.2:
                    check(prefix, keys, LAYOUT, prefix.pages)
                number = int(rng.integers(prefix.pages))
                want = page(keys.values[number].tobytes(), kv, 1)
                assert np.array_equal(prefix.view("kv", 1, number), want)
                index = np.tile(np.arange(number * 16, number * 16 + 16), (2, 1))
                assert np.array_equal(prefix.gather("kv", 1, index, threads=2), want)

    in_threads(write, *(lambda me=me: read(me) for me in range(3)))
    assert min(found) > 0
    assert ns.stats().evictions > 0
    assert_idle(ns)


def test_sequences_side_by_side(seed: int) -> None:
    """Four decode at once, two of them the same tokens, in a pool with little room."""
    ns = libsac.embedded("8M").namespace("n", layout=RICH)

    def decode(first: int, me: int) -> None:
        rng = np.random.default_rng([seed, me])
        keys = ns.keys(range(first, first + 16 * 8))
        for _ in range(6):
            with ns.sequence(range(first, first + 16 * int(rng.integers(0, 8)))) as seq:
                while seq.tokens < 16 * 8:
                    start = seq.tokens
                    stop = min(start + int(rng.integers(1, 30)), 16 * 8)
                    seq.extend(range(first + start, first + stop), timeout=30)
                    write_rows(seq, keys, start, stop)
                seq.flush()
                check(seq, keys, RICH, 8)
            ns.evict(int(rng.integers(0, 10)))

    in_threads(*(lambda n=n: decode(n // 2 * 1000, n) for n in range(4)))
    assert_idle(ns)


def write_rows(seq: libsac.Sequence, keys: Keys, start: int, stop: int) -> None:
    for plane in RICH.planes:
        step = 16 if plane.kind == "state" else plane.tokens_per_row
        for layer in plane.layers:
            rows = stream(keys, plane, layer)[..., start // step : -(-stop // step), :]
            seq.write(plane.name, layer, rows)


def test_one_handle_in_many_threads() -> None:
    """Gather, view, close: on one prefix from all sides, until it is closed."""
    ns = libsac.embedded("16M").namespace("n", layout=RICH)
    keys = ns.keys(range(160))
    put(ns, keys)
    for _ in range(20):
        prefix = ns.pin(keys)
        started = threading.Barrier(4, timeout=60)

        def read(prefix: libsac.Prefix = prefix, started: Any = started) -> None:
            started.wait()
            want = page(keys.values[3].tobytes(), RICH.plane("latent"), 1)[0]
            try:
                while True:
                    got = prefix.gather("latent", 1, np.arange(48, 64))
                    assert np.array_equal(got, want)
                    assert np.array_equal(prefix.view("latent", 1, 3), want)
            except errors.ClosedError:
                pass

        def close(prefix: libsac.Prefix = prefix, started: Any = started) -> None:
            started.wait()
            prefix.close()

        in_threads(read, read, read, close)
    assert_idle(ns)


def test_a_waiting_call_lets_others_end_what_it_waits_for() -> None:
    """The pool is pinned wholly. A sequence waits for room, and others ask it meanwhile: had
    any of these calls kept the GIL, nobody could ever end the pin."""
    pool = libsac.embedded("6M")
    ns = pool.namespace("n", layout=LARGE)
    room = pool.info.data_bytes // LARGE.page_bytes
    keys = ns.keys(range(16 * room))
    put(ns, keys)
    prefix, seq = ns.pin(keys), ns.sequence()
    begun = threading.Barrier(3, timeout=60)
    answers: list[int] = []

    def extend() -> None:
        begun.wait()
        answers.append(seq.extend([1], timeout=200))

    def ask() -> None:
        begun.wait()
        answers.append(seq.tokens)

    threads = [threading.Thread(target=job) for job in (extend, ask)]
    for thread in threads:
        thread.start()
    begun.wait()
    threading.Event().wait(0.1)
    prefix.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert sorted(answers) in ([0, 0], [0, 1])


@pytest.mark.parametrize("what", ["gather", "write", "commit", "verify", "keys"])
def test_native_calls_let_others_run(what: str) -> None:
    layout = Layout([Plane("kv", [0], 4096)], page_tokens=256)
    ns = libsac.embedded("96M").namespace("n", layout=layout, checksum=True)
    keys = ns.keys(range(64 * 256))
    rows = np.zeros((64, 256, 4096), np.uint8)
    with ns.put(keys) as batch:
        batch.write("kv", 0, rows)
    more = ns.keys(range(10**6, 10**6 + 16 * 256))
    prefix = ns.pin(keys)
    index = np.arange(64 * 256)
    out = np.empty((64 * 256, 4096), np.uint8)
    batch = ns.put(more)
    batch.write("kv", 0, rows[:16])
    ids = np.zeros(256 * 20000, np.uint32)
    calls: dict[str, Callable[[], object]] = {
        "gather": lambda: prefix.gather("kv", 0, index, out=out, threads=1),
        "write": lambda: batch.write("kv", 0, rows[:16]),
        "commit": lambda: put_again(ns, more, rows[:16]),
        "verify": ns.verify,
        "keys": lambda: ns.keys(ids),
    }
    steps = 0
    running = threading.Event()
    stop = threading.Event()

    def count() -> None:
        nonlocal steps
        while not stop.is_set():
            if running.is_set():
                steps += 1

    counter = threading.Thread(target=count)
    counter.start()
    try:
        # Had the call kept the GIL the other thread could take a few steps around it, not
        # thousands. On a busy machine it may be late: then once more.
        for _ in range(40):
            steps = 0
            running.set()
            calls[what]()
            running.clear()
            if steps > 2000:
                break
        else:
            pytest.fail(f"another thread never ran during {what}: {steps} steps")
    finally:
        stop.set()
        counter.join()
    batch.close()


def put_again(ns: Namespace, keys: Keys, rows: np.ndarray) -> None:
    with ns.put(keys) as batch:
        if len(batch.missing):
            batch.write("kv", 0, rows)
            batch.commit()
    ns.evict(len(keys))
