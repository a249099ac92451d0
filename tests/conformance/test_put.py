# SPDX-License-Identifier: Apache-2.0
"""Putting pages: reserve, write, commit."""

from __future__ import annotations

import time

import numpy as np
import pytest
from conformance.backends import OpenPool
from conformance.content import (
    PLAIN,
    RICH,
    assert_idle,
    check_stored,
    page,
    pages,
    put,
    write,
)

from libsac import Keys, Layout, Plane, errors


@pytest.mark.parametrize("layout", [PLAIN, RICH], ids=["plain", "rich"])
def test_all_planes_come_back(open_pool: OpenPool, layout: Layout) -> None:
    ns = open_pool().namespace("n", layout=layout)
    keys = ns.keys(range(16 * 11 + 5))
    assert ns.longest(keys) == 0
    assert not ns.lookup(keys).any()
    assert put(ns, keys) == 11
    assert ns.lookup(keys).all()
    check_stored(ns, keys)
    assert_idle(ns)


def test_only_what_is_missing_is_asked_for(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(160))
    put(ns, keys[2:5])
    with ns.put(keys) as batch:
        assert batch.missing.dtype == np.int64
        assert batch.missing.tolist() == [0, 1, 5, 6, 7, 8, 9]
        assert batch.missing_tails.tolist() == [8, 9]
        write(batch, keys, RICH)
    check_stored(ns, keys)
    with ns.put(keys) as batch:
        assert batch.missing.size == batch.missing_tails.size == 0
        assert batch.commit() == 0
    assert_idle(ns)


def test_tails_of_more_pages_on_request(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(160))
    put(ns, keys, first_tail=3)
    assert [ns.longest(keys[:n]) for n in range(11)] == [0, 0, 0, 0, 0, 5, 6, 7, 8, 9, 10]
    for n in range(5, 11):
        check_stored(ns, keys[:n])


def test_written_in_pieces_and_in_place(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(96))
    with ns.put(keys) as batch:
        for plane in RICH.planes:
            which = batch.missing_tails if plane.is_tail else batch.missing
            for layer in plane.layers:
                for at in range(0, len(which), 2):
                    rows = pages(keys, plane, layer, which[at : at + 2])
                    batch.write(plane.name, layer, rows, first=at, threads=2)
        # The last page once more, where it lies.
        plane = RICH.plane("k")
        view = batch.view("k", 2, 5)
        assert view.shape == (3, 16, 32)
        view[:] = 0
        view[:] = page(keys.values[5].tobytes(), plane, 2)
    check_stored(ns, keys)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_sources_that_are_not_contiguous(open_pool: OpenPool, threads: int) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(64))
    with ns.put(keys) as batch:
        for plane in RICH.planes:
            which = batch.missing_tails if plane.is_tail else batch.missing
            for layer in plane.layers:
                rows = pages(keys, plane, layer, which)
                # Every second element of every leading dimension of a larger array.
                room = np.full(
                    (*(2 * n for n in rows.shape[:-1]), rows.shape[-1] + 8), 0xEE, "u1"
                )
                lead = tuple(slice(0, None, 2) for _ in rows.shape[:-1])
                room[(*lead, slice(0, rows.shape[-1]))] = rows
                source = room[(*lead, slice(0, rows.shape[-1]))]
                assert not source.flags.c_contiguous
                source.flags.writeable = False
                batch.write(plane.name, layer, source, threads=threads)
                source = source.copy()
                room[:] = 0  # the rows were copied before write returned
    check_stored(ns, keys)


def test_one_source_for_all_pages(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=PLAIN)
    keys = ns.keys(range(48))
    one = np.arange(16 * 64).astype(np.uint8).reshape(16, 64)
    with ns.put(keys) as batch:
        for layer in range(2):
            batch.write("kv", layer, np.broadcast_to(one, (3, 16, 64)))
            with pytest.raises(errors.ArgumentError, match="share memory"):
                batch.write("kv", layer, np.broadcast_to(one[0], (3, 16, 64)))
    with ns.pin(keys) as prefix:
        assert np.array_equal(prefix.gather("kv", 1), np.tile(one, (3, 1)))


def test_an_exception_gives_everything_up(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(64))
    with pytest.raises(RuntimeError, match="mine"), ns.put(keys) as batch:  # noqa: PT012
        write(batch, keys, RICH)
        raise RuntimeError("mine")
    assert not ns.lookup(keys).any()
    assert ns.stats().aborts == 4 + 2
    assert_idle(ns)
    with pytest.raises(errors.ClosedError):
        batch.commit()
    with pytest.raises(errors.ClosedError):
        batch.write("latent", 0, pages(keys, RICH.plane("latent"), 0, range(4)))
    put(ns, keys)
    check_stored(ns, keys)


@pytest.mark.parametrize("lacks", [("v", 2), ("window", 1), ("state", 2), ("latent", 0)])
def test_a_commit_with_rows_missing(open_pool: OpenPool, lacks: tuple[str, int]) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(64))
    batch = ns.put(keys)
    for plane in RICH.planes:
        which = batch.missing_tails if plane.is_tail else batch.missing
        for layer in plane.layers:
            rows = pages(keys, plane, layer, which)
            last = (plane.name, layer) == lacks
            batch.write(plane.name, layer, rows[: len(rows) - last])
    with pytest.raises(
        errors.IncompleteError, match=f"'{lacks[0]}', layer {lacks[1]} of page 3"
    ):
        batch.commit()
    assert not ns.lookup(keys).any()
    # The put is not over: what is missing can still be written.
    write(batch, keys, RICH)
    assert batch.commit() == 4
    batch.close()
    check_stored(ns, keys)
    assert_idle(ns)


def test_past_the_deadline(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=PLAIN)
    keys = ns.keys(range(64))
    with ns.put(keys, deadline=0.01) as batch:
        write(batch, keys, PLAIN)
        time.sleep(0.05)
        with pytest.raises(errors.ReservationError, match="expired") as caught:
            batch.commit()
        assert caught.value.object == "n"
        batch.close()
    assert not ns.lookup(keys).any()
    assert_idle(ns)
    assert put(ns, keys) == 4
    check_stored(ns, keys)


def test_one_key_twice_in_a_put(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=PLAIN, key_scheme="engine")
    names = [bytes([i]) * 32 for i in (1, 2, 1)]
    keys = ns.engine_keys(names)
    assert put(ns, keys) == 2
    stats = ns.stats()
    assert (stats.pages, stats.duplicates, stats.commits) == (2, 1, 2)
    assert_idle(ns)
    check_stored(ns, keys)


def test_no_keys(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(15))
    assert len(keys) == 0
    assert put(ns, keys) == 0
    with ns.pin(keys) as prefix:
        assert prefix.pages == prefix.tokens == 0
        assert prefix.gather("latent", 0).shape == (0, 100)
        assert prefix.gather("latent", 0, [-1, -1]).tolist() == [[0] * 100] * 2
        with pytest.raises(errors.RangeError):
            prefix.gather("latent", 0, [0])


def test_what_put_refuses(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=RICH)
    keys = ns.keys(range(64))
    good = np.zeros((4, 16, 100), np.uint8)
    with ns.put(keys) as batch:
        with pytest.raises(errors.NotFoundError, match="'nope'"):
            batch.write("nope", 0, good)
        with pytest.raises(errors.RangeError, match="layer 3"):
            batch.write("latent", 3, good)
        with pytest.raises(errors.ArgumentError, match=r"100.*99|99.*100"):
            batch.write("latent", 0, good[..., :99])
        with pytest.raises(errors.ArgumentError, match=r"\(pages, 16, row\)"):
            batch.write("latent", 0, good[:, :15])
        with pytest.raises(errors.ArgumentError, match=r"\(pages, 16, row\), not"):
            batch.write("latent", 0, good[0, 0])
        with pytest.raises(errors.ArgumentError, match="contiguous"):
            batch.write("latent", 0, np.zeros((4, 16, 200), np.uint8)[..., ::2])
        with pytest.raises(errors.ArgumentError, match="negative"):
            batch.write("latent", 0, good[:, ::-1])
        with pytest.raises(errors.RangeError, match="missing"):
            batch.write("latent", 0, good, first=1)
        with pytest.raises(errors.ArgumentError, match="first"):
            batch.write("latent", 0, good, first=-1)
        with pytest.raises(errors.ArgumentError, match=r"\(pages, 3, 16, row\)"):
            batch.write("k", 0, np.zeros((4, 2, 16, 32), np.uint8))
        with pytest.raises(errors.ArgumentError, match="rows"):
            batch.write("latent", 0, [[1, 2], [3, 4]])
        with pytest.raises(errors.ArgumentError, match="heads"):
            batch.write("k", 0, np.broadcast_to(np.zeros((4, 1, 16, 32), "u1"), (4, 3, 16, 32)))
        with pytest.raises(errors.RangeError):
            batch.view("latent", 0, 4)
        with pytest.raises((errors.RangeError, errors.ArgumentError), match="layer"):
            batch.write("latent", -1, good)
        with pytest.raises(errors.ArgumentError, match="threads"):
            batch.write("latent", 0, good, threads=-1)
        batch.close()
    with pytest.raises(errors.ArgumentError, match="deadline"):
        ns.put(keys, deadline=0)
    with pytest.raises(errors.ArgumentError, match="timeout"):
        ns.put(keys, timeout=-1)
    with pytest.raises(errors.ArgumentError, match="first_tail"):
        ns.put(keys, first_tail=-1)
    zero = Keys.of_engine([bytes(32)], None)
    with pytest.raises(errors.ArgumentError, match="zeros"):
        ns.put(zero)
    assert_idle(ns)


def test_wide_rows_with_any_dtype(open_pool: OpenPool) -> None:
    layout = Layout([Plane("kv", [0], 64)], page_tokens=4)
    ns = open_pool().namespace("n", layout=layout)
    keys = ns.keys(range(8))
    rows = np.arange(2 * 4 * 16, dtype=np.float32).reshape(2, 4, 2, 8)
    with ns.put(keys) as batch:
        batch.write("kv", 0, rows)
    with ns.pin(keys) as prefix:
        assert np.array_equal(prefix.gather("kv", 0).view(np.float32), rows.reshape(8, 16))


def test_token_ids_of_engine_keys(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=PLAIN, key_scheme="engine", token_ids=True)
    keys = ns.engine_keys([b"a" * 32, b"b" * 32])
    with pytest.raises(errors.ArgumentError, match="token ids"):
        ns.put(keys)
    for bad in (range(31), range(33), range(0)):
        with pytest.raises(errors.ArgumentError, match="token"):
            ns.put(keys, tokens=bad)
    assert put(ns, keys, tokens=range(32)) == 2
    assert ns.verify() == (2, 0)
    if open_pool.on_disk:
        ns = open_pool.crash().namespace("n")
    check_stored(ns, keys)
