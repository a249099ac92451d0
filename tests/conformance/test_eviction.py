# SPDX-License-Identifier: Apache-2.0
"""Eviction, pins and full pools."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from conformance.backends import OpenPool
from conformance.content import LARGE, RICH, assert_idle, check, check_stored, put

from libsac import Keys, Namespace, Pool, errors

PAGE_TOKENS = 16


def keys_of(ns: Namespace, number: int, pages: int) -> Keys:
    return ns.keys(range(number * 100_000, number * 100_000 + pages * PAGE_TOKENS))


@pytest.fixture
def pool(open_pool: OpenPool) -> Pool:
    return open_pool("6M")


@pytest.fixture
def ns(pool: Pool) -> Namespace:
    return pool.namespace("n", layout=LARGE)


@pytest.fixture
def room(pool: Pool) -> int:
    return pool.info.data_bytes // LARGE.page_bytes


def test_old_prefixes_make_room_tail_first(ns: Namespace, room: int) -> None:
    old, young = keys_of(ns, 1, room // 2), keys_of(ns, 2, room // 2)
    put(ns, old)
    put(ns, young)
    check_stored(ns, young)
    check_stored(ns, old)  # used last now
    third = keys_of(ns, 3, 3)
    put(ns, third)
    assert ns.longest(old) == room // 2
    assert ns.longest(young) == room // 2 - 3
    assert ns.lookup(young).tolist() == [True] * (room // 2 - 3) + [False] * 3
    check_stored(ns, third)
    check_stored(ns, young, room // 2 - 3)
    assert ns.stats().evictions == 3


def test_evict_counts_parts(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = keys_of(ns, 1, 6)
    put(ns, keys)
    assert ns.evict(0) == 0
    assert ns.evict(2) == 2
    assert ns.lookup(keys).tolist() == [True] * 4 + [False] * 2
    assert ns.stats().tails == 0  # of no use without their bodies
    assert ns.evict(100) == 4
    assert ns.evict(100) == 0
    assert ns.stats().pages == 0
    with pytest.raises(errors.ArgumentError, match="count"):
        ns.evict(-1)
    put(ns, keys)
    check_stored(ns, keys)


def test_pinned_pages_stay(ns: Namespace, room: int) -> None:
    keys = keys_of(ns, 1, room)
    put(ns, keys)
    with ns.pin(keys[:5]) as prefix:
        assert ns.evict(1000) == room - 5
        check(prefix, keys, LARGE, 5)
        put(ns, keys_of(ns, 2, room - 5))
        check(prefix, keys, LARGE, 5)
        assert ns.stats().pinned == 5
    assert ns.evict(1000) == room


def test_a_page_pinned_twice(ns: Namespace) -> None:
    keys = keys_of(ns, 1, 2)
    put(ns, keys)
    first, second = ns.pin(keys), ns.pin(keys)
    assert ns.stats().pinned == 2
    first.close()
    first.close()
    assert ns.evict(10) == 0
    check(second, keys, LARGE, 2)
    second.close()
    assert ns.evict(10) == 2


def test_pins_go_with_the_object(ns: Namespace) -> None:
    keys = keys_of(ns, 1, 2)
    put(ns, keys)
    prefix = ns.pin(keys)
    assert prefix.pages == 2
    del prefix
    assert_idle(ns)
    batch = ns.put(keys_of(ns, 2, 2))
    assert ns.stats().reserved == 2
    del batch
    assert_idle(ns)


def test_everything_pinned(ns: Namespace, room: int) -> None:
    keys, more = keys_of(ns, 1, room), keys_of(ns, 2, 3)
    put(ns, keys)
    with ns.pin(keys) as prefix:
        with pytest.raises(errors.NoSpaceError) as caught:
            ns.put(more)
        text = str(caught.value)
        assert f"{room} are pinned" in text
        assert "no space for 3 pages" in text
        assert "0 are being written" in text
        assert caught.value.object == "n"
        assert caught.value.status == errors.NoSpaceError.CODE
        began = time.monotonic()
        with pytest.raises(errors.NoSpaceError):
            ns.put(more, timeout=0.2)
        assert time.monotonic() - began >= 0.2
        check(prefix, keys, LARGE, room)
    assert put(ns, more) == 3
    check_stored(ns, more)


def test_everything_reserved(ns: Namespace, room: int) -> None:
    with ns.put(keys_of(ns, 1, room)) as batch:
        with pytest.raises(errors.NoSpaceError, match=f"{room} are being written"):
            ns.put(keys_of(ns, 2, 1))
        batch.close()
    assert put(ns, keys_of(ns, 2, 1)) == 1


def test_a_put_waits_for_a_pin_to_end(ns: Namespace, room: int) -> None:
    keys, more = keys_of(ns, 1, room), keys_of(ns, 2, 1)
    put(ns, keys)
    prefix = ns.pin(keys)
    waiting = threading.Event()
    brought: list[int] = []

    def wait() -> None:
        waiting.set()
        brought.append(put(ns, more, timeout=60))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    time.sleep(0.05)
    assert brought == []
    prefix.close()
    thread.join(60)
    assert brought == [1]
    check_stored(ns, more)


def test_more_than_there_ever_is(ns: Namespace, room: int) -> None:
    keys = keys_of(ns, 1, room)
    put(ns, keys)
    with pytest.raises(errors.NoSpaceError):
        ns.put(keys_of(ns, 2, room + 1))
    check_stored(ns, keys)  # nothing was evicted in vain


def test_quota(open_pool: OpenPool) -> None:
    pool = open_pool("16M")
    a = pool.namespace("a", layout=LARGE, quota="4M")
    b = pool.namespace("b", layout=LARGE)
    assert a.info.quota_bytes == 4 << 20
    keys = keys_of(a, 1, 16)
    put(a, keys)
    assert a.info.assigned_bytes == 4 << 20
    with a.pin(keys), pytest.raises(errors.NoSpaceError, match="quota"):
        a.put(keys_of(a, 2, 1))
    put(a, keys_of(a, 2, 4))  # by eviction, within its own
    assert a.info.assigned_bytes == 4 << 20
    rest = (pool.info.free_bytes) // LARGE.page_bytes
    put(b, keys_of(b, 1, rest))
    with (
        pytest.raises(errors.NoSpaceError, match="End pins"),
        b.pin(keys_of(b, 1, rest)),
    ):
        b.put(keys_of(b, 2, 1))
    with pytest.raises(errors.NoSpaceError, match="quota"):
        pool.namespace("c", layout=RICH, quota=1)


def test_put_pins_what_is_there(ns: Namespace, room: int) -> None:
    keys = keys_of(ns, 1, room)
    put(ns, keys[: room - 2])
    with ns.put(keys) as batch:
        assert batch.missing.tolist() == [room - 2, room - 1]
        assert ns.evict(1000) == 0
        batch.close()
    assert ns.evict(1000) == room - 2
    assert_idle(ns)


def test_random_use_keeps_every_byte(
    ns: Namespace, room: int, rng: np.random.Generator
) -> None:
    """Puts in a pool much too small for them: what is found is right, always."""
    for _ in range(150):
        chain = int(rng.integers(0, 6))
        keys = keys_of(ns, chain, int(rng.integers(1, room // 2)))
        with ns.pin(keys) as prefix:
            check(prefix, keys, LARGE, prefix.pages)
            put(ns, keys)
        check_stored(ns, keys)
    assert_idle(ns)
    assert ns.stats().pages <= room


def test_bodies_leave_room_for_tails(open_pool: OpenPool) -> None:
    """Pages without window and state rows fill all there is; later ones still get theirs."""
    ns = open_pool("6M").namespace("n", layout=RICH)
    many = ns.keys(range(16 * 600))
    with pytest.raises(errors.NoSpaceError):
        ns.put(many)
    for n in (290, 150):
        put(ns, many[:n], first_tail=n)
    keys = keys_of(ns, 7, 5)
    put(ns, keys)
    check_stored(ns, keys)
    with ns.sequence() as seq:
        seq.extend(range(16 * 20))
    assert_idle(ns)
