# SPDX-License-Identifier: Apache-2.0
"""Malformed arguments end in a typed error that names them, and change nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import libsac
from libsac import errors
from libsac.arguments import milliseconds

LAYOUT = libsac.Layout([libsac.Plane("k", [0, 1], 64)], 16)


@pytest.fixture
def ns() -> libsac.Namespace:
    return libsac.embedded("4M").namespace("n", LAYOUT)


def test_milliseconds() -> None:
    assert [milliseconds(s, "t") for s in (0, 0.0001, 1.5, np.float32(2))] == [0, 1, 1500, 2000]
    assert milliseconds(math.inf, "t") == milliseconds(1e30, "t") == 10**12
    for bad in (-1, -0.1, math.nan, "1", None, [1]):
        with pytest.raises(errors.ArgumentError, match="t is"):
            milliseconds(bad, "t")


POOL: list[tuple[str, Callable[[], Any]]] = [
    ("extents", lambda: libsac.embedded("4M", extents=0)),
    ("extents", lambda: libsac.embedded("4M", extents=-1)),
    ("extents", lambda: libsac.embedded(path="/tmp/x", extents=2)),
    ("path", lambda: libsac.embedded("4M", 5)),  # type: ignore[arg-type]
    ("path", lambda: libsac.embedded("4M", "")),
    ("zero bytes", lambda: libsac.embedded("4M", "/tmp/a\0b")),
]


@pytest.mark.parametrize(("text", "call"), POOL)
def test_pool(text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(errors.ArgumentError, match=text):
        call()


def test_namespace_arguments(ns: libsac.Namespace) -> None:
    pool = libsac.embedded("4M")
    keys = ns.keys(range(64))
    odd: Any
    for odd in (5, b"x", None, "a\0b"):
        with pytest.raises(errors.ArgumentError, match="name is"):
            pool.namespace(odd, LAYOUT)
    with pytest.raises(errors.ArgumentError, match="model is"):
        pool.namespace("m", LAYOUT, model=5)  # type: ignore[arg-type]
    for odd in (keys.values, [b"x" * 32], None, "x"):
        for call in (ns.lookup, ns.longest, ns.pin, ns.put):
            with pytest.raises(errors.ArgumentError, match=r"keys must be a libsac\.Keys"):
                call(odd)
    for odd in (math.nan, "1", -1):
        with pytest.raises(errors.ArgumentError, match="timeout"):
            ns.put(keys, timeout=odd)
        with pytest.raises(errors.ArgumentError, match="deadline"):
            ns.put(keys, deadline=odd)
    with pytest.raises(errors.ArgumentError, match="deadline"):
        ns.put(keys, deadline=0)
    with pytest.raises(errors.ArgumentError, match="engine"):
        ns.engine_keys([b"x" * 32])
    engine = pool.namespace("e", LAYOUT, key_scheme="engine")
    with pytest.raises(errors.ArgumentError, match="must be bytes"):
        engine.engine_keys(["x" * 32])  # type: ignore[list-item]
    for odd in (ns.pin(keys), [ns.pin(keys), None]):
        with pytest.raises(errors.ArgumentError, match="prefixes"):
            ns.gather("k", 0, odd, tokens=[[0]])
    assert ns.stats().reserved == ns.stats().pinned == 0


def test_threads_beyond_the_cores_are_no_more_than_the_cores(ns: libsac.Namespace) -> None:
    keys = ns.keys(range(64))
    with ns.put(keys) as put:
        for layer in (0, 1):
            rows = np.full((4, 16, 64), layer + 1, np.uint8)
            put.write("k", layer, rows, threads=2**32 - 1)
    with ns.pin(keys) as prefix:
        for threads in (1000, 10**6, 2**32 - 1):
            assert (prefix.gather("k", 1, [0, 63], threads=threads) == 2).all()
    for odd in (-1, 2**32, 1.5, True):
        with pytest.raises(errors.ArgumentError, match="threads"):
            prefix.gather("k", 1, [0], threads=odd)  # type: ignore[arg-type]


def test_rows_that_are_no_rows(ns: libsac.Namespace) -> None:
    with ns.put(ns.keys(range(16))) as put:
        for odd, text in (
            (np.zeros((1, 16, 16), ">f4"), ">f4"),
            (np.zeros((1, 16, 8), object), "object"),
            (np.zeros((1, 16), np.uint8), r"\(pages, 16, row\)"),
            ([[1]], "array in CPU memory"),
        ):
            with pytest.raises(errors.ArgumentError, match=text):
                put.write("k", 0, odd)
        put.close()


def test_reprs_say_what_it_is(ns: libsac.Namespace) -> None:
    keys = ns.keys(range(32))
    assert repr(ns) == "<Namespace 'n': pages of 16 tokens, planes k>"
    with ns.put(keys) as put:
        assert repr(put) == "<Put into 'n': 2 pages missing, open>"
        for layer in (0, 1):
            put.view("k", layer, 0)[:] = put.view("k", layer, 1)[:] = 0
    with ns.pin(keys) as prefix, ns.sequence(range(40)) as sequence:
        assert repr(prefix) == "<Prefix of 'n': 2 pages, 32 tokens>"
        assert repr(sequence) == "<Sequence of 'n': 2 pages, 32 tokens>"
        assert "lost" in repr(ns.events())
    assert repr(prefix) == "<Prefix: closed>"
    assert repr(sequence) == "<Sequence: closed>"
    with libsac.embedded("4M") as pool:
        assert repr(pool) == "<Pool of 4M, 4M free, 0 namespaces>"
    assert repr(pool) == "<Pool: closed>"


def test_no_space_says_who_holds_it() -> None:
    pool = libsac.embedded("8M")
    big = libsac.Layout([libsac.Plane("k", [0], 4096)], 64)
    first, second = pool.namespace("first", big), pool.namespace("second", big)
    keys = first.keys(range(64 * 32))
    with first.put(keys) as put:
        put.write("k", 0, np.zeros((32, 64, 4096), np.uint8))
    with pytest.raises(errors.NoSpaceError, match="other namespaces hold 8 MiB") as caught:
        second.put(second.keys(range(64)))
    assert "quotas" in str(caught.value)
    with pytest.raises(errors.NoSpaceError, match="never fit"):
        first.put(first.keys(range(1, 64 * 40)))
    assert first.stats().pages == 32
