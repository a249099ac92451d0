# SPDX-License-Identifier: Apache-2.0
"""Transfers between pages and GPU memory from Python, on a CUDA driver that runs on the CPU.

Arrays that stand for GPU memory are numpy's behind ``__cuda_array_interface__``.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from unit import fake_gpu

import libsac
from libsac import Layout, Plane, errors, gpu

PAGE, PAGES = 8, 5
TOKENS = PAGE * PAGES
LAYOUT = Layout(
    [
        Plane("latent", [0, 2], 48, row_pitch=64),
        Plane("keys", [0, 1, 2], 12, group="keys"),
        Plane("k", [1], 16, heads=3, group="kv"),
        Plane("packed", [0], 24, tokens_per_row=4, group="packed"),
    ],
    PAGE,
)


class Gpu:
    """An array in the memory of the fake GPU."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "typestr": self.array.dtype.str,
            "shape": self.array.shape,
            "strides": self.array.strides,
            "data": (self.array.ctypes.data, not self.array.flags.writeable),
            "version": 3,
        }


@pytest.fixture(scope="module", autouse=True)
def fake() -> None:
    fake_gpu.use()


@pytest.fixture
def ns() -> Iterator[libsac.Namespace]:
    with libsac.embedded("16M") as pool:
        yield pool.namespace("ns", LAYOUT)


def values(rng: np.random.Generator, tokens: int = TOKENS) -> dict[str, NDArray[np.uint8]]:
    """For each plane (layers, heads, rows, row_bytes)."""
    return {
        p.name: rng.integers(
            0, 256, (len(p.layers), p.heads, tokens // p.tokens_per_row, p.row_bytes), np.uint8
        )
        for p in LAYOUT.planes
    }


def filled(ns: libsac.Namespace, rng: np.random.Generator) -> tuple[Any, Any]:
    """A pinned prefix and its values."""
    all_values = values(rng)
    keys = ns.keys(range(TOKENS))
    with ns.put(keys) as put:
        gpu.put(put, {n: Gpu(v) for n, v in all_values.items()}, "layer head token")
    return ns.pin(keys), all_values


def check(ns: libsac.Namespace, reader: Any, all_values: dict[str, NDArray[np.uint8]]) -> None:
    for p in LAYOUT.planes:
        for i, layer in enumerate(p.layers):
            for head in range(p.heads):
                got = reader.gather(p.name, layer, head=head if p.heads > 1 else None)
                assert np.array_equal(got, all_values[p.name][i, head]), (p.name, layer, head)


def paged(value: NDArray[np.uint8], order: str, block: int) -> NDArray[np.uint8]:
    """(layers, heads, rows, row) with its axes in another order, engine pages of block rows."""
    layers, heads, rows, row = value.shape
    split = value.reshape(layers, heads, rows // block, block, row)
    axis = {"layer": 0, "head": 1, "page": 2, "token": 3}
    return np.ascontiguousarray(split.transpose([axis[a] for a in order.split()] + [4]))


@pytest.mark.parametrize(
    "order",
    [
        "layer page token head",
        "page layer token head",
        "page head layer token",
        "layer page head token",
        "head layer token page",
    ],
)
def test_any_order_of_dimensions(
    ns: libsac.Namespace, rng: np.random.Generator, order: str
) -> None:
    all_values = values(rng)
    keys = ns.keys(range(TOKENS))
    with ns.put(keys) as put:
        gpu.put(put, {n: Gpu(paged(v, order, 2)) for n, v in all_values.items()}, order)
        assert put.commit() == PAGES
    check(ns, ns.pin(keys), all_values)


def test_slots_blocks_and_one_tensor_a_layer(
    ns: libsac.Namespace, rng: np.random.Generator
) -> None:
    all_values = values(rng)
    planes = [p for p in LAYOUT.planes if p.tokens_per_row == 1]
    slots = rng.permutation(TOKENS + 24)[:TOKENS]
    blocks = rng.permutation(PAGES + 3)[:PAGES]
    for name, given in (
        ("slots", Gpu(slots)),
        ("slots", slots),
        ("slots", list(slots)),
        ("", 0),
    ):
        keys = ns.keys(range(TOKENS), salt=f"{name}{type(given)}".encode())
        with ns.put(keys) as put:
            gpu.put(put, {"packed": Gpu(all_values["packed"])}, "layer head token")
            for p in planes:
                value = all_values[p.name].transpose(0, 2, 1, 3)  # layers, tokens, heads, row
                pool = np.zeros((len(p.layers), TOKENS + 24, p.heads, p.row_bytes), np.uint8)
                if name:
                    pool[:, slots] = value
                    tensors: Any = [Gpu(layer) for layer in pool]
                    gpu.put(put, {p.name: tensors}, "token head", slots=given)
                else:
                    paged_pool = pool.reshape(
                        len(p.layers), PAGES + 3, PAGE, p.heads, p.row_bytes
                    )
                    paged_pool[:, blocks] = value.reshape(
                        len(p.layers), PAGES, PAGE, p.heads, p.row_bytes
                    )
                    gpu.put(
                        put, {p.name: Gpu(paged_pool)}, "layer page token head", blocks=blocks
                    )
        check(ns, ns.pin(keys), all_values)


def test_other_dtypes_layers_and_pages_one_by_one(
    ns: libsac.Namespace, rng: np.random.Generator
) -> None:
    all_values = values(rng)
    keys = ns.keys(range(TOKENS))
    mover = gpu.Mover(ns)
    with ns.put(keys) as put:
        for p in LAYOUT.planes:
            halves = all_values[p.name].view(np.float16)
            for i, layer in enumerate(p.layers):
                for page in range(PAGES):
                    part = halves[i : i + 1, :, page * p.rows : (page + 1) * p.rows]
                    slots = range(p.rows)
                    mover.put(
                        put,
                        {p.name: Gpu(part)},
                        {p.name: "layer head token"},
                        layers=[layer],
                        first=page,
                        slots={p.name: list(slots)},
                    )
        assert mover.ready(put)
    check(ns, ns.pin(keys), all_values)


def test_a_missing_layer_and_a_wrong_slot_commit_nothing(
    ns: libsac.Namespace, rng: np.random.Generator
) -> None:
    all_values = {n: Gpu(v) for n, v in values(rng).items()}
    keys = ns.keys(range(TOKENS))
    with ns.put(keys) as put:
        first = {"keys": Gpu(all_values["keys"].array[:1])}
        gpu.put(put, first, "layer head token", layers=[0])
        with pytest.raises(errors.IncompleteError):
            put.commit()
        put.close()
    with ns.put(keys) as put:
        gpu.put(put, all_values, "layer head token")
        wrong = np.arange(TOKENS)
        wrong[7] = TOKENS
        latent = {"latent": all_values["latent"]}
        gpu.put(put, latent, "layer head token", slots=wrong)
        with pytest.raises(errors.RangeError, match="slot"):
            put.commit()
        put.close()
    assert ns.longest(keys) == 0


def test_a_sequence_grows_from_gpu_memory(
    ns: libsac.Namespace, rng: np.random.Generator
) -> None:
    all_values = values(rng)
    with ns.sequence() as sequence:
        at = 0
        for n in (4, 20, 16):
            sequence.extend(range(at, at + n))
            for p in LAYOUT.planes:
                per = p.tokens_per_row
                part = all_values[p.name][:, :, at // per : (at + n) // per]
                gpu.put(sequence, {p.name: Gpu(part)}, "layer head token")
            at += n
        assert sequence.flush() > 0
        check(ns, sequence, all_values)
    assert ns.longest(ns.keys(range(TOKENS))) == PAGES


def test_sources_stay_while_the_put_reads_them(
    ns: libsac.Namespace, rng: np.random.Generator
) -> None:
    class Noted(Gpu):
        gone = 0

        def __del__(self) -> None:
            Noted.gone += 1

    put = ns.put(ns.keys(range(TOKENS)))
    gpu.put(put, {n: Noted(v) for n, v in values(rng).items()}, "layer head token")
    gc.collect()
    assert Noted.gone == 0
    put.close()
    del put
    gc.collect()
    assert Noted.gone == len(LAYOUT.planes)


def test_bad_puts_are_refused_with_the_plane_named(
    ns: libsac.Namespace, rng: np.random.Generator
) -> None:
    good = values(rng)["latent"]
    with ns.put(ns.keys(range(TOKENS))) as put:
        for planes, axes, options, said in (
            ({"latent": good}, "layer head token", {}, "GPU memory"),
            ({"latent": Gpu(good)}, "layer token", {}, "48"),
            ({"latent": Gpu(good)}, "layer head head", {}, "each once"),
            ({"latent": Gpu(good)}, "layer head place", {}, "each once"),
            ({"latent": Gpu(good)}, 7, {}, "each once"),
            ({"latent": Gpu(good)}, {}, {}, "latent"),
            ({"latent": Gpu(good[:1])}, "layer head token", {}, "layers"),
            ({"latent": [Gpu(good)]}, "layer head token", {}, "list"),
            ({"latent": Gpu(good[0])}, "head token", {}, "list"),
            ({"latent": []}, "head token", {}, "one shape"),
            ({"latent": [Gpu(good[0]), Gpu(good[1, :, 1:])]}, "head token", {}, "one shape"),
            ({"latent": Gpu(good[:, :, :, ::2])}, "layer head token", {}, "contiguous"),
            ({"k": Gpu(good[:1])}, "layer head token", {}, "16"),
            ({"latent": Gpu(good)}, "layer head token", {"blocks": [0]}, "page"),
            ({"latent": Gpu(good)}, "layer head token", {"slots": [0.5] * 40}, "slots"),
            ({"latent": Gpu(good)}, "layer head token", {"slots": [0] * 7}, "whole pages"),
            (
                {"latent": Gpu(good)},
                "layer head token",
                {"slots": [0], "blocks": [0]},
                "not both",
            ),
            ({"latent": Gpu(good)}, "layer head token", {"stream": "x"}, "stream"),
            (
                {"latent": Gpu(good)},
                "layer head token",
                {"slots": Gpu(np.zeros(40, np.int32))},
                "int64",
            ),
        ):
            with pytest.raises(errors.ArgumentError, match=said):
                gpu.put(put, planes, axes, **options)  # type: ignore[arg-type]
        with pytest.raises(errors.NotFoundError):
            gpu.put(put, {"none": Gpu(good)}, "layer head token")
        with pytest.raises(errors.RangeError):
            gpu.put(put, {"latent": Gpu(good)}, "layer head token", layers=[0, 1])
        with pytest.raises(errors.RangeError):
            gpu.put(put, {"latent": Gpu(good[:, :, :9])}, "layer head token")
        put.close()
    with pytest.raises(errors.ArgumentError, match="Put or a Sequence"):
        gpu.put(ns, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["gpu", "cpu"])
def test_gathers_bring_what_the_cores_gather_brings(
    ns: libsac.Namespace, rng: np.random.Generator, path: gpu.path.Path
) -> None:
    prefix, _ = filled(ns, rng)
    for p in LAYOUT.planes:
        for head in (None, p.heads - 1):
            heads = (p.heads,) if p.heads > 1 and head is None else ()
            tokens = rng.integers(-1, TOKENS, (2, *heads, 33))
            want = ns.gather(p.name, p.layers[-1], [prefix, prefix], tokens, head=head)
            out = Gpu(np.full_like(want, 7))
            got = gpu.gather(
                ns,
                p.name,
                p.layers[-1],
                [prefix, prefix],
                tokens,
                head=head,
                out=out,
                path=path,
            )
            assert got is out
            assert np.array_equal(out.array, want)
            rows = np.where(tokens < 0, -1, tokens // p.tokens_per_row).astype(np.int32)
            out.array[...] = 9
            options: dict[str, Any] = {
                "rows": Gpu(rows),
                "head": head,
                "out": out,
                "path": path,
            }
            gpu.gather(ns, p.name, p.layers[-1], [prefix, prefix], **options)
            assert np.array_equal(out.array, want)


@pytest.mark.parametrize("path", ["gpu", "cpu"])
@pytest.mark.parametrize("bad", [TOKENS, -2, 2**40, -(2**40)])
def test_wrong_tokens(
    ns: libsac.Namespace, rng: np.random.Generator, path: gpu.path.Path, bad: int
) -> None:
    prefix, _ = filled(ns, rng)
    tokens = np.array([[0, bad, 3]])
    out = Gpu(np.full((1, 3, 48), 7, np.uint8))
    with pytest.raises(errors.RangeError):
        gpu.gather(ns, "latent", 0, [prefix], tokens, out=out, path=path)
    assert (out.array == 7).all()
    if abs(bad) > 2**31:
        return
    mover = gpu.Mover(ns, path=path)
    mover.gather("latent", 0, [prefix], rows=Gpu(tokens.astype(np.int32)), out=out)
    assert not out.array[0, 1].any()
    assert np.array_equal(out.array[0, 2], prefix.gather("latent", 0, [3])[0])
    faults: list[gpu.Fault] = []
    for _ in range(1000):
        faults += mover.faults()
        if faults:
            break
        time.sleep(0.001)
    assert faults == [gpu.Fault(mover.last, 0, frozenset({"range"}))]


def test_the_mover_says_which_path_and_why(
    ns: libsac.Namespace, rng: np.random.Generator
) -> None:
    prefix, _ = filled(ns, rng)
    with gpu.Mover(ns, threads=2) as mover:
        assert mover.info().path == "auto"
        out = Gpu(np.zeros((1, 3, 48), np.uint8))
        mover.gather("latent", 0, [prefix], [[1, 2, 3]], out=out)
        info = mover.info()
        assert info.path == ("gpu" if info.gpu_us <= info.cpu_us else "cpu")
        assert "2048 rows of 48 bytes" in info.why
        assert info.why in repr(mover)
        assert 1 <= info.threads <= 2
        assert info.staging_bytes > 0
    with pytest.raises(errors.ClosedError):
        mover.info()
    with gpu.Mover(ns, path="cpu") as mover:
        assert mover.info().forced
        with pytest.raises(errors.ArgumentError, match="registered"):
            mover.gather("latent", 0, [prefix], [[1]], out=Gpu(out.array[:, :1]), path="gpu")


def test_bad_gathers_are_refused(ns: libsac.Namespace, rng: np.random.Generator) -> None:
    prefix, _ = filled(ns, rng)
    out = Gpu(np.zeros((1, 2, 48), np.uint8))
    frozen = np.zeros((1, 2, 48), np.uint8)
    frozen.flags.writeable = False
    for options, said in (
        ({"tokens": [[1, 2]]}, "give out"),
        ({"tokens": [[1, 2]], "out": out.array}, "GPU memory"),
        ({"tokens": [[1, 2]], "out": Gpu(frozen)}, "read-only"),
        ({"tokens": [[1, 2]], "out": Gpu(np.zeros((1, 2, 40), np.uint8))}, "48"),
        ({"tokens": [[1, 2, 3]], "out": out}, "begin with"),
        ({"tokens": [1, 2], "out": out}, "shape"),
        ({"tokens": [[1, 2]], "rows": [[1, 2]], "out": out}, "tokens or rows"),
        ({"out": out}, "tokens or rows"),
        ({"tokens": [[1.5, 2]], "out": out}, "int32"),
        ({"rows": Gpu(np.zeros((1, 2), np.int64)), "out": out}, "int32"),
        ({"tokens": [[1, 2]], "out": out, "path": "dma"}, "path"),
    ):
        with pytest.raises(errors.ArgumentError, match=said):
            gpu.gather(ns, "latent", 0, [prefix], **options)
    with pytest.raises(errors.ArgumentError, match="list"):
        gpu.gather(ns, "latent", 0, prefix, [[1, 2]], out=out)
    with pytest.raises(errors.RangeError):
        gpu.gather(ns, "latent", 1, [prefix], [[1, 2]], out=out)
    prefix.close()
    with pytest.raises(errors.ClosedError):
        gpu.gather(ns, "latent", 0, [prefix], [[1, 2]], out=out)


def test_a_closed_pool_lets_go_of_its_files(tmp_path: Any, rng: np.random.Generator) -> None:
    where = str(tmp_path / "pool")
    for _ in range(2):
        with libsac.embedded("16M", path=where) as pool:
            space = pool.namespace("ns", LAYOUT)
            prefix, _values = filled(space, rng)
            prefix.close()
