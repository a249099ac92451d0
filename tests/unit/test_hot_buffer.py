# SPDX-License-Identifier: Apache-2.0
"""The hot buffer's Python front, and behind it all but the kernels, on a CUDA for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# Late, as what follows: skipped without torch, and the driver is chosen first.
from unit import fake_gpu  # noqa: E402

fake_gpu.use()

from unit.hot_model import Beside, CpuBuffer, Pool, ints  # noqa: E402

from libsac import Layout, Plane, errors  # noqa: E402
from libsac.hotbuffer.base import POLICIES  # noqa: E402

MLA = Layout([Plane("latent", range(2), 656), Plane("indexer", range(2), 132)], 16)
HEADS = Layout([Plane(p, [0, 3], 36, group="kv", heads=3) for p in "kv"], 16)
WIDE = Layout([Plane("c4", [1], 584, tokens_per_row=4)], 64)


def pick(rng: np.random.Generator, units: int, shape: tuple[int, ...]) -> Any:
    """Selections with repeats and padding."""
    made = rng.integers(0, units, shape).astype(np.int32)
    made[rng.random(shape) < 0.05] = -1
    return made


@pytest.mark.parametrize("path", ["gpu", "cpu"])
@pytest.mark.parametrize("policy", POLICIES)
def test_requests_join_and_leave(
    policy: str, path: str, seed: int, rng: np.random.Generator
) -> None:
    pool = Pool(MLA, seed % 1000)
    sides = Beside(pool, "latent", policy, requests=3, slots=48, top_k=32, path=path)
    assert sides.buffer.path == path
    prefixes = {salt: pool.put(salt, 9) for salt in range(4)}
    for i, salt in ((0, 0), (2, 1)):
        sides.bind(i, salt, prefixes[salt], 144)
    for turn in range(30):
        if turn == 10:
            sides.buffer.release(0)
            sides.bind(1, 2, prefixes[2], 144)
        if turn == 20:
            sides.bind(0, 3, prefixes[3], 144)
        bound = [0, 2] if turn < 10 else [1, 2] if turn < 20 else [2, 0, 1]
        for layer in (0, 1):
            size = int(rng.integers(1, 33))
            sides.step(layer, bound, pick(rng, 144, (len(bound), size)))
    assert sides.buffer.errors() == {}
    stats = sides.buffer.stats()
    assert stats.hits > 0
    assert stats.misses > stats.evictions > 0
    assert stats.bytes == stats.misses * 656


def test_which_path_is_taken_and_why() -> None:
    pool = Pool(MLA, 0)
    sizes: dict[str, Any] = {"requests": 1, "slots": 8, "top_k": 4}
    with CpuBuffer(pool.ns, path="cpu", **sizes) as hot:
        assert (hot.path, hot.why) == ("cpu", "it was asked for")
    with CpuBuffer(pool.ns, **sizes) as hot:
        assert (hot.path, hot.why) == ("gpu", "the pool is registered with CUDA")
    other = Pool(MLA, 1)
    knobs = fake_gpu.Knobs()
    knobs["refuse_after"] = knobs["registered_bytes"] + (32 << 20)  # staging fits, the pool not
    knobs["refuse_result"] = 2
    try:
        with CpuBuffer(other.ns, **sizes) as hot:
            assert hot.path == "cpu"
            assert "CUDA_ERROR_OUT_OF_MEMORY" in hot.why
            assert hot.why in repr(hot)
        with pytest.raises(errors.GpuError, match="CUDA_ERROR_OUT_OF_MEMORY"):
            CpuBuffer(other.ns, path="gpu", **sizes)
    finally:
        knobs.restore()


@pytest.mark.parametrize("path", ["gpu", "cpu"])
def test_heads_have_lanes(path: str, seed: int, rng: np.random.Generator) -> None:
    pool = Pool(HEADS, seed % 1000)
    sides = Beside(pool, "v", requests=2, slots=24, top_k=16, path=path)
    assert sides.buffer.lanes("k") == 6
    for i in (0, 1):
        sides.bind(i, i, pool.put(i, 5), 80)
    for _ in range(12):
        for layer in (0, 3):
            sides.step(layer, [1, 0], pick(rng, 80, (2, 3, 16)))


def test_blocks(seed: int, rng: np.random.Generator) -> None:
    pool = Pool(MLA, seed % 1000)
    sides = Beside(pool, "latent", requests=1, slots=12, top_k=8, block=4)
    sides.bind(0, 5, pool.put(5, 8), 32)
    for _ in range(12):
        sides.step(1, [0], pick(rng, 32, (1, 8)))
    assert sides.buffer.rows("latent", 1).shape == (12, 4, 656)


def test_compressed_rows(seed: int, rng: np.random.Generator) -> None:
    pool = Pool(WIDE, seed % 1000)
    sides = Beside(pool, "c4", requests=1, slots=16, top_k=8, padded=True)
    sides.bind(0, 5, pool.put(5, 4), 64)
    for _ in range(12):
        sides.step(1, [0], pick(rng, 64, (1, 8)))
    assert sides.buffer.rows("c4", 1).stride() == (640, 1)


def test_query_tokens_share_a_resolve(seed: int, rng: np.random.Generator) -> None:
    pool = Pool(MLA, seed % 1000)
    sides = Beside(pool, "latent", requests=1, slots=48, top_k=32)
    sides.bind(0, 1, pool.put(1, 9), 144)
    for _ in range(5):
        sides.step(0, [0], pick(rng, 144, (1, 2, 16)))


def test_short_contexts_are_loaded_whole(seed: int, rng: np.random.Generator) -> None:
    pool = Pool(MLA, seed % 1000)
    buffer = CpuBuffer(pool.ns, requests=2, slots=64, top_k=32)
    buffer.bind(1, pool.put(3, 4))
    for layer in (0, 1):
        chosen = pick(rng, 64, (1, 32))
        slots = buffer.resolve("latent", layer, ints([1]), ints(chosen)).numpy()
        np.testing.assert_array_equal(slots, np.where(chosen < 0, -1, 64 + chosen))
        want = pool.rows(MLA.planes[0], layer, 3, 0, 64)[0]
        np.testing.assert_array_equal(buffer.rows("latent", layer)[64:].numpy(), want)
    assert buffer.stats().misses == 0


def test_hostile_input(seed: int, rng: np.random.Generator) -> None:
    pool = Pool(MLA, seed % 1000)
    sides = Beside(pool, "latent", requests=5, slots=48, top_k=32)
    for i in (0, 1):
        sides.bind(i, i, pool.put(i, 9), 144)
    buffer = sides.buffer
    wild = pick(rng, 144, (2, 32))
    wild[0, :4] = (-2, 144, 2**31 - 1, -(2**31))
    sides.step(0, [0, 1], wild)
    assert buffer.errors() == {0: {"range"}}
    # Not bound, twice, and no such request: rows of -1, and the others go on.
    chosen = pick(rng, 144, (5, 32))
    before = {k: lane.slot_token.copy() for k, lane in sides.lanes.items()}
    got = buffer.resolve("latent", 1, ints([2, 1, 1, 5, -7]), ints(chosen)).numpy()
    want = sides.lanes[1, 0, 1].resolve(chosen[1], 144)
    np.testing.assert_array_equal(got[1], np.where(want.slots < 0, -1, 48 + want.slots))
    for b in (0, 2, 3, 4):
        assert (got[b] == -1).all()
    assert buffer.errors() == {
        0: {"range"},
        1: {"twice"},
        2: {"unbound"},
        -1: {"unbound"},
    }
    assert (sides.lanes[0, 0, 1].slot_token == before[0, 0, 1]).all()
    sides.step(1, [1, 0], pick(rng, 144, (2, 32)))
    buffer.release(1)
    assert (buffer.resolve("latent", 0, ints([1]), ints(chosen[:1])) == -1).all()
    sides.bind(1, 1, pool.put(1, 9), 144)
    assert 1 not in buffer.errors()  # clear at bind


def file_offset(address: int) -> int:
    """Where in its file the memory at an address lies."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, *_ = line.split()
        first, end = (int(n, 16) for n in span.split("-"))
        if first <= address < end:
            return address - first + int(offset, 16)
    raise AssertionError("not mapped")


def test_dead_pages(tmp_path: Path, seed: int, rng: np.random.Generator) -> None:
    layout = Layout([Plane("latent", [0], 8192)], 16)
    pool = Pool(layout, seed % 1000, path=tmp_path / "pool")
    sides = Beside(pool, "latent", requests=2, slots=16, top_k=12)
    prefixes = [pool.put(i, 30) for i in (0, 1)]
    blocks = [
        [file_offset(p.view("latent", 0, page).ctypes.data) >> 21 for page in range(30)]
        for p in prefixes
    ]
    for i in (0, 1):
        sides.bind(i, i, prefixes[i], 480)
        sides.step(0, [i], np.arange(0, 480, 40, dtype=np.int32)[None])
    gone = blocks[0][20]
    pool.pool._native.quarantine(0, gone << 21, 64)
    lost = [
        {u for page in range(30) if of[page] == gone for u in range(page * 16, page * 16 + 16)}
        for of in blocks
    ]
    assert 0 < len(lost[0]) < 480
    assert sides.buffer.refresh() * 16 == sum(map(len, lost))
    for _ in range(4):
        for i in (0, 1):
            chosen = rng.integers(0, 480, 12).astype(np.int32)
            chosen[0] = min(lost[0])
            # Hits of dead pages are right still: their rows were read before.
            sides.step(0, [i], chosen[None], lost[i])
    assert sides.buffer.errors() == {i: {"page"} for i in (0, 1) if lost[i]}
    # Known at bind as well.
    sides.buffer.release(0)
    sides.bind(0, 0, prefixes[0], 480)
    sides.step(0, [0], np.arange(300, 312, dtype=np.int32)[None], lost[0])


def test_pages_stay_until_release(seed: int) -> None:
    pool = Pool(MLA, seed % 1000)
    buffer = CpuBuffer(pool.ns, requests=2, slots=48, top_k=32)
    prefix = pool.put(0, 9)
    buffer.bind(0, prefix)
    prefix.close()
    assert pool.ns.evict(100) == 0
    with pytest.raises(errors.ClosedError):
        buffer.bind(1, prefix)
    with pytest.raises(errors.BusyError, match="request 0 is bound"):
        buffer.bind(0, pool.put(1, 1))
    want = pool.rows(MLA.planes[0], 1, 0, 100, 101)[0, 0]
    slot = int(buffer.resolve("latent", 1, ints([0]), ints([[100]]))[0, 0])
    np.testing.assert_array_equal(buffer.rows("latent", 1)[slot].numpy(), want)
    buffer.release(0)
    buffer.stats()  # looks whether the GPU is done
    assert pool.ns.evict(100) == 10
    with pytest.raises(errors.ArgumentError, match="not bound"):
        buffer.release(0)


@pytest.mark.parametrize("path", ["gpu", "cpu"])
def test_layers_share_selections(path: str, seed: int, rng: np.random.Generator) -> None:
    pool = Pool(MLA, seed % 1000)
    sides = Beside(
        pool, "latent", requests=2, slots=48, top_k=32, share={1: 0}, path=path, threads=2
    )
    for i in (0, 1):
        sides.bind(i, i, pool.put(i, 9), 144)
    buffer = sides.buffer
    for turn in range(10):
        chosen = pick(rng, 144, (2, 32))
        if turn % 3 == 1:
            buffer.prefetch("latent", 0, ints([0, 1]), ints(chosen[:, :20]))
        slots = buffer.resolve("latent", 0, ints([0, 1]), ints(chosen)).numpy()
        buffer.replay("latent", 1, ints([0, 1]))
        for b in (0, 1):
            for layer in (0, 1):
                sides.check(layer, b, 0, chosen[b], slots[b])
    with pytest.raises(errors.ArgumentError, match="replay it"):
        buffer.resolve("latent", 1, ints([0]), ints([[1]]))


def test_prefetch_takes_what_a_step_needs_not(seed: int, rng: np.random.Generator) -> None:
    pool = Pool(MLA, seed % 1000)
    sides = Beside(pool, "latent", requests=1, slots=48, top_k=32)
    sides.bind(0, 0, pool.put(0, 9), 144)
    for _ in range(10):
        now, then = (rng.permutation(144)[:32].astype(np.int32) for _ in range(2))
        sides.step(0, [0], now[None])
        slots = sides.buffer.resolve("latent", 0, ints([0]), ints(now[None])).numpy()
        sides.lanes[0, 0, 0].resolve(now, 144)
        sides.buffer.prefetch("latent", 0, ints([0]), ints(then[None]))
        sides.lanes[0, 0, 0].prefetch(then, 144)
        sides.check(0, 0, 0, now, slots[0])  # the rows of this step lie where they lay
        sides.step(0, [0], then[None])
    assert sides.buffer.stats().prefetched > 0


def test_torch_compile_traces_a_step(seed: int, rng: np.random.Generator) -> None:
    pool = Pool(MLA, seed % 1000)
    buffer = CpuBuffer(pool.ns, requests=1, slots=48, top_k=32)
    plain = CpuBuffer(pool.ns, requests=1, slots=48, top_k=32)
    prefix = pool.put(0, 9)
    for each in (buffer, plain):
        each.bind(0, prefix)
    rows = buffer.rows("latent", 0)

    def step(requests: Any, tokens: Any) -> Any:
        slots = buffer.resolve("latent", 0, requests, tokens)
        return rows[slots[0].long()].sum(0, dtype=torch.int64), slots

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for _ in range(5):
        chosen = ints(rng.permutation(144)[:32][None])
        total, slots = compiled(ints([0]), chosen)
        assert torch.equal(slots, plain.resolve("latent", 0, ints([0]), chosen))
        want = plain.rows("latent", 0)[slots[0].long()].sum(0, dtype=torch.int64)
        assert torch.equal(total, want)
