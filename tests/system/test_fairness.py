# SPDX-License-Identifier: Apache-2.0
"""Nobody is kept out, and nobody suffers from what was refused to somebody else."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import libsac
from libsac import errors

LAYOUT = libsac.Layout([libsac.Plane("k", [0], 512)], 16)


def while_busy(work: Callable[[], object], others: list[Callable[[], object]]) -> list[str]:
    """Runs work while others run again and again; what went wrong in those."""
    done, wrong = threading.Event(), []

    def loop(other: Callable[[], object]) -> None:
        while not done.is_set():
            try:
                other()
            except errors.SacError as error:
                wrong.append(str(error))
                return

    threads = [threading.Thread(target=loop, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    try:
        work()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    return wrong


@pytest.mark.timeout(120)
def test_a_growing_sequence_is_not_kept_out_by_readers() -> None:
    """Without a fair lock this does not end: some reader is always in."""
    ns = libsac.embedded("16M").namespace("n", LAYOUT)
    with ns.sequence() as seq:
        seq.extend(range(160))
        seq.write("k", 0, np.ones((160, 512), np.uint8))
        seq.flush()
        picks = np.arange(160)

        def grow() -> None:
            for token in range(300):
                seq.extend([token])
                seq.write("k", 0, np.full((1, 512), 2, np.uint8))

        def read() -> None:
            assert (seq.gather("k", 0, picks, threads=1) == 1).all()

        assert while_busy(grow, [read] * 4) == []
        assert seq.tokens == 460


def test_a_refused_drop_is_noticed_by_nobody() -> None:
    pool = libsac.embedded("16M")
    ns = pool.namespace("n", LAYOUT)
    keys = ns.keys(range(160))
    with ns.put(keys) as put:
        put.write("k", 0, np.ones((10, 16, 512), np.uint8))
    with ns.pin(keys) as prefix:

        def drop() -> None:
            for _ in range(2000):
                with pytest.raises(errors.BusyError):
                    pool.drop("n")

        wrong = while_busy(
            drop, [lambda: prefix.gather("k", 0, [5], threads=1), lambda: ns.lookup(keys)]
        )
    assert wrong == []
    pool.drop("n")


def test_a_put_that_fails_keeps_only_pages_with_a_view() -> None:
    ns = libsac.embedded("4M").namespace("n", LAYOUT)
    view = None
    with pytest.raises(RuntimeError), ns.put(ns.keys(range(16 * 60))) as put:  # noqa: PT012
        view = put.view("k", 0, 7)
        raise RuntimeError
    assert ns.stats().reserved == 1
    assert view is not None
    view[:] = 9  # still nobody else's memory
    with ns.put(ns.keys(range(1, 16 * 60))) as put:
        put.write("k", 0, np.zeros((59, 16, 512), np.uint8))
    assert (view == 9).all()
    del view
    assert ns.stats().reserved == 0
