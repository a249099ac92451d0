# SPDX-License-Identifier: Apache-2.0
"""What an engine may do in a wrong order, or not at all: others' rows stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# Late, as what follows: skipped without torch, and the driver is chosen first.
from unit import fake_gpu  # noqa: E402

fake_gpu.use()

from unit.hot_model import CpuBuffer, Pool, ints  # noqa: E402

import libsac  # noqa: E402
from libsac import Layout, Plane, errors  # noqa: E402

LATENT = Layout([Plane("latent", [0], 64)], 16)
PLANE = LATENT.planes[0]


@pytest.fixture
def pool(seed: int) -> Pool:
    return Pool(LATENT, seed % 1000)


def grown(pool: Pool, salt: int, tokens: int, rows: int | None = None) -> libsac.Sequence:
    """A sequence of so many tokens, of which the CPU wrote the first rows."""
    sequence = pool.ns.sequence()
    sequence.extend(pool.tokens(salt, tokens))
    pool.write(sequence, salt, 0, tokens if rows is None else rows)
    return sequence


def new(value: int, count: int = 1) -> dict[str, Any]:
    return {"latent": torch.full((1, count, 64), value, dtype=torch.uint8)}


def read(buffer: CpuBuffer, request: int, units: list[int]) -> list[Any]:
    """The bytes of each unit's slot; None: it has none."""
    slots = buffer.resolve("latent", 0, ints([request]), ints([units]))[0].tolist()
    return [None if s < 0 else buffer.rows("latent", 0)[s].numpy().copy() for s in slots]


def want(pool: Pool, salt: int, row: int) -> Any:
    return pool.rows(PLANE, 0, salt, row, row + 1)[0, 0]


# ------------------------------------------------------------------ committed pages


def test_committed_rows_are_not_appended_to(pool: Pool) -> None:
    """A prefix' rows, and a sequence's in stored pages, are everybody's."""
    buffer = CpuBuffer(pool.ns, requests=3, slots=64, top_k=32)
    prefix = pool.put(7, 3)
    before = prefix.gather("latent", 0).copy()
    buffer.bind(0, prefix)
    buffer.bind(1, pool.ns.sequence(pool.tokens(7, 48)))
    other = grown(pool, 1, 20, 19)
    buffer.bind(2, other)
    # A step that has tokens for the third only: the other two have nothing new.
    rows = {"latent": torch.full((3, 1, 64), 9, dtype=torch.uint8)}
    buffer.append(0, ints([0, 1, 2]), rows)
    assert buffer.errors() == {0: {"range"}, 1: {"range"}}
    assert (read(buffer, 2, [19])[0] == 9).all()
    for request in (0, 1):
        for first in (0, 3, 31, 47):
            buffer.append(0, ints([request]), new(0), first=ints([first]))
        for unit in (0, 3, 31, 47):
            np.testing.assert_array_equal(read(buffer, request, [unit])[0], before[unit])
    np.testing.assert_array_equal(prefix.gather("latent", 0), before)
    assert buffer.stats().appended == 1


@pytest.mark.parametrize("block", [1, 4])
def test_rows_below_the_first_open_one_are_left_out(pool: Pool, block: int) -> None:
    """Of an append over the end of a stored page those in the open one are written."""
    sequence = grown(pool, 3, 16)
    assert sequence.flush() == 1
    sequence.extend(pool.tokens(3, 20)[16:])
    buffer = CpuBuffer(pool.ns, requests=1, slots=16, top_k=8, block=block)
    buffer.bind(0, sequence)
    buffer.append(0, ints([0]), new(9, 8))  # rows 12 to 19
    assert buffer.errors() == {0: {"range"}}
    assert buffer.stats().appended == 4
    buffer.written(0)
    got = sequence.gather("latent", 0)
    for row in range(20):
        if row < 16:
            np.testing.assert_array_equal(got[row], want(pool, 3, row))
        else:
            assert (got[row] == 9).all()


def test_what_a_flush_commits_is_no_more_open(pool: Pool) -> None:
    """A page is committed only when the GPU knows; before and after, appends are right."""
    buffer = CpuBuffer(pool.ns, requests=1, slots=64, top_k=8)
    sequence = grown(pool, 2, 15)
    buffer.bind(0, sequence)
    sequence.extend(pool.tokens(2, 16)[15:])
    pool.write(sequence, 2, 15, 16)
    # The GPU has not been told of the page's last row: what it has may still be written.
    assert sequence.flush() == 0
    buffer.append(0, ints([0]), new(5))
    assert (read(buffer, 0, [14])[0] == 5).all()
    assert buffer.errors() == {}
    buffer.extend(0)
    buffer.append(0, ints([0]), new(6), first=ints([14]))
    assert buffer.errors() == {0: {"range"}}
    assert sequence.flush() == 1
    buffer.append(0, ints([0]), new(6), first=ints([15]))
    got = sequence.gather("latent", 0)
    assert (got[14] == 5).all()
    np.testing.assert_array_equal(got[15], want(pool, 2, 15))


def test_what_was_written_is_no_more_open(pool: Pool) -> None:
    """As soon as a full page may be committed it cannot be written to, by captured steps
    neither: their entries are those of the table."""
    buffer = CpuBuffer(pool.ns, requests=1, slots=64, top_k=8)
    sequence = grown(pool, 2, 16, 15)
    buffer.bind(0, sequence)
    buffer.append(0, ints([0]), new(5))
    buffer.append(0, ints([0]), new(6))  # until written says so, a step may do it again
    buffer.written(0)
    buffer.append(0, ints([0]), new(7))
    assert buffer.errors() == {0: {"range"}}
    assert sequence.flush() == 1
    assert (sequence.gather("latent", 0)[15] == 6).all()


def test_drafts_behind_a_full_page_are_taken_back(pool: Pool) -> None:
    """What truncate takes back is open again."""
    buffer = CpuBuffer(pool.ns, requests=1, slots=64, top_k=8)
    sequence = grown(pool, 2, 12)
    buffer.bind(0, sequence)
    sequence.extend(range(4))
    buffer.extend(0)
    buffer.append(0, ints([0]), new(5, 4))
    buffer.written(0)
    buffer.truncate(0, 14)
    sequence.extend([7, 8])
    buffer.extend(0)
    buffer.append(0, ints([0]), new(6, 2))
    buffer.written(0)
    assert buffer.errors() == {}
    assert sequence.flush() == 1
    assert [int(row[0]) for row in sequence.gather("latent", 0)[12:]] == [5, 5, 6, 6]


@pytest.mark.parametrize("path", ["gpu", "cpu"])
def test_a_sequence_that_was_released_commits_as_ever(pool: Pool, path: str) -> None:
    buffers = [
        CpuBuffer(pool.ns, requests=1, slots=64, top_k=8, path=path, threads=1) for _ in "ab"
    ]
    sequence = grown(pool, 4, 15)
    for buffer in buffers:
        buffer.bind(0, sequence)
    sequence.extend(pool.tokens(4, 16)[15:])
    pool.write(sequence, 4, 15, 16)
    if path == "gpu":
        buffers[0].extend(0)
        assert sequence.flush() == 0  # the other one has not been told
        buffers[1].release(0)
    assert sequence.flush() == 1
    for buffer in buffers:
        buffer.close()


def test_a_page_waits_for_appends_that_are_under_way(pool: Pool) -> None:
    """The table is told in the stream: a page is committed behind that point only."""
    buffer = CpuBuffer(pool.ns, requests=1, slots=64, top_k=8)
    sequence = grown(pool, 5, 15)
    buffer.bind(0, sequence)
    sequence.extend(pool.tokens(5, 16)[15:])
    pool.write(sequence, 5, 15, 16)
    knobs = fake_gpu.Knobs()
    knobs["hold_events"] = 1
    try:
        buffer.extend(0)
        assert sequence.flush() == 0
    finally:
        knobs.restore()
    assert sequence.flush() == 1


# ------------------------------------------------------------- truncate within a unit


def test_direct_units_that_were_cut_through_keep_their_rows(pool: Pool) -> None:
    sequence = grown(pool, 1, 30)
    buffer = CpuBuffer(pool.ns, requests=1, slots=48, top_k=32, block=4)
    buffer.bind(0, sequence)
    for tokens, unit in ((29, 7), (26, 6), (25, 6), (24, 5)):
        buffer.truncate(0, tokens)
        assert sequence.tokens == tokens
        for u, block in enumerate(read(buffer, 0, list(range(unit + 1)))):
            assert block is not None, (tokens, u)
            for row in range(u * 4, min(u * 4 + 4, tokens)):
                np.testing.assert_array_equal(block[row % 4], want(pool, 1, row))
        assert buffer.errors() == {}
    assert read(buffer, 0, [6]) == [None]
    # New rows come into units that were cut through, from the GPU and from the CPU.
    buffer.truncate(0, 22)
    sequence.extend([1, 2, 3])
    buffer.extend(0)
    buffer.append(0, ints([0]), new(9, 3))
    buffer.written(0)
    buffer.truncate(0, 23)
    sequence.extend([4, 5])
    pool.write(sequence, 2, 23, 25)
    buffer.extend(0)
    got = np.concatenate(read(buffer, 0, [5, 6]))
    for row, made in ((20, want(pool, 1, 20)), (21, want(pool, 1, 21)), (22, 9)):
        np.testing.assert_array_equal(got[row - 20], np.broadcast_to(made, 64))
    for row in (23, 24):
        np.testing.assert_array_equal(got[row - 20], want(pool, 2, row))


def test_a_direct_row_that_was_not_written_is_no_dead_page(pool: Pool) -> None:
    sequence = grown(pool, 1, 20)
    buffer = CpuBuffer(pool.ns, requests=1, slots=48, top_k=32)
    buffer.bind(0, sequence)
    sequence.extend([1, 2])
    buffer.extend(0)
    assert read(buffer, 0, [20, 21]) == [None, None]
    assert buffer.errors() == {0: {"range"}}


# ------------------------------------------------------------- one sequence, twice


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("block", [1, 4])
def test_what_another_cut_off_leaves_the_slots(
    pool: Pool, direct: bool, two: bool, block: int
) -> None:
    """A sequence bound twice, in one buffer or in two: rows that took the place of others."""
    first = CpuBuffer(pool.ns, requests=2, slots=48, top_k=32, block=block)
    second = CpuBuffer(pool.ns, requests=2, slots=48, top_k=32, block=block) if two else first
    sequence = grown(pool, 1, 30)
    first.bind(0, sequence, direct=direct)
    second.bind(1, sequence, direct=direct)
    units = [26 // block, 28 // block, 29 // block]
    for buffer, request in ((first, 0), (second, 1)):
        read(buffer, request, units)
    for salt, cut in ((2, 28), (3, 27)):  # by the first, then by the second
        if salt == 2:
            first.truncate(0, cut)
        else:
            second.truncate(1, cut)
        sequence.extend(pool.tokens(salt, 30)[cut:])
        pool.write(sequence, salt, cut, 30)
        first.extend(0)
        second.extend(1)
        for buffer, request in ((first, 0), (second, 1)):
            for row in (26, 27, 28, 29):
                got = read(buffer, request, [row // block])[0]
                assert got is not None
                got = got if block == 1 else got[row % block]
                np.testing.assert_array_equal(got, want(pool, 1 if row < cut else salt, row))
            assert buffer.errors() == {}


def test_a_cut_counts_for_both_that_truncate(pool: Pool) -> None:
    """The second is told of fewer tokens than it cuts to, and of new rows below that."""
    buffer = CpuBuffer(pool.ns, requests=2, slots=48, top_k=32)
    sequence = grown(pool, 1, 30)
    for i in (0, 1):
        buffer.bind(i, sequence, direct=False)
        read(buffer, i, [20, 25])
    buffer.truncate(0, 20)
    sequence.extend(pool.tokens(2, 30)[20:])
    pool.write(sequence, 2, 20, 30)
    buffer.truncate(1, 26)
    for row in (20, 25):
        np.testing.assert_array_equal(read(buffer, 1, [row])[0], want(pool, 2, row))


# ------------------------------------------------------------------------ old plans


@pytest.mark.parametrize("since", ["bind", "empty"])
def test_a_replay_goes_by_no_plan_of_others(since: str, seed: int) -> None:
    """Not by one of before the request was bound, nor of before an empty selection."""
    layout = Layout([Plane("latent", range(2), 64)], 16)
    pool = Pool(layout, seed % 1000)
    buffer = CpuBuffer(pool.ns, requests=1, slots=48, top_k=32, share={1: 0})
    buffer.bind(0, pool.put(1, 9), direct=False)
    rows = buffer.rows("latent", 1)
    buffer.resolve("latent", 0, ints([0]), ints([[3, 100, 7]]))
    if since == "bind":
        buffer.release(0)
        buffer.bind(0, pool.put(2, 9), direct=False)
    else:
        got = buffer.resolve("latent", 0, ints([0]), ints(np.zeros((1, 0))))
        assert got.shape == (1, 0)
    rows.fill_(0)
    buffer.replay("latent", 1, ints([0]))
    assert not rows.any()
    assert buffer.errors() == {}


def test_an_empty_selection_on_the_cpu(seed: int) -> None:
    pool = Pool(LATENT, seed % 1000)
    buffer = CpuBuffer(pool.ns, requests=1, slots=48, top_k=32, path="cpu", threads=1)
    buffer.bind(0, pool.put(1, 9))
    slots = buffer.resolve("latent", 0, ints([0]), ints([[3, 100, 7]]))[0].tolist()
    buffer.rows("latent", 0)[slots[0]] = 77
    assert buffer.resolve("latent", 0, ints([0]), ints(np.zeros((1, 0)))).shape == (1, 0)
    assert (buffer.rows("latent", 0)[slots[0]] == 77).all()
    with pytest.raises(errors.ArgumentError, match="path 'cpu'"):
        buffer.append(0, ints([0]), new(1))
