# SPDX-License-Identifier: Apache-2.0
"""Sequences in a hot buffer: they grow, shrink and end while they are bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# Late, as what follows: skipped without torch, and the driver is chosen first.
from unit import fake_gpu  # noqa: E402

fake_gpu.use()

from unit.hot_model import Beside, CpuBuffer, Pool, ints  # noqa: E402

from libsac import Layout, Plane, errors  # noqa: E402

MLA = Layout([Plane("latent", range(2), 656), Plane("indexer", range(2), 132)], 16)
HEADS = Layout([Plane(p, [0, 3], 36, group="kv", heads=3) for p in "kv"], 16)


@pytest.mark.parametrize("by_gpu", [True, False])
@pytest.mark.parametrize("layout", [MLA, HEADS])
def test_a_sequence_grows(
    layout: Layout, by_gpu: bool, seed: int, rng: np.random.Generator
) -> None:
    """From direct to cached, token by token, its rows from the GPU or the CPU."""
    pool = Pool(layout, seed % 1000)
    group = layout.planes[0]
    names = [p.name for p in layout.planes if p.group == group.group]
    sides = Beside(pool, group.name, requests=2, slots=40, top_k=24)
    sequence = pool.ns.sequence()
    sequence.extend(pool.tokens(7, 30))
    pool.write(sequence, 7, 0, 30)
    sides.bind(1, 7, sequence, 30, direct=True)
    for tokens in range(31, 100):
        sequence.extend([pool.tokens(7, tokens)[-1]])
        for plane in layout.planes:  # what is not in the buffer comes from the CPU either way
            if not by_gpu or plane.name not in names:
                for layer in plane.layers:
                    made = pool.rows(plane, layer, 7, tokens - 1, tokens)
                    sequence.write(plane.name, layer, made if plane.heads > 1 else made[0])
        sides.buffer.extend(1)
        chosen = np.concatenate([[tokens - 1], rng.integers(0, tokens, 23)]).astype(np.int32)
        for layer in group.layers:
            if by_gpu:
                rows = {}
                for name in names:
                    plane = layout.plane(name)
                    made = pool.rows(plane, layer, 7, tokens - 1, tokens).swapaxes(0, 1)
                    made = made if plane.heads > 1 else made[:, 0]
                    rows[name] = torch.from_numpy(made.copy())[None]
                sides.buffer.append(layer, ints([1]), rows)
            picked = np.tile(chosen, (1, group.heads, 1))
            picked = picked if group.heads > 1 else picked[:, 0]
            slots = sides.buffer.resolve(group.name, layer, ints([1]), ints(picked)).numpy()
            for head in range(group.heads):
                lane = slots.reshape(group.heads, -1)[head]
                assert (lane >= 0).all()
                sides.check(layer, 1, head, chosen, lane)
        if by_gpu:
            sides.buffer.written([1])
    assert sides.buffer.errors() == {}
    # Pages were committed as they filled, with what was appended.
    keys = pool.ns.keys(pool.tokens(7, 96))
    assert pool.ns.longest(keys) == 6
    with pool.ns.pin(keys) as prefix:
        for plane in layout.planes:
            for layer in plane.layers:
                got = prefix.gather(plane.name, layer)
                want = pool.rows(plane, layer, 7, 0, 96)
                np.testing.assert_array_equal(got, want if plane.heads > 1 else want[0])


def test_drafts_are_taken_back(seed: int) -> None:
    pool = Pool(Layout([Plane("latent", [0], 64)], 16), seed % 1000)
    buffer = CpuBuffer(pool.ns, requests=1, slots=16, top_k=8)
    sequence = pool.ns.sequence()
    sequence.extend(pool.tokens(1, 40))
    pool.write(sequence, 1, 0, 40)
    buffer.bind(0, sequence)
    plane = pool.layout.planes[0]

    def add(salt: int, count: int) -> int:
        first = sequence.extend(pool.tokens(salt, 60)[:count])
        buffer.extend(0)
        made = pool.rows(plane, 0, salt, first, first + count)
        buffer.append(0, ints([0]), {"latent": torch.from_numpy(made)})
        return first

    def read(unit: int) -> Any:
        slot = int(buffer.resolve("latent", 0, ints([0]), ints([[unit]]))[0, 0])
        return None if slot < 0 else buffer.rows("latent", 0)[slot].numpy()

    assert add(8, 4) == 40  # drafts
    np.testing.assert_array_equal(read(42), pool.rows(plane, 0, 8, 42, 43)[0, 0])
    buffer.truncate(0, 41)
    assert sequence.tokens == 41
    assert read(42) is None
    assert buffer.errors() == {0: {"range"}}
    # Others take their place, this time from the CPU: nothing of the old ones is left.
    sequence.extend([1, 2, 3])
    pool.write(sequence, 9, 41, 44)
    buffer.extend(0)
    for unit, salt in ((40, 8), (41, 9), (42, 9), (43, 9), (39, 1)):
        np.testing.assert_array_equal(
            read(unit), pool.rows(plane, 0, salt, unit, unit + 1)[0, 0]
        )
    with pytest.raises(errors.RangeError, match="committed"):
        buffer.truncate(0, 31)
    buffer.written(0)
    assert sequence.flush() == 0
    assert sequence.tokens == 44


def test_a_sequence_closed_while_bound(seed: int) -> None:
    pool = Pool(MLA, seed % 1000)
    buffer = CpuBuffer(pool.ns, requests=1, slots=48, top_k=32)
    sequence = pool.ns.sequence()
    sequence.extend(pool.tokens(1, 20))
    pool.write(sequence, 1, 0, 20)
    buffer.bind(0, sequence, direct=False)
    sequence.close()
    assert pool.ns.stats().reserved == 2  # its open pages are the GPU's still
    slot = int(buffer.resolve("latent", 0, ints([0]), ints([[19]]))[0, 0])
    want = pool.rows(MLA.planes[0], 0, 1, 19, 20)[0, 0]
    np.testing.assert_array_equal(buffer.rows("latent", 0)[slot].numpy(), want)
    with pytest.raises(errors.ClosedError):
        buffer.extend(0)
    buffer.close()
    assert pool.ns.stats().reserved == 0


def test_one_extend_for_many(seed: int) -> None:
    pool = Pool(Layout([Plane("latent", [0], 64)], 16), seed % 1000)
    buffer = CpuBuffer(pool.ns, requests=8, slots=16, top_k=8, max_tokens=48)
    sequences = {i: pool.ns.sequence() for i in (1, 4, 6)}
    for i, sequence in sequences.items():
        sequence.extend(pool.tokens(i, 30))
        pool.write(sequence, i, 0, 30)
        buffer.bind(i, sequence)
    for i, tokens in ((1, 31), (4, 49), (6, 40)):
        sequences[i].extend(pool.tokens(i, tokens)[30:])
        pool.write(sequences[i], i, 30, tokens)
    # One that is too long is refused, those before it have grown, those behind have not.
    with pytest.raises(errors.RangeError, match="49 tokens"):
        buffer.extend([6, 1, 4])
    got = buffer.resolve("latent", 0, ints([1, 4, 6]), ints([[30], [30], [30]])).numpy()
    assert (got >= 0).reshape(-1).tolist() == [True, False, False]
    buffer.extend([6, 1])
    got = buffer.resolve("latent", 0, ints([1, 4, 6]), ints([[30], [29], [39]])).numpy()
    assert (got >= 0).all()


def test_the_cpu_takes_new_rows_from_the_sequence(seed: int, rng: np.random.Generator) -> None:
    pool = Pool(MLA, seed % 1000)
    sides = Beside(pool, "latent", requests=1, slots=48, top_k=32, path="cpu")
    sequence = pool.ns.sequence()
    sequence.extend(pool.tokens(7, 30))
    pool.write(sequence, 7, 0, 30)
    sides.bind(0, 7, sequence, 30)
    for tokens in range(31, 120, 8):
        sequence.extend(pool.tokens(7, tokens)[sequence.tokens :])
        pool.write(sequence, 7, sides.units[0], tokens)
        sides.buffer.extend([0])
        sides.units[0] = tokens
        chosen = rng.integers(0, tokens, 32).astype(np.int32)
        chosen[0] = tokens - 1
        sides.step(0, [0], chosen[None])
    rows = {"latent": torch.zeros(1, 1, 656, dtype=torch.uint8)}
    with pytest.raises(errors.ArgumentError, match="path 'cpu'"):
        sides.buffer.append(0, ints([0]), rows)


def test_bound_before_the_last_row_is_written(seed: int) -> None:
    """A row that was open at bind counts when the GPU writes it, and its page is committed."""
    pool = Pool(Layout([Plane("latent", [0], 64)], 16), seed % 1000)
    buffer = CpuBuffer(pool.ns, requests=1, slots=64, top_k=8)
    plane = pool.layout.planes[0]
    sequence = pool.ns.sequence()
    sequence.extend(pool.tokens(1, 16))
    pool.write(sequence, 1, 0, 15)
    buffer.bind(0, sequence)
    last = torch.from_numpy(pool.rows(plane, 0, 1, 15, 16))
    buffer.append(0, ints([0]), {"latent": last})
    assert sequence.flush() == 0
    buffer.written(0)
    assert sequence.flush() == 1
    slot = int(buffer.resolve("latent", 0, ints([0]), ints([[15]]))[0, 0])
    assert torch.equal(buffer.rows("latent", 0)[slot], last[0, 0])
