# SPDX-License-Identifier: Apache-2.0
"""Puts from a GPU and gathers to it, on a GPU: all row formats, streams, offsets over 2^32."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# Late: skipped without torch.
import libsac  # noqa: E402
from libsac import Layout, Plane, errors, gpu  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

PAGE, PAGES = 64, 6
TOKENS = PAGE * PAGES
ROWS = (1152, 656, 584, 576, 528, 352, 132, 16, 6, 7)
PATHS: tuple[gpu.path.Path, ...] = ("gpu", "cpu")


@pytest.fixture
def pool() -> Iterator[libsac.Pool]:
    with libsac.embedded("256M") as made:
        yield made


def tensor(seed: int, *shape: int) -> Any:
    """Random bytes in GPU memory."""
    made = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda", generator=made)


@pytest.mark.parametrize("row", ROWS)
def test_rows_of_every_format_arrive_and_come_back(pool: libsac.Pool, row: int) -> None:
    ns = pool.namespace("ns", Layout([Plane("row", range(3), row)], PAGE))
    for turn, order in enumerate(("layer token", "page layer token", "layer page token")):
        shape = {"layer": 3, "page": PAGES, "token": PAGE if "page" in order else TOKENS}
        source = tensor(turn, *(shape[a] for a in order.split()), row)
        keys = ns.keys(range(TOKENS), salt=bytes([turn]))
        with ns.put(keys) as put:
            gpu.put(put, {"row": source}, order)
        plain = source.movedim(order.split().index("layer"), 0).reshape(3, TOKENS, row)
        want = plain.cpu().numpy()
        with ns.pin(keys) as prefix:
            tokens = torch.randint(-1, TOKENS, (1, 500))
            for layer in range(3):
                assert np.array_equal(prefix.gather("row", layer), want[layer])
                picked = torch.where(
                    (tokens < 0)[..., None].cuda(), 0, plain[layer][tokens.clamp(0)].cuda()
                )
                for path in PATHS:
                    for given in (tokens, tokens.cuda(), tokens.cuda().int()):
                        out = gpu.gather(ns, "row", layer, [prefix], given, path=path)
                        assert torch.equal(out, picked), (path, layer, given.device)


def test_heads_slots_blocks_and_strides(pool: libsac.Pool) -> None:
    heads, dim = 4, 128
    planes = [Plane(name, [0, 5], 2 * dim, heads=heads, group="kv") for name in "kv"]
    ns = pool.namespace("ns", Layout(planes, PAGE))
    engine = torch.randn(2, 2, PAGES + 7, PAGE, heads, dim, device="cuda").bfloat16()
    blocks = torch.randperm(PAGES + 7)[:PAGES]
    slots = (blocks[:, None] * PAGE + torch.arange(PAGE)).reshape(-1)
    want = engine[:, :, blocks.cuda()].reshape(2, 2, TOKENS, heads, dim)
    # As one tensor of K and V behind one another, page tables on the GPU or not.
    for turn, options in enumerate(
        (
            {"blocks": blocks},
            {"blocks": blocks.cuda()},
            {"slots": slots.cuda()},
            {"slots": slots.int()},
        )
    ):
        keys = ns.keys(range(TOKENS), salt=bytes([turn]))
        with ns.put(keys) as put:
            both = {"k": engine[:, 0], "v": engine[:, 1]}
            gpu.put(put, both, "layer page token head", **options)
        with ns.pin(keys) as prefix:
            for i, layer in enumerate((0, 5)):
                for j, name in enumerate("kv"):
                    got = np.asarray(prefix.gather(name, layer)).view(np.uint16)
                    expected = want[i, j].transpose(0, 1).contiguous().view(torch.uint16)
                    assert np.array_equal(got, expected.cpu().numpy())
                    tokens = torch.randint(-1, TOKENS, (1, heads, 99), device="cuda")
                    a, b = (
                        gpu.gather(ns, name, layer, [prefix], tokens, path=p) for p in PATHS
                    )
                    assert torch.equal(a, b)
                    one = gpu.gather(ns, name, layer, [prefix], tokens[:, 3], head=3)
                    assert torch.equal(one, a[:, 3])


def test_the_streams_order_holds_on_both_ends(pool: libsac.Pool) -> None:
    ns = pool.namespace("ns", Layout([Plane("row", [0], 1152)], PAGE))
    stream = torch.cuda.Stream()
    source = torch.zeros(1, TOKENS, 1152, dtype=torch.uint8, device="cuda")
    with ns.put(ns.keys(range(TOKENS), salt=b"warm")) as put:
        gpu.put(put, {"row": source})  # registers, compiles
    mover = gpu.Mover(ns)
    torch.cuda.synchronize()
    keys = ns.keys(range(TOKENS))
    with ns.put(keys) as put:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(400_000_000)  # about 0.2 s
            source.fill_(5)
            gpu.put(put, {"row": source})
            source.fill_(9)
        del source
        begun = time.perf_counter()
        assert not mover.ready(put)
        assert time.perf_counter() - begun < 0.05
        put.commit()
    with ns.pin(keys) as prefix:
        assert (np.asarray(prefix.gather("row", 0)) == 5).all()
        tokens = torch.arange(TOKENS, device="cuda")[None]
        for path in PATHS:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(100_000_000)
                out = gpu.gather(ns, "row", 0, [prefix], tokens, path=path)
                seen = out.float().mean()
            stream.synchronize()
            assert seen.item() == 5
    mover.close()


def test_a_wrong_slot_on_the_gpu_commits_nothing(pool: libsac.Pool) -> None:
    ns = pool.namespace("ns", Layout([Plane("row", [0], 656)], PAGE))
    keys = ns.keys(range(TOKENS))
    slots = torch.arange(TOKENS, device="cuda")
    for bad in (TOKENS, -1, 2**40):
        slots[77] = bad
        with ns.put(keys) as put:
            gpu.put(put, {"row": tensor(1, 1, TOKENS, 656)}, slots=slots)
            with pytest.raises(errors.RangeError, match="slot"):
                put.commit()
            put.close()
    assert ns.longest(keys) == 0


@pytest.mark.parametrize("path", PATHS)
def test_wrong_tokens_on_the_gpu_are_zeros_and_told_of(
    pool: libsac.Pool, path: gpu.path.Path
) -> None:
    ns = pool.namespace("ns", Layout([Plane("row", [0], 656)], PAGE))
    keys = ns.keys(range(TOKENS))
    with ns.put(keys) as put:
        gpu.put(put, {"row": tensor(1, 1, TOKENS, 656)})
    prefix = ns.pin(keys)
    tokens = torch.tensor([[3, TOKENS, 2**40, -2, -1, 3]], device="cuda")
    with gpu.Mover(ns, path=path) as mover:
        out = mover.gather("row", 0, [prefix], tokens)
        prefix.close()
        torch.cuda.synchronize()
        assert not out[0, 1:5].any()
        assert torch.equal(out[0, 0], out[0, 5])
        assert out[0, 0].any()
        time.sleep(0.05)
        assert mover.faults() == [gpu.Fault(1, 0, frozenset({"range"}))]
        assert ns.stats().pinned == 0


def test_a_sequence_grows_from_the_gpu(pool: libsac.Pool) -> None:
    ns = pool.namespace("ns", Layout([Plane("row", [0, 1], 1152)], PAGE))
    source = tensor(2, 2, TOKENS, 1152)
    with ns.sequence() as sequence:
        at = 0
        for n in (5, 200, TOKENS - 205):
            sequence.extend(range(at, at + n))
            gpu.put(sequence, {"row": source[:, at : at + n]})
            at += n
        torch.cuda.synchronize()
        sequence.flush()
        for layer in (0, 1):
            got = sequence.gather("row", layer)
            assert np.array_equal(got, source[layer].cpu().numpy())
    assert ns.longest(ns.keys(range(TOKENS))) == PAGES


def test_beyond_four_gigabytes() -> None:
    layers, pages = 61, 1000
    with libsac.embedded("6G") as pool:
        ns = pool.namespace("ns", Layout([Plane("row", range(layers), 1152)], PAGE))
        source = tensor(3, layers, pages * PAGE, 1152)
        keys = ns.keys(range(pages * PAGE))
        with ns.put(keys) as put:
            gpu.put(put, {"row": source})
        with ns.pin(keys) as prefix:
            tokens = torch.randint(0, pages * PAGE, (1, 4096), device="cuda")
            tokens[0, :4] = torch.tensor([0, 1, pages * PAGE - 2, pages * PAGE - 1])
            for layer in (0, 30, 60):
                for path in PATHS:
                    out = gpu.gather(ns, "row", layer, [prefix], tokens, path=path)
                    assert torch.equal(out[0], source[layer, tokens[0]])


def test_which_path_and_why(pool: libsac.Pool) -> None:
    ns = pool.namespace("ns", Layout([Plane("row", [0], 1152)], PAGE))
    keys = ns.keys(range(TOKENS))
    with ns.put(keys) as put:
        gpu.put(put, {"row": tensor(4, 1, TOKENS, 1152)})
    with ns.pin(keys) as prefix, gpu.Mover(ns) as mover:
        mover.gather("row", 0, [prefix], [[1, 2, 3]])
        info = mover.info()
        print(info)
        assert info.path in ("gpu", "cpu")
        assert info.rows == 2048
        graph = torch.cuda.CUDAGraph()
        out = torch.empty(1, 3, 1152, dtype=torch.uint8, device="cuda")
        tokens = torch.tensor([[1, 2, 3]], dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.graph(graph), pytest.raises(errors.ArgumentError, match="captured"):
            mover.gather("row", 0, [prefix], rows=tokens, out=out)
