# SPDX-License-Identifier: Apache-2.0
"""The hot buffer as an engine uses it, on a GPU: real shapes, CUDA graphs, processes.

On a machine without one, SAC_TEST_FAKE_GPU=1 runs what does not need a graph's own rules on the
CUDA for tests (tests/unit/fake_gpu.py): steps are then called where a graph is replayed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

FAKE = os.environ.get("SAC_TEST_FAKE_GPU") == "1"
ON = "cpu" if FAKE else "cuda"
if FAKE:
    from unit import fake_gpu

    fake_gpu.use()

# Late: they need torch, and the driver that was chosen.
from system.daemon import Daemon, folder  # noqa: E402
from unit.hot_model import Beside, CpuBuffer, Pool, ints  # noqa: E402

import libsac  # noqa: E402
from libsac import Layout, Plane, errors  # noqa: E402
from libsac.hotbuffer.base import POLICIES  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not FAKE and not torch.cuda.is_available(), reason="no GPU"),
]

LATENT, ROPE = 512, 64
ROW = 2 * (LATENT + ROPE)  # bf16
MLA = Layout([Plane("latent", range(2), ROW, dtype="bf16")], 64)
FP8 = Layout([Plane("latent", [0], 656)], 64)
KV = Layout([Plane(p, [0], 256, group="kv", heads=4) for p in "kv"], 64)


def buffer_of(ns: libsac.Namespace, **options: Any) -> Any:
    return (CpuBuffer if FAKE else libsac.HotBuffer)(ns, **options)


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a graph to replay. It is not run by the capture."""
    if FAKE:
        return step
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


def pick(rng: np.random.Generator, units: int, size: int) -> Any:
    made = rng.integers(0, units, size).astype(np.int32)
    made[rng.random(size) < 0.02] = -1
    return made


# ---------------------------------------------------------------- the reference


@pytest.mark.parametrize("path", ["gpu", "cpu"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layout", [MLA, FP8, KV], ids=["1152", "656", "kv"])
def test_like_the_reference(
    layout: Layout, policy: str, path: str, seed: int, rng: np.random.Generator
) -> None:
    pool = Pool(layout, seed % 1000)
    heads = layout.planes[0].heads
    sides = Beside(
        pool, layout.planes[0].name, policy, on=ON, requests=3, slots=1024, top_k=512, path=path
    )
    prefixes = {salt: pool.put(salt, 60) for salt in range(3)}
    for i in range(3):
        sides.bind(i, i, prefixes[i], 3840)
    hot = rng.permutation(3840)[:1400].astype(np.int32)
    for turn in range(12):
        if turn == 6:
            sides.buffer.release(1)
            sides.bind(1, 0, prefixes[0], 3840)
        requests = [1, 0] if turn % 2 else [2, 0, 1]
        chosen = rng.choice(hot, (len(requests), heads, 512))
        chosen[rng.random(chosen.shape) < 0.02] = -1
        sides.step(0, requests, chosen if heads > 1 else chosen[:, 0])
    assert sides.buffer.errors() == {}


def test_hostile_input(seed: int, rng: np.random.Generator) -> None:
    pool = Pool(FP8, seed % 1000)
    sides = Beside(pool, "latent", on=ON, requests=5, slots=1024, top_k=512)
    for i in (0, 1):
        sides.bind(i, i, pool.put(i, 60), 3840)
    wild = rng.integers(0, 3840, (2, 512)).astype(np.int32)
    wild[0, ::7] = rng.integers(-(2**31), 2**31, len(wild[0, ::7]))
    wild[0, :4] = (-2, 3840, 2**31 - 1, -(2**31))
    sides.step(0, [0, 1], wild)
    assert sides.buffer.errors() == {0: {"range"}}
    chosen = rng.integers(0, 3840, (5, 512)).astype(np.int32)
    got = sides.buffer.resolve("latent", 0, ints([2, 1, 1, 5, -7], ON), ints(chosen, ON)).cpu()
    want = sides.lanes[1, 0, 0].resolve(chosen[1], 3840).slots
    np.testing.assert_array_equal(got[1].numpy(), 1024 + want)
    assert all((got[b] == -1).all() for b in (0, 2, 3, 4))
    assert sides.buffer.errors() == {
        0: {"range"},
        1: {"twice"},
        2: {"unbound"},
        -1: {"unbound"},
    }
    sides.step(0, [1, 0], rng.integers(0, 3840, (2, 512)).astype(np.int32))


# ---------------------------------------------------------- exactness of attention


def attention(queries: Any, rows: Any, at: Any) -> Any:
    """(B, heads, 512) of queries (B, heads, 576) over the rows (n, 1152 bytes) at (B, K);
    -1: no row. The same kernels and order of sums, whatever rows is."""
    there = at >= 0
    chosen = rows[at.clamp(min=0).long()].view(torch.bfloat16).float()
    scores = torch.einsum("bhd,bkd->bhk", queries.float(), chosen) / 24.0
    weights = scores.masked_fill(~there[:, None], float("-inf")).softmax(-1)
    return torch.einsum("bhk,bkd->bhd", weights, chosen[..., :LATENT])


class Contexts:
    """Requests whose KV is in the pool, and all of it in GPU memory as well."""

    def __init__(self, rng: np.random.Generator, count: int, pages: int, size: str) -> None:
        self.pool = libsac.embedded(size)
        self.ns = self.pool.namespace("mla", MLA)
        self.tokens = pages * 64
        self.prefixes, full = [], []
        for i in range(count):
            kv = torch.from_numpy(rng.standard_normal((2, self.tokens, ROW // 2)) * 0.5)
            kv = kv.to(torch.bfloat16)
            keys = self.ns.keys(range(i * 1000000, i * 1000000 + self.tokens))
            with self.ns.put(keys) as put:
                for layer in (0, 1):
                    rows = kv[layer].view(torch.uint8).reshape(pages, 64, ROW)
                    put.write("latent", layer, rows)
            self.prefixes.append(self.ns.pin(keys))
            full.append(kv.view(torch.uint8).reshape(2, self.tokens, ROW))
        self.full = torch.stack(full, 1).to(ON)  # (layer, request, token, row)

    def attend(self, layer: int, queries: Any, contexts: Any, tokens: Any) -> Any:
        """Over the full KV of these contexts, one for each query."""
        base = (contexts.long() * self.tokens)[:, None]
        at = torch.where(tokens >= 0, tokens.long() + base, -1)
        return attention(queries, self.full[layer].reshape(-1, ROW), at)


def test_attention_is_the_same_to_the_bit_while_requests_join_and_leave(
    rng: np.random.Generator,
) -> None:
    """One graph of two layers is captured once; requests come and go between its replays."""
    here = Contexts(rng, 6, 100, "256M")
    with buffer_of(here.ns, requests=4, slots=1024, top_k=512) as buffer:
        requests = torch.zeros(3, dtype=torch.int32, device=ON)
        tokens = torch.full((3, 512), -1, dtype=torch.int32, device=ON)
        queries = torch.zeros(3, 16, LATENT + ROPE, device=ON)
        outs = [torch.zeros(3, 16, LATENT, device=ON) for _ in range(2)]

        def step() -> None:
            for layer in (0, 1):
                slots = buffer.resolve("latent", layer, requests, tokens)
                outs[layer].copy_(attention(queries, buffer.rows("latent", layer), slots))

        step()  # warm: libraries allocate
        replay = captured(step)
        bound = {0: 0, 1: 1, 3: 2}
        for i, context in bound.items():
            buffer.bind(i, here.prefixes[context])
        near = rng.permutation(here.tokens)[:900].astype(np.int32)
        for turn in range(40):
            if turn and turn % 4 == 0:
                leaving = list(bound)[turn // 4 % 3]
                context = int(rng.integers(0, 6))
                buffer.release(leaving)
                joining = next(i for i in range(4) if i not in bound)
                del bound[leaving]
                bound[joining] = context
                buffer.bind(joining, here.prefixes[context])
            order = list(bound)
            rng.shuffle(order)
            requests.copy_(ints(order, ON))
            tokens.copy_(ints(rng.choice(near, (3, 512)), ON))
            tokens[0, 100:110] = -1
            queries.copy_(torch.from_numpy(rng.standard_normal((3, 16, LATENT + ROPE))))
            replay()
            contexts = ints([bound[i] for i in order], ON)
            for layer in (0, 1):
                want = here.attend(layer, queries, contexts, tokens)
                assert torch.equal(outs[layer], want), (turn, layer)
        assert buffer.errors().keys() <= {0}  # the warm step named a request not yet bound
        stats = buffer.stats()
        assert stats.hits > stats.misses > 0


def test_prefetch_on_a_side_stream(rng: np.random.Generator) -> None:
    here = Contexts(rng, 2, 100, "128M")
    buffer = buffer_of(here.ns, requests=2, slots=1024, top_k=512)
    for i in (0, 1):
        buffer.bind(i, here.prefixes[i])
    side = None if FAKE else torch.cuda.Stream()
    requests = ints([0, 1], ON)
    for _ in range(10):
        queries = torch.from_numpy(rng.standard_normal((2, 16, LATENT + ROPE))).to(ON)
        for layer in (0, 1):
            tokens = ints(rng.integers(0, here.tokens, (2, 512)), ON)
            slots = buffer.resolve("latent", layer, requests, tokens)
            then = ints(rng.integers(0, here.tokens, (2, 400)), ON)
            buffer.prefetch("latent", 1 - layer, requests, then, stream=side)
            got = attention(queries, buffer.rows("latent", layer), slots)
            assert torch.equal(got, here.attend(layer, queries, requests, tokens))
    assert buffer.stats().prefetched > 0
    buffer.close()


# ------------------------------------------------------------ sequences that grow


def test_a_captured_step_appends(rng: np.random.Generator) -> None:
    """Decode: rows of each new token come from the GPU; pages are committed behind the step.
    The context outgrows the slots on its way, and is released and bound again."""
    pool = libsac.embedded("128M")
    ns = pool.namespace("mla", MLA)
    count, start, end, slots = 2, 200, 700, 512
    kv = torch.from_numpy(rng.standard_normal((2, count, end, ROW // 2))).to(torch.bfloat16)
    kv = kv.view(torch.uint8)
    full = kv.to(ON)
    ids = [[i * 1000000 + t for t in range(end)] for i in range(count)]
    buffer = buffer_of(ns, requests=3, slots=slots, top_k=256)
    sequences = [ns.sequence() for _ in range(count)]
    for i, sequence in enumerate(sequences):
        sequence.extend(ids[i][:start])
        for layer in (0, 1):
            sequence.write("latent", layer, kv[layer, i, :start])
        buffer.bind(i, sequence)
    requests = ints([0, 1], ON)
    new = torch.zeros(2, count, 1, ROW, dtype=torch.uint8, device=ON)
    tokens = torch.full((count, 256), -1, dtype=torch.int32, device=ON)
    queries = torch.randn(count, 16, LATENT + ROPE, device=ON)
    outs = [torch.zeros(count, 16, LATENT, device=ON) for _ in range(2)]

    def step() -> None:
        for layer in (0, 1):
            buffer.append(layer, requests, {"latent": new[layer]})
            at = buffer.resolve("latent", layer, requests, tokens)
            outs[layer].copy_(attention(queries, buffer.rows("latent", layer), at))

    attention(queries, full[0].reshape(-1, ROW), tokens)  # warm: libraries allocate
    replay = captured(step)
    for length in range(start + 1, end + 1):
        for i, sequence in enumerate(sequences):
            sequence.extend([ids[i][length - 1]])
        if length == 600:  # leaves and comes back under another number
            buffer.release(1)
            buffer.bind(2, sequences[1])
            requests.copy_(ints([0, 2], ON))
        live = [0, 1] if length < 600 else [0, 2]
        buffer.extend(live)
        new.copy_(full[:, :, length - 1 : length])
        chosen = rng.integers(0, length, (count, 256)).astype(np.int32)
        chosen[:, 0] = length - 1
        tokens.copy_(ints(chosen, ON))
        replay()
        buffer.written(live)
        base = torch.arange(count, device=ON)[:, None] * end
        for layer in (0, 1):
            at = torch.where(tokens >= 0, tokens + base, -1)
            want = attention(queries, full[layer].reshape(-1, ROW), at)
            assert torch.equal(outs[layer], want), (length, layer)
    assert buffer.errors() == {}
    if not FAKE:
        torch.cuda.synchronize()
    for i, sequence in enumerate(sequences):
        sequence.flush()
        keys = ns.keys(ids[i][: end // 64 * 64])
        with ns.pin(keys) as prefix:
            assert prefix.pages == end // 64
            for layer in (0, 1):
                want = kv[layer, i, : prefix.tokens].numpy()
                np.testing.assert_array_equal(prefix.gather("latent", layer), want)
    buffer.close()


def test_bind_is_not_captured(rng: np.random.Generator) -> None:
    if FAKE:
        pytest.skip("nothing is captured on the CUDA for tests")
    here = Contexts(rng, 1, 4, "64M")
    buffer = buffer_of(here.ns, requests=1, slots=64, top_k=32)
    graph = torch.cuda.CUDAGraph()
    scratch = torch.zeros(1, device=ON)
    with torch.cuda.graph(graph):
        scratch += 1
        with pytest.raises(errors.ArgumentError, match="captured"):
            buffer.bind(0, here.prefixes[0])
    buffer.bind(0, here.prefixes[0])
    buffer.close()


# --------------------------------------------------------- pools that change, processes


def test_a_pool_grows_under_a_captured_graph(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    pool = Pool(FP8, seed % 1000, path=tmp_path / "pool", size="16M")
    buffer = buffer_of(pool.ns, requests=2, slots=256, top_k=128)
    requests = torch.zeros(1, dtype=torch.int32, device=ON)
    tokens = torch.full((1, 128), -1, dtype=torch.int32, device=ON)
    out = torch.zeros_like(tokens)

    def step() -> None:
        buffer.resolve("latent", 0, requests, tokens, out=out)

    replay = captured(step)
    salt = 0
    held = []
    while salt < 40:
        try:
            held.append(pool.put(salt, 20))
        except errors.NoSpaceError:
            break
        salt += 1
    assert 1 < salt < 40
    more = os.memfd_create("more")
    os.ftruncate(more, 16 << 20)
    pool.pool._native.extend((more, "more", False, 1))
    held.append(pool.put(salt, 20))
    for i, (name, prefix) in enumerate(((0, held[0]), (salt, held[-1]))):
        buffer.bind(i, prefix)
        for _ in range(3):
            requests.copy_(ints([i], ON))
            chosen = rng.integers(0, 1280, 128).astype(np.int32)
            tokens.copy_(ints(chosen[None], ON))
            replay()
            got = buffer.rows("latent", 0)[out[0].long()].cpu().numpy()
            want = pool.chosen(FP8.planes[0], 0, name, chosen)[0]
            np.testing.assert_array_equal(got, want)
    buffer.close()
    os.close(more)


def work(socket: str, name: str, seed: int) -> None:
    """What each of two processes does, with contexts of the other as well."""
    rng = np.random.default_rng(seed)
    shared = libsac.connect(name, socket=socket)
    pool = Pool(FP8, 5, pool=shared)
    prefixes = [pool.put(salt, 40) for salt in range(4)]
    sides = Beside(pool, "latent", on=ON, requests=2, slots=512, top_k=256)
    for turn in range(12):
        i, salt = turn % 2, int(rng.integers(0, 4))
        if i in sides.salts:
            sides.buffer.release(i)
        sides.bind(i, salt, prefixes[salt], 2560)
        for _ in range(4):
            sides.step(0, [i], rng.integers(0, 2560, (1, 256)).astype(np.int32))
    assert sides.buffer.errors() == {}
    sides.buffer.close()
    shared.close()
    print("done")


def test_two_processes_on_one_pool(seed: int) -> None:
    daemon = Daemon(folder()).start()
    try:
        daemon.create("both", 64 << 20, 1)
        code = "import sys; from gpu.test_hot_buffer import work; "
        code += "work(sys.argv[1], 'both', int(sys.argv[2]))"
        tests = str(Path(__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
            [tests, os.environ.get("PYTHONPATH", "")])}  # fmt: skip
        children = [
            subprocess.Popen(
                [sys.executable, "-c", code, daemon.socket, str(seed % 10000 + i)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for i in (0, 1)
        ]
        for child in children:
            said, wrong = child.communicate(timeout=240)
            assert child.returncode == 0, wrong
            assert said.strip() == "done"
    finally:
        daemon.close()


def test_offsets_beyond_4_gib(seed: int, rng: np.random.Generator) -> None:
    """Slots and pages whose byte offsets need more than 32 bits: 6 GiB of slots, a pool of 5
    GiB, of which little is ever touched."""
    if FAKE:
        pytest.skip("6 GiB of GPU memory, which the CUDA for tests would fill")
    row, page = 1 << 18, 16
    pool = Pool(Layout([Plane("wide", [0], row)], page), seed % 1000, size="5G")
    sides = Beside(pool, "wide", on=ON, requests=3, slots=8192, top_k=16)
    assert 2 * 8192 * row >= 1 << 32  # where request 2 begins
    near = pool.put(0, 6)
    between = pool.ns.put(pool.ns.keys(range((1 << 32) // row + page)))  # reserved, not written
    far = pool.put(1, 6)
    addresses = [p.view("wide", 0, 0).ctypes.data for p in (near, far)]
    assert abs(addresses[1] - addresses[0]) > 1 << 32
    for i, salt, prefix in ((0, 0, near), (2, 1, far)):
        sides.bind(i, salt, prefix, 6 * page)
    for _ in range(4):
        sides.step(0, [2, 0], rng.integers(0, 6 * page, (2, 16)).astype(np.int32))
    assert sides.buffer.errors() == {}
    sides.buffer.close()
    between.close()
