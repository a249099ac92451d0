# SPDX-License-Identifier: Apache-2.0
"""The hot buffer's Python front, and behind it all but the kernels, on a CUDA for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from unit import fake_gpu  # noqa: E402

fake_gpu.use()

from unit.hot_model import Beside, CpuBuffer, Pool, ints  # noqa: E402

import libsac  # noqa: E402
from libsac import Layout, Plane, errors  # noqa: E402
from libsac.hotbuffer import policies  # noqa: E402
from libsac.hotbuffer.base import POLICIES  # noqa: E402

MLA = Layout([Plane("latent", range(2), 656), Plane("indexer", range(2), 132)], 16)
HEADS = Layout([Plane(p, [0, 3], 36, group="kv", heads=3) for p in "kv"], 16)
WIDE = Layout([Plane("c4", [1], 584, tokens_per_row=4)], 64)


def pick(rng: np.random.Generator, units: int, shape: tuple[int, ...]) -> Any:
    """Selections with repeats and padding."""
    made = rng.integers(0, units, shape).astype(np.int32)
    made[rng.random(shape) < 0.05] = -1
    return made


def test_import_loads_no_torch() -> None:
    code = "import libsac, sys; assert 'torch' not in sys.modules; print(libsac.HotBuffer)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "HotBuffer" in done.stdout


def test_policies_are_the_references() -> None:
    assert set(POLICIES) == set(policies.NAMES)


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


def test_memory_of_a_long_context() -> None:
    layout = Layout([Plane("latent", range(61), 1152)], 64)
    ns = libsac.embedded("64M").namespace("long", layout)
    for tokens, most in ((131072, 310_000_000), (1 << 20, 350_000_000)):
        with CpuBuffer(ns, requests=1, max_tokens=tokens) as buffer:
            assert buffer.memory["rows"] >= 61 * 4096 * 1152
            assert sum(buffer.memory.values()) == buffer.memory_bytes <= most


@pytest.mark.parametrize(
    ("wrong", "options"),
    [
        ("top_k is 65, but there are 64 slots.*more slots", {"top_k": 65}),
        ("slots is 8193; 1 to 8192.*larger blocks", {"slots": 8193}),
        ("slots is 20000; 1 to 8192", {"slots": 20000}),
        ("slots is 0; 1 to", {"slots": 0}),
        ("top_k is 0; 1 to", {"top_k": 0}),
        ("requests is 0; 1 to", {"requests": 0}),
        ("requests is 4294967296; 1 to", {"requests": 1 << 32}),
        ("slots is -1; 1 to", {"slots": -1}),
        ("block is 3, which does not divide", {"block": 3}),
        ("block is 129; 1 to 128", {"block": 129}),
        ("31 bits.*fewer requests", {"requests": 65535, "slots": 8192, "groups": ["many"]}),
        ("requests is 65536; 1 to 65535", {"requests": 65536}),
        ("2\\^46 bytes of GPU memory", {"requests": 65535, "slots": 8192, "groups": ["wide"]}),
        ("2\\^28 are the limit.*smaller block", {"block": 16, "groups": ["wide"]}),
        ("more than 4 planes.*Split", {"groups": ["p0"]}),
        ("policy is 'mru'", {"policy": "mru"}),
        ("path is 'rdma'", {"path": "rdma"}),
        ("window plane", {"groups": ["window"]}),
        ("state plane", {"groups": ["state"]}),
        ("named twice", {"groups": ["latent", "latent"]}),
        ("layer 1 follows layer 7", {"share": {1: 7}}),
        ("layer 1 follows itself", {"share": {1: 1}}),
        ("follows another itself", {"share": {1: 0, 2: 1}}),
        ("no group of the buffer has layer 9", {"share": {9: 0}}),
        ("max_tokens is 2147483648; 1 to", {"max_tokens": 1 << 31}),
        ("max_tokens is 0; 1 to", {"max_tokens": 0}),
        ("shared memory.*Take fewer", {"slots": 8192, "top_k": 8192, "max_tokens": 1 << 25}),
    ],
)
def test_refused_options(wrong: str, options: dict[str, Any]) -> None:
    planes = [
        Plane("latent", range(3), 64),
        Plane("window", range(3), 64, "window", window_tokens=32),
        Plane("state", range(3), 64, "state"),
        Plane("many", [0], 64, heads=5),
        Plane("wide", [0], 1 << 24, row_pitch=(1 << 24) + 16),
        *(Plane(f"p{i}", [0], 64, group="five") for i in range(5)),
    ]
    ns = libsac.embedded("1G").namespace("x", Layout(planes, 16))
    with pytest.raises(errors.ArgumentError, match=wrong):
        CpuBuffer(ns, **{"requests": 1, "slots": 64, "top_k": 32, **options})
    with pytest.raises(errors.NotFoundError, match="no plane 'kv'"):
        CpuBuffer(ns, requests=1, groups=["kv"])


def test_options_are_looked_at_before_a_driver_is() -> None:
    code = """
import libsac
ns = libsac.embedded("4M").namespace("x", libsac.Layout([libsac.Plane("k", [0], 64)], 16))
for wrong in ({"slots": 20000}, {"top_k": 65}, {"requests": 65536}, {"block": 3},
              {"max_tokens": 1 << 31}, {"share": {1: 0}}, {"threads": -1}, {"timeout": -1},
              {"device": "cpu"}, {}):
    try:
        libsac.HotBuffer(ns, **{"requests": 1, "slots": 64, "top_k": 32, **wrong})
    except libsac.errors.SacError as error:
        print(type(error).__name__, *wrong)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "SAC_LIBCUDA": "/nowhere/cuda.so"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *wrong, right = done.stdout.splitlines()
    assert right == "GpuError"
    assert [x.split()[0] for x in wrong] == ["ArgumentError"] * 9, wrong


def test_refused_calls(seed: int) -> None:
    pool = Pool(MLA, seed % 1000)
    buffer = CpuBuffer(pool.ns, requests=1, slots=48, top_k=32, max_tokens=64)
    one, some = ints([0]), ints([[1, 2]])
    with pytest.raises(errors.RangeError, match="max_tokens"):
        buffer.bind(0, pool.put(0, 5))
    with pytest.raises(errors.RangeError, match="request 3"):
        buffer.bind(3, pool.put(0, 1))
    other = libsac.embedded("8M").namespace("hot", MLA)
    with pytest.raises(errors.ArgumentError, match="another pool"):
        buffer.bind(0, other.pin(other.keys([])))
    for match, requests, tokens in (
        ("int32, not torch.int64", one, torch.tensor([[1]])),
        ("must be a torch tensor", one, np.zeros((1, 2), np.int32)),
        ("shape", one, ints([1, 2])),
        ("shape", one, ints([[1], [2]])),
        ("contiguous", one, ints([[1, 2], [3, 4]]).t()[:1, :]),
        ("int32", torch.tensor([0]), some),
        ("a selection of 33", one, ints([[0] * 33])),
        ("batch of 2", ints([0, 0]), ints([[1], [2]])),
    ):
        with pytest.raises(errors.ArgumentError, match=match):
            buffer.resolve("latent", 0, requests, tokens)
    with pytest.raises(errors.ArgumentError, match="out"):
        buffer.resolve("latent", 0, one, some, out=ints([[1]]))
    with pytest.raises(errors.ArgumentError, match="scores are for"):
        buffer.resolve("latent", 0, one, some, scores=torch.zeros(1, 2))
    with pytest.raises(errors.ArgumentError, match="made for the planes latent only"):
        buffer.resolve("indexer", 0, one, some)
    with pytest.raises(errors.RangeError, match="no layer 2"):
        buffer.resolve("latent", 2, one, some)
    with pytest.raises(errors.ArgumentError, match="follows no other"):
        buffer.replay("latent", 0, one)
    buffer.bind(0, pool.put(0, 1))
    for match, rows in (
        ("empty", {}),
        ("shape", {"latent": torch.zeros(2, 1, 656, dtype=torch.uint8)}),
        ("655 bytes", {"latent": torch.zeros(1, 1, 655, dtype=torch.uint8)}),
        ("not of the group", {"latent": torch.zeros(1, 1, 656, dtype=torch.uint8),
                              "indexer": torch.zeros(1, 1, 132, dtype=torch.uint8)}),
        ("17 new rows", {"latent": torch.zeros(1, 17, 656, dtype=torch.uint8)}),
        ("multiples of", {"latent": torch.zeros(1, 2, 657, dtype=torch.uint8)[:, :, :656]}),
    ):  # fmt: skip
        with pytest.raises(errors.ArgumentError, match=match):
            buffer.append(0, one, rows)
    for name in ("truncate", "written"):
        with pytest.raises(errors.ArgumentError, match="is a prefix"):
            getattr(buffer, name)(*((0, 1) if name == "truncate" else ([0],)))
    buffer.close()
    buffer.close()
    with pytest.raises(errors.ClosedError):
        buffer.resolve("latent", 0, one, some)


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
