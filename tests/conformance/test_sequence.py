# SPDX-License-Identifier: Apache-2.0
"""Sequences that grow: a stored prefix, then rows appended to pages not yet committed."""

from __future__ import annotations

import numpy as np
import pytest
from conformance.backends import OpenPool
from conformance.content import (
    LARGE,
    PLAIN,
    RICH,
    assert_idle,
    check,
    check_stored,
    put,
    stream,
    tail_start,
)

from libsac import Keys, Layout, Namespace, Plane, Sequence, errors


def per_row(layout: Layout, plane: Plane) -> int:
    return layout.page_tokens if plane.kind == "state" else plane.tokens_per_row


def append(seq: Sequence, keys: Keys, layout: Layout, start: int, stop: int) -> None:
    """Appends tokens start..stop-1 (their ids are their numbers) with the content of keys."""
    assert seq.extend(range(start, stop)) == start
    for plane in layout.planes:
        step = per_row(layout, plane)
        first, last = start // step, -(-stop // step)
        for layer in plane.layers:
            seq.write(plane.name, layer, stream(keys, plane, layer)[..., first:last, :])


@pytest.mark.parametrize("step", [1, 5, 16, 37, 160])
def test_grows_and_is_stored(open_pool: OpenPool, step: int) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(160))
    latent, k = RICH.plane("latent"), RICH.plane("k")
    with ns.sequence() as seq:
        assert (seq.tokens, seq.pages) == (0, 0)
        for start in range(0, 160, step):
            stop = min(start + step, 160)
            append(seq, keys, RICH, start, stop)
            assert seq.tokens == stop
            # All rows can be read at once, committed or not.
            index = np.arange(stop)
            got = seq.gather("latent", 2, index)
            assert np.array_equal(got, stream(keys, latent, 2)[:stop])
            heads = seq.gather("k", 0, np.tile(index, (3, 1)))
            assert np.array_equal(heads, stream(keys, k, 0)[:, :stop])
        seq.flush()
        assert ns.lookup(keys).all()
        check(seq, keys, RICH, 10)
    assert_idle(ns)
    check_stored(ns, keys)


def test_goes_on_from_what_is_stored(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(160), salt=b"s")
    put(ns, keys[:4])
    put(ns, keys[4:7])
    assert ns.sequence(range(160)).tokens == 0  # another salt
    with ns.sequence(range(150), salt=b"s") as seq:
        assert (seq.tokens, seq.pages) == (112, 7)
        with pytest.raises(errors.RangeError, match="open"):
            seq.write("latent", 0, np.zeros((1, 100), np.uint8), start=111)
        append(seq, keys, RICH, 112, 150)
        first = tail_start(RICH, 10) * 16
        got = seq.gather("window", 1, np.arange(first, 150))
        assert np.array_equal(got, stream(keys, RICH.plane("window"), 1)[first:150])
        assert seq.flush() == 2
    check_stored(ns, keys[:9])
    assert not ns.lookup(keys)[9]
    assert_idle(ns)


def test_an_unfinished_page_is_dropped(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=PLAIN)
    keys = ns.keys(range(32))
    with ns.sequence() as seq:
        append(seq, keys, PLAIN, 0, 31)
        assert seq.flush() == 1
        assert ns.stats().reserved == 1
    assert ns.stats().pages == 1
    assert ns.stats().aborts == 1
    assert_idle(ns)


def test_rows_are_asked_for_before_the_next_tokens(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=PLAIN)
    keys = ns.keys(range(32))
    with ns.sequence() as seq:
        seq.extend(range(16))
        seq.write("kv", 0, stream(keys, PLAIN.plane("kv"), 0)[:16])
        assert seq.flush() == 0
        with pytest.raises(errors.IncompleteError, match="page 0"):
            seq.extend([16])
        assert seq.tokens == 16
        # Rows that are not written cannot be read; those that are can.
        assert len(seq.gather("kv", 0)) == 16
        with pytest.raises(errors.RangeError):
            seq.gather("kv", 1, [0])
        seq.write("kv", 1, stream(keys, PLAIN.plane("kv"), 1)[:16])
        assert seq.extend([16]) == 16
        assert ns.lookup(keys)[0]
        with pytest.raises(errors.RangeError):
            seq.gather("kv", 0, [16])


def test_a_row_may_be_written_again(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=PLAIN)
    with ns.sequence() as seq:
        seq.extend(range(3))
        for value in (1, 2):
            seq.write("kv", 0, np.full((3, 64), value, np.uint8))
        seq.write("kv", 0, np.full((1, 64), 9, np.uint8), start=1)
        assert seq.gather("kv", 0, [0, 1, 2])[:, 0].tolist() == [2, 9, 2]
        wide = np.arange(3 * 128, dtype=np.uint8).reshape(3, 128)[:, 32:96]
        seq.write("kv", 0, wide)
        assert np.array_equal(seq.gather("kv", 0, [0, 1, 2]), wide)


def test_two_sequences_of_the_same_tokens(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(64))
    a, b = ns.sequence(range(64)), ns.sequence(range(64))
    for start in range(0, 64, 8):
        for seq in (a, b):
            append(seq, keys, RICH, start, start + 8)
    assert (a.flush(), b.flush()) == (1, 1)  # the fourth; three went with extend
    stats = ns.stats()
    assert stats.pages == 4
    assert stats.duplicates >= 4
    for seq in (a, b):
        check(seq, keys, RICH, 4)
    a.close()
    check(b, keys, RICH, 4)
    b.close()
    assert_idle(ns)
    check_stored(ns, keys)


def test_its_pages_are_pinned(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(128))
    put(ns, ns.keys(range(1000, 1128)))
    with ns.sequence() as seq:
        append(seq, keys, RICH, 0, 120)
        seq.flush()
        ns.evict(1000)
        first = tail_start(RICH, 8) * 16
        index = np.arange(first, 120)
        assert np.array_equal(
            seq.gather("window", 0, index), stream(keys, RICH.plane("window"), 0)[first:120]
        )
        assert ns.lookup(keys)[:7].all()
        assert ns.stats().pages == 7
    ns.evict(1000)
    assert ns.stats().pages == 0
    assert_idle(ns)


def test_a_view_stays_what_it_is(open_pool: OpenPool) -> None:
    """Whatever the sequence and others do, a view that was given out keeps its bytes."""
    ns = open_pool("8M").namespace("n", layout=RICH)
    keys = ns.keys(range(160))
    with ns.sequence() as a, ns.sequence() as b:
        views = []
        for start in range(0, 160, 16):
            append(a, keys, RICH, start, start + 16)
            for plane, layer in (("latent", 1), ("window", 1)):
                spec, page = RICH.plane(plane), start // 16
                try:
                    view = a.view(plane, layer, page)
                except errors.RangeError:
                    a.flush()
                    view = a.view(plane, layer, page)
                views.append((view, stream(keys, spec, layer)[start : start + 16]))
            append(b, keys, RICH, start, start + 16)
            b.flush()
        a.flush()
        b.flush()
        ns.evict(1000)
        other = ns.keys(range(5000, 5000 + 16 * 30))
        put(ns, other, first_tail=0)
        for view, want in views:
            assert np.array_equal(view, want)


def test_no_room(open_pool: OpenPool) -> None:
    pool = open_pool("6M")
    ns = pool.namespace("n", layout=LARGE)
    keys = ns.keys(range(16 * 24))
    room = pool.info.data_bytes // LARGE.page_bytes
    put(ns, keys[: room - 1])
    with ns.pin(keys) as held, ns.sequence() as seq:
        seq.extend([1])
        with pytest.raises(errors.NoSpaceError, match=f"{held.pages} are pinned"):
            seq.extend(range(16))
        assert seq.tokens == 1
        seq.extend(range(15))
        assert seq.tokens == 16
    assert_idle(ns)


def test_what_sequence_refuses(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    with ns.sequence() as seq:
        seq.extend([7])
        good = np.zeros((1, 100), np.uint8)
        with pytest.raises(errors.ArgumentError, match="0 to 2\\^32-1"):
            seq.extend([-1])
        with pytest.raises(errors.ArgumentError, match="timeout"):
            seq.extend([1], timeout=-1)
        with pytest.raises(errors.RangeError, match="open"):
            seq.write("latent", 0, np.zeros((2, 100), np.uint8))
        with pytest.raises(errors.ArgumentError, match="start"):
            seq.write("latent", 0, good, start=-1)
        with pytest.raises(errors.ArgumentError, match="99"):
            seq.write("latent", 0, good[:, :99])
        with pytest.raises(errors.ArgumentError, match=r"\(3, rows, row\)"):
            seq.write("k", 0, np.zeros((2, 1, 32), np.uint8))
        with pytest.raises(errors.NotFoundError, match="nope"):
            seq.write("nope", 0, good)
        with pytest.raises(errors.RangeError, match="layer 7"):
            seq.write("latent", 7, good)
        seq.extend(range(3))
        with pytest.raises(errors.ArgumentError, match="share memory"):
            seq.write("latent", 0, np.broadcast_to(good[0], (3, 100)))
    with pytest.raises(errors.ClosedError):
        seq.extend([1])
    with pytest.raises(errors.ClosedError):
        seq.flush()
    with pytest.raises(errors.ClosedError):
        assert seq.tokens
    seq.close()
    assert_idle(ns)


def test_engine_keys_have_no_sequences(open_pool: OpenPool) -> None:
    ns: Namespace = open_pool().namespace("n", layout=PLAIN, key_scheme="engine")
    with pytest.raises(errors.ArgumentError, match="engine"):
        ns.sequence(range(64))
