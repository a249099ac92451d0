# SPDX-License-Identifier: Apache-2.0
"""A daemon dies, or is replaced, while its clients hold everything that can be held."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from conformance.content import LARGE, PLAIN, RICH, assert_idle, check, check_stored, put, write
from system.daemon import Daemon, daemon
from system.puppet import puppet

from libsac import Keys, Namespace, Sequence, errors

kinds = pytest.mark.parametrize("kill", [True, False], ids=["killed", "replaced"])


@pytest.fixture
def one() -> Iterator[Daemon]:
    with daemon() as running:
        yield running


def append(seq: Sequence, keys: Keys, tokens: range) -> None:
    """Extends a sequence by whole pages of PLAIN."""
    first = seq.tokens // 16
    seq.extend(tokens)
    for layer in (0, 1):
        rows = [
            np.frombuffer(key.tobytes() * 32, np.uint8).reshape(16, 64)
            for key in keys.values[first : first + len(tokens) // 16]
        ]
        seq.write("kv", layer, np.concatenate(rows))


@kinds
def test_everything_held_goes_on(one: Daemon, kill: bool) -> None:
    with one.connect() as pool:
        ns = pool.namespace("n", RICH, checksum=True)
        keys, fresh = ns.keys(range(160)), ns.keys(range(10**6, 10**6 + 64))
        put(ns, keys)
        held = ns.pin(keys)
        view = held.view("latent", 1, 3)
        want = view.copy()
        half, whole = ns.put(fresh), ns.put(ns.keys(range(2 * 10**6, 2 * 10**6 + 32)))
        write(whole, ns.keys(range(2 * 10**6, 2 * 10**6 + 32)), RICH)
        for turn in range(3):
            one.restart(kill=kill)
            check(held, keys, RICH, 10)
            assert np.array_equal(view, want)
            stats = ns.stats()
            assert (stats.pages, stats.reserved) == (10 + 2 * (turn > 0), 6 + 4 * (turn == 0))
            assert stats.pinned >= 10
            if turn == 0:
                assert whole.commit() == 2
        # What is pinned stays, whatever happens to the rest.
        ns.evict(1000)
        check_stored(ns, keys)
        write(half, fresh, RICH)
        assert half.commit() == 4
        check_stored(ns, fresh)
        check_stored(ns, ns.keys(range(2 * 10**6, 2 * 10**6 + 32)), 0)
        del view
        for handle in (held, half, whole):
            handle.close()
        assert_idle(ns)
        assert ns.verify()[1] == 0
        assert one.clients().tables == 1  # the views of the dead daemons are gone


@kinds
def test_a_pin_keeps_its_page_through_pressure(one: Daemon, kill: bool) -> None:
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", LARGE, quota="6M")
        room = (6 << 20) // LARGE.page_bytes
        keys = ns.keys(range(16 * 5))
        put(ns, keys)
        held = ns.pin(keys)
        one.restart(kill=kill)
        other.do("ns = pool.namespace('n')")
        for i in range(4):
            start = (i + 1) * 10**6
            other.do(f"put(ns, ns.keys(range({start}, {start + 16 * (room - 5)})))")
            check(held, keys, LARGE, 5)
        start = 5 * 10**6
        assert (
            other.fails(f"put(ns, ns.keys(range({start}, {start + 16 * (room - 4)})))")[0]
            == "NoSpaceError"
        )
        held.close()
        assert_idle(ns)
        other.do(f"put(ns, ns.keys(range(9 * 10**6, 9 * 10**6 + {16 * room})))")


@kinds
def test_a_sequence_grows_on(one: Daemon, kill: bool) -> None:
    with one.connect() as pool:
        ns = pool.namespace("n", PLAIN)
        tokens = range(16 * 12)
        keys = ns.keys(tokens)
        with ns.sequence() as seq:
            for i in range(0, 12, 2):
                append(seq, keys, tokens[16 * i : 16 * (i + 2)])
                if i in (2, 6, 8):
                    one.restart(kill=kill)
                assert seq.flush() == 2
                if i in (4, 8):
                    one.restart(kill=kill)
            got = seq.gather("kv", 1)
            for page, key in enumerate(keys.values):
                want = np.frombuffer(key.tobytes() * 32, np.uint8).reshape(16, 64)
                assert np.array_equal(got[16 * page : 16 * page + 16], want)
            assert ns.longest(keys) == 12
        assert_idle(ns)


@kinds
def test_another_wrote_the_same_pages_meanwhile(one: Daemon, kill: bool) -> None:
    """A page that a sequence commits into an old view is there already, from a new one."""
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", PLAIN)
        tokens = range(16 * 6)
        keys = ns.keys(tokens)
        with ns.sequence() as seq, ns.put(ns.keys(range(10**6, 10**6 + 16))) as batch:
            append(seq, keys, tokens)
            write(batch, ns.keys(range(10**6, 10**6 + 16)), PLAIN)
            one.restart(kill=kill)
            other.do(f"ns = pool.namespace('n')\nassert put(ns, ns.keys(range({16 * 6}))) == 6")
            other.do(f"assert put(ns, ns.keys(range({10**6}, {10**6 + 16}))) == 1")
            assert seq.flush() == 6
            assert batch.commit() == 0
            # The other's page, not ours: pinned, and read where it lies.
            check(seq, keys, PLAIN, 6)
            assert ns.stats().pinned == 6
            ns.evict(1000)
            check(seq, keys, PLAIN, 6)
            check_stored(ns, keys)
        assert_idle(ns)
        assert one.clients().reservations == 0


def test_reading_through_a_restart(one: Daemon) -> None:
    """Who only reads does not notice: neither an error nor a long wait."""
    with one.connect() as pool:
        ns = pool.namespace("n", RICH)
        keys = ns.keys(range(96))
        put(ns, keys)
        ended = threading.Event()
        slowest: list[float] = []
        wrong: list[BaseException] = []

        def read(space: Namespace) -> None:
            worst = 0.0
            try:
                while not ended.is_set():
                    begin = time.monotonic()
                    with space.pin(keys) as prefix:
                        check(prefix, keys, RICH, 6)
                    assert space.lookup(keys).all()
                    worst = max(worst, time.monotonic() - begin)
            except BaseException as error:
                wrong.append(error)
            slowest.append(worst)

        threads = [threading.Thread(target=read, args=(ns,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for i in range(10):
            time.sleep(0.05)
            one.restart(kill=i % 2 == 0)
        ended.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert max(slowest) < 1
        assert_idle(ns)


def test_while_the_daemon_is_away(one: Daemon) -> None:
    with one.connect() as pool:
        ns = pool.namespace("n", PLAIN)
        keys = ns.keys(range(160))
        put(ns, keys)
        held, batch = ns.pin(keys), ns.put(ns.keys(range(1000, 1032)))
        one.kill()
        # Given up without a daemon; it is told when there is one.
        begin = time.monotonic()
        held.close()
        batch.close()
        assert time.monotonic() - begin < 1
        threading.Timer(0.3, one.start).start()
        assert put(ns, ns.keys(range(2000, 2032))) == 2  # waits for it
        assert_idle(ns)
        one.kill()
        begin = time.monotonic()
    assert time.monotonic() - begin < 1  # so does close
    one.start()


def test_a_daemon_that_hangs(one: Daemon) -> None:
    """Reading goes on, writing waits, closing does not wait long."""
    pool = one.connect()
    ns = pool.namespace("n", PLAIN)
    keys = ns.keys(range(64))
    put(ns, keys)
    os.kill(one.pid, signal.SIGSTOP)
    check_stored(ns, keys)
    waker = threading.Timer(0.3, os.kill, (one.pid, signal.SIGCONT))
    waker.start()
    assert put(ns, ns.keys(range(1000, 1016))) == 1
    waker.join()
    os.kill(one.pid, signal.SIGSTOP)
    begin = time.monotonic()
    pool.close()
    del ns
    assert time.monotonic() - begin < 8
    os.kill(one.pid, signal.SIGCONT)


def test_a_client_dies_while_no_daemon_is_there(one: Daemon) -> None:
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", LARGE)
        put(ns, ns.keys(range(64)))
        other.do(
            "ns = pool.namespace('n')\nheld = ns.pin(ns.keys(range(64)))\n"
            "batch = ns.put(ns.keys(range(1000, 1064)))"
        )
        one.kill()
        other.kill()
        one.start()
        assert_idle(ns)
        assert one.clients().clients == 1


def test_the_run_directory_is_lost(one: Daemon) -> None:
    """Nobody knows the client any more: what it had is gone, and it is told so."""
    with one.connect() as pool:
        ns = pool.namespace("n", PLAIN)
        keys, fresh = ns.keys(range(64)), ns.keys(range(1000, 1032))
        put(ns, keys)
        batch, late = ns.put(fresh), ns.put(ns.keys(range(2000, 2032)))
        write(batch, fresh, PLAIN)
        held = ns.pin(keys)
        check_prefix = held.gather("kv", 0)
        one.restart(kill=True, forget=True)
        # What it pinned may be another's by now, and so may what it was to write.
        with pytest.raises(errors.StaleError, match="run directory"):
            held.gather("kv", 0)
        with pytest.raises(errors.ReservationError, match="run directory"):
            late.write("kv", 0, check_prefix[: 2 * 16].reshape(2, 16, -1))
        held.close()
        late.close()
        check_stored(ns, keys)  # in a new view
        with pytest.raises(errors.ReservationError, match="run directory"):
            batch.commit()
        batch.close()
        assert put(ns, fresh) == 2
        assert_idle(ns)


def test_the_pool_is_another_one(one: Daemon) -> None:
    with one.connect() as pool:
        ns = pool.namespace("n", PLAIN)
        put(ns, ns.keys(range(64)))
        one.kill()
        for file in (one.root / "pools" / "p").iterdir():
            file.unlink()
        (one.root / "pools" / "p").rmdir()
        one.start()
        with pytest.raises(errors.NotFoundError):
            put(ns, ns.keys(range(1000, 1016)))
        one.create("p", 16 << 20)
        with pytest.raises(errors.NotFoundError):
            put(ns, ns.keys(range(1000, 1016)))
        with pytest.raises(errors.ClosedError, match="another pool"):
            pool.namespace("n", PLAIN)
    with one.connect() as pool:
        assert pool.namespaces() == ["n"]


# ------------------------------------------------------------------------------- growing


@pytest.mark.parametrize("quota", [None, "16M"])
def test_the_pool_grows_under_clients(one: Daemon, quota: str | None) -> None:
    """Pages in an extent that a client has not mapped yet are mapped before they are found."""
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", LARGE, quota=quota)
        other.do("ns = pool.namespace('n')\nns.lookup(ns.keys(range(16)))")
        pool.namespace("filler", LARGE)
        filler = pool.namespace("filler")
        half = (8 << 20) // LARGE.page_bytes
        put(filler, filler.keys(range(16 * half)))
        seq = ns.sequence()
        seq.extend(range(5))
        put(ns, ns.keys(range(10**6, 10**6 + 16 * (half - 8))))
        one.tell("extend", "p", 16 << 20)
        assert pool.info.extents == 2
        more = range(2 * 10**6, 2 * 10**6 + 16 * half)
        other.do(f"put(ns, ns.keys({more!r}))")
        check_stored(ns, ns.keys(more))
        put(ns, ns.keys(range(3 * 10**6, 3 * 10**6 + 16)))
        seq.extend(range(5, 20))
        seq.close()
        assert_idle(ns)
        with one.connect() as late:
            check_stored(late.namespace("n"), ns.keys(more))


def test_a_quota_is_changed_under_clients(one: Daemon) -> None:
    with one.connect() as pool:
        ns = pool.namespace("n", LARGE, quota="4M")
        room = (2 << 20) // LARGE.page_bytes
        keys = ns.keys(range(16 * room * 2))
        put(ns, keys)
        held = ns.pin(keys)
        with pytest.raises(errors.NoSpaceError):
            put(ns, ns.keys(range(10**6, 10**6 + 16)))
        one.tell("resize", "p", "n", 12 << 20)
        more = ns.keys(range(10**6, 10**6 + 16 * room * 4))
        assert put(ns, more) == room * 4
        assert ns.info.quota_bytes == 12 << 20
        check(held, keys, LARGE, room * 2)
        held.close()
        one.tell("resize", "p", "n", 2 << 20)
        assert ns.stats().pages <= room
        assert ns.info.quota_bytes == 2 << 20
        assert_idle(ns)
