# SPDX-License-Identifier: Apache-2.0
"""Buffers of torch and of anything that speaks DLPack, in and out; and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conformance.backends import OpenPool

from libsac import Keys, Layout, Namespace, Plane, Prefix, errors

LAYOUT = Layout(
    [Plane("kv", range(2), 64, dtype="bf16"), Plane("k", [0], 32, heads=2)], page_tokens=8
)
PAGES, TOKENS = 3, 24


class OnlyDLPack:
    """Speaks DLPack and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class OnGpu(OnlyDLPack):
    """Says that it lies on a CUDA device, and hands out nothing."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("this memory is on a GPU")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


@pytest.fixture
def ns(open_pool: OpenPool) -> Namespace:
    return open_pool().namespace("n", layout=LAYOUT)


@pytest.fixture
def keys(ns: Namespace) -> Keys:
    return ns.keys(range(TOKENS))


@pytest.fixture
def rows(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, (PAGES, 8, 64), dtype=np.uint8)


def store(ns: Namespace, keys: Keys, kv: Any, k: Any = None) -> None:
    with ns.put(keys) as batch:
        for layer in range(2):
            batch.write("kv", layer, kv)
        batch.write("k", 0, np.zeros((PAGES, 2, 8, 32), np.uint8) if k is None else k)


@pytest.fixture
def prefix(ns: Namespace, keys: Keys, rows: np.ndarray) -> Iterator[Prefix]:
    store(ns, keys, rows)
    with ns.pin(keys) as prefix:
        yield prefix


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8", "int64", "float8_e4m3fn"])
def test_torch_in_and_out(
    ns: Namespace, keys: Keys, rng: np.random.Generator, dtype: str
) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    width = 64 // kind.itemsize
    raw = torch.from_numpy(rng.integers(0, 256, (PAGES, 8, 64), dtype=np.uint8))
    source = raw.view(kind)
    heads = raw.reshape(PAGES, 8, 2, 32).permute(0, 2, 1, 3)  # as a projection leaves them
    assert not heads.is_contiguous()
    store(ns, keys, source, heads)
    index = torch.tensor([5, -1, 23, 5], dtype=torch.int32)
    with ns.pin(keys) as prefix:
        got = prefix.gather("kv", 1, index)
        assert isinstance(got, torch.Tensor)
        assert got.dtype == torch.uint8
        want = raw.reshape(TOKENS, 64)[index.long()]
        want[1] = 0
        assert torch.equal(got, want)
        out = torch.ones((4, width), dtype=kind)
        assert prefix.gather("kv", 1, index, out=out) is out
        assert torch.equal(out.view(torch.uint8), want)
        # Into a part of a larger tensor, by a numpy index.
        room = torch.zeros((8, 2, width), dtype=kind)
        prefix.gather("kv", 0, index.numpy(), out=room[::2, 1])
        assert torch.equal(room[::2, 1].contiguous().view(torch.uint8), want)
        assert not room[1::2].view(torch.uint8).any()
        assert not room[:, 0].contiguous().view(torch.uint8).any()
        k = prefix.gather("k", 0, torch.arange(TOKENS).expand(2, TOKENS))
        want_heads = raw.reshape(TOKENS, 2, 32).permute(1, 0, 2)
        assert torch.equal(k, want_heads)
        batched = ns.gather("kv", 0, [prefix, prefix], index.expand(2, 4))
        assert torch.equal(batched[1], want)


def test_torch_rows_of_a_sequence(ns: Namespace) -> None:
    torch = pytest.importorskip("torch")
    kv = torch.randn(10, 32, dtype=torch.float32).to(torch.bfloat16)
    k = torch.randn(2, 10, 8, dtype=torch.float32)
    with ns.sequence() as seq:
        seq.extend(torch.arange(10))
        for layer in range(2):
            seq.write("kv", layer, kv)
        seq.write("k", 0, k)
        out = torch.empty_like(kv)
        seq.gather("kv", 1, torch.arange(10), out=out)
        assert torch.equal(out, kv)
        heads = seq.gather("k", 0, torch.arange(10).expand(2, 10))
        assert torch.equal(heads.view(torch.float32), k)


def test_torch_off_the_cpu(ns: Namespace, keys: Keys, prefix: Prefix) -> None:
    torch = pytest.importorskip("torch")
    away = torch.empty((1, 64), dtype=torch.uint8, device="meta")
    with pytest.raises(errors.ArgumentError, match="CPU memory"):
        prefix.gather("kv", 0, [0], out=away)
    with pytest.raises(errors.ArgumentError, match="CPU memory"):
        prefix.gather("kv", 0, torch.empty(1, dtype=torch.int64, device="meta"))
    with ns.sequence() as seq:
        seq.extend([1])
        with pytest.raises(errors.ArgumentError, match="CPU memory"):
            seq.write("kv", 0, away)
    with pytest.raises(errors.ArgumentError, match="float32"):
        prefix.gather("kv", 0, torch.tensor([0.0]))


def test_a_tensor_that_wants_gradients(ns: Namespace, keys: Keys) -> None:
    torch = pytest.importorskip("torch")
    rows = torch.randn(PAGES, 8, 16, requires_grad=True)
    store(ns, keys, rows)
    with ns.pin(keys) as prefix:
        got = prefix.gather("kv", 1, torch.arange(TOKENS))
    assert torch.equal(got.view(torch.float32), rows.detach().reshape(TOKENS, 16))


def test_dlpack_in_and_out(ns: Namespace, keys: Keys, rows: np.ndarray) -> None:
    store(ns, keys, OnlyDLPack(rows.view(np.float32)))
    with ns.pin(keys) as prefix:
        index = np.array([0, 9, -1], np.int32)
        want = rows.reshape(TOKENS, 64)[index]
        want[2] = 0
        assert np.array_equal(prefix.gather("kv", 0, OnlyDLPack(index)), want)
        out = OnlyDLPack(np.empty((3, 8), np.float64))
        assert prefix.gather("kv", 0, index, out=out) is out
        assert np.array_equal(out.array.view(np.uint8), want)


def test_gpu_memory_is_refused(ns: Namespace, keys: Keys, prefix: Prefix) -> None:
    gpu = OnGpu(np.empty((1, 64), np.uint8))
    with pytest.raises(errors.ArgumentError, match="CPU memory") as caught:
        prefix.gather("kv", 0, [0], out=gpu)
    assert "out" in str(caught.value)
    with pytest.raises(errors.ArgumentError, match=r"tokens.*CPU memory"):
        prefix.gather("kv", 0, gpu)
    with ns.sequence() as seq:
        seq.extend([1])
        with pytest.raises(errors.ArgumentError, match=r"rows.*CPU memory"):
            seq.write("kv", 0, gpu)


def test_a_read_only_target_is_refused(prefix: Prefix) -> None:
    out = np.zeros((1, 64), np.uint8)
    out.flags.writeable = False
    with pytest.raises(errors.ArgumentError, match="read-only"):
        prefix.gather("kv", 0, [0], out=out)
    assert not out.any()
    with pytest.raises(errors.ArgumentError, match="writable"):
        prefix.gather("kv", 0, [0], out=bytes(64))
    with pytest.raises(errors.ArgumentError, match="read-only"):
        prefix.gather("kv", 0, [0], out=prefix.view("kv", 0, 0)[:1])


def test_structured_and_object_arrays(ns: Namespace, keys: Keys, prefix: Prefix) -> None:
    del prefix
    odd = ns.keys(range(1000, 1000 + TOKENS))
    with ns.put(odd) as batch:
        for bad in (
            np.full((PAGES, 8, 8), None, object),
            np.array(["a"]),
            None,
            "rows",
            {"a": 1},
        ):
            with pytest.raises(errors.ArgumentError, match="rows"):
                batch.write("kv", 0, bad)
        batch.close()
