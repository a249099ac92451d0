# SPDX-License-Identifier: Apache-2.0
"""What a recorder accepts its reader reads: everything else is refused at the call, by name."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libsac.errors import ArgumentError, GpuError, SystemCallError
from libsac.trace import Bound, Lost, Recorder, Selection, Trace
from libsac.trace_check import selection
from libsac.trace_file import Writer
from libsac.trace_ring import Slot

ONE = np.zeros((1, 4), np.int32)


def small(path: Path, **more: Any) -> Recorder:
    return Recorder(path, **{"top_k": 4, "requests": 4, **more})


def events(path: Path) -> list[Any]:
    with Trace(path) as trace:
        found = list(trace)
        assert not trace.truncated
    return found


Call = Callable[[Any], Any]
WRONG: list[tuple[Call, str]] = [
    (lambda r: r.record(0, 0, [9], ONE), "request is 9; 0 to 3 are allowed"),
    (lambda r: r.record(0, 0, [-1], ONE), "request is -1; 0 to 3"),
    (lambda r: r.record(0, 0, [2**32], ONE), "requests have 4294967296"),
    (lambda r: r.record(0, 0, [0.5], ONE), "requests are float64"),
    (lambda r: r.record(0, 0, [True], ONE), "requests are bool"),
    (lambda r: r.record(0, 0, 0, ONE), r"requests have the shape \(\); \(B,\)"),
    (lambda r: r.record(0, 0, [[0]], ONE), "requests have the shape"),
    (lambda r: r.record(0, 0, None, ONE), "requests are object"),
    (lambda r: r.record("latent", 0, [0], ONE), "group is 'latent'.*watch"),
    (lambda r: r.record(-1, 0, [0], ONE), "group is -1; 0 to 4294967295"),
    (lambda r: r.record(0, -1, [0], ONE), "layer is -1; 0 to"),
    (lambda r: r.record(0, 1 << 32, [0], ONE), "layer is 4294967296"),
    (lambda r: r.record(0, 1.0, [0], ONE), "layer is 1.0; a whole number"),
    (lambda r: r.record(0, True, [0], ONE), "layer is a bool"),
    (lambda r: r.record(0, 0, [0], ONE + 0.5), "tokens are float64; whole numbers"),
    (lambda r: r.record(0, 0, [0], [[2**32 + 5]]), "tokens have 4294967301; -2.31 to"),
    (lambda r: r.record(0, 0, [0], [[-(2**31) - 1]]), "tokens have -2147483649"),
    (lambda r: r.record(0, 0, [0], np.array([[2**63]], np.uint64)), "tokens have 92233"),
    (lambda r: r.record(0, 0, [0], [[2**70]]), "tokens are object"),
    (lambda r: r.record(0, 0, [0], [[1], [2, 3]]), "tokens cannot be read as numbers"),
    (lambda r: r.record(0, 0, [0], "1"), "tokens are <U1"),
    (lambda r: r.record(0, 0, [0], 7), r"tokens have the shape \(\)"),
    (lambda r: r.bind(0, -4), "units is -4; 0 to 2147483647"),
    (lambda r: r.bind(0, 2**31), "units is 2147483648"),
    (lambda r: r.bind(0, 1.5), "units is 1.5"),
    (lambda r: r.bind("a", 1), "request is 'a'"),
    (lambda r: r.bind(4, 1), "request is 4; 0 to 3"),
    (lambda r: r.release(None), "request is None"),
    (lambda r: r.prepare(0), "batch is 0; 1 to 4"),
    (lambda r: r.prepare("2"), "batch is '2'"),
    (lambda r: r.watch("x"), "buffer is 'x'; a libsac.HotBuffer is needed"),
]


@pytest.mark.parametrize(("call", "says"), WRONG)
def test_wrong_calls_leave_the_trace_whole(tmp_path: Path, call: Call, says: str) -> None:
    with small(tmp_path / "t") as recorder:
        with pytest.raises(ArgumentError, match=says):
            call(recorder)
        assert (recorder.recorded, recorder.lost) == (0, 0)
        recorder.record(1, 2, [3], ONE)
    assert [e.group for e in events(tmp_path / "t")] == [1]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"top_k": "many"}, "top_k is 'many'"),
        ({"top_k": 65537}, "top_k is 65537; 1 to 65536"),
        ({"heads": 1.0}, "heads is 1.0"),
        ({"requests": True}, "requests is a bool"),
        ({"ring": 1.5}, "ring is 1.5"),
        ({"ring": 1 << 40}, "ring is"),
        ({"metadata": [1]}, "metadata is a list"),
        ({"metadata": {"a": object()}}, "metadata cannot be written as JSON"),
        ({"metadata": {"a": float("nan")}}, "metadata cannot be written as JSON"),
        ({"metadata": {1: 0, "a": 1}}, "metadata cannot be written as JSON"),
        ({"metadata": {"a": "x" * 70_000}}, "metadata has 700"),
    ],
)
def test_wrong_options_leave_no_file(tmp_path: Path, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        small(tmp_path / "t", **wrong)
    assert list(tmp_path.iterdir()) == []


numbers = st.one_of(
    st.integers(-3, 6),
    st.sampled_from([2**31 - 1, 2**31, 2**32, -(2**31), 2**64, 0.5, True, None, "a"]),
)


@settings(max_examples=150, deadline=None)
@given(calls=st.lists(st.tuples(st.sampled_from("rbx"), *[numbers] * 4), max_size=6))
def test_any_call_is_refused_or_read(calls: Any, tmp_path_factory: Any) -> None:
    """Nothing but ArgumentError comes, and what was accepted is in the file."""
    path = tmp_path_factory.mktemp("t") / "t"
    accepted = 0
    with small(path) as recorder:
        for kind, a, b, c, d in calls:
            try:
                if kind == "r":
                    recorder.record(a, b, [c], [[d]])
                elif kind == "b":
                    recorder.bind(a, b, c)
                else:
                    recorder.release(a)
                accepted += 1
            except ArgumentError:
                continue
    assert len(events(path)) == accepted


def test_plain_lists_and_narrow_types_are_numbers(tmp_path: Path) -> None:
    recorder: Any
    with small(tmp_path / "t") as recorder:
        recorder.record(np.int64(1), np.uint8(2), (3,), [[1, 2]])
        recorder.record(0, 0, np.array([3], np.uint8), np.array([[1, 2]], np.uint64))
        recorder.record(0, 0, [3], np.array([[1, 2]], ">i4"))
        recorder.bind(np.int32(3), np.int64(7), fresh=5)
    found = events(tmp_path / "t")
    assert [e.tokens.tolist() for e in found[:3]] == [[[[1, 2]]]] * 3
    assert found[3] == Bound(3, 3, 7, True)


def test_a_selection_too_large_for_a_record(tmp_path: Path) -> None:
    """Its limits each are kept, its size is not."""
    shape = (5, 1024, 1 << 16)
    with Recorder(tmp_path / "t", top_k=1 << 16, heads=1024, requests=8) as recorder:
        tokens = np.broadcast_to(np.int32(1), shape)
        with pytest.raises(ArgumentError, match="Record fewer requests"):
            recorder.record(0, 0, range(5), tokens)
        with pytest.raises(ArgumentError, match="Record fewer requests"):
            recorder.prepare(5)
    assert events(tmp_path / "t") == []


def test_requests_of_a_gpu_that_there_are_not_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tensors in GPU memory only the writer sees the numbers."""
    wait = Slot.wait

    def arrived(self: Slot) -> Any:
        requests, tokens = wait(self)
        bad = {7: 4, 8: -1}.get(int(tokens[0, 0]))
        return (requests if bad is None else np.full_like(requests, bad)), tokens

    monkeypatch.setattr(Slot, "wait", arrived)
    recorder = small(tmp_path / "t")
    for value in (1, 7, 8, 2):
        assert recorder.record(0, 0, [0], ONE + value)
    recorder.close()
    assert (recorder.recorded, recorder.lost) == (2, 2)
    found = events(tmp_path / "t")
    assert [type(e) for e in found] == [Selection, Lost, Lost, Selection]
    assert [e.number for e in found] == [0, 2, 3, 3]
    assert [e.count for e in found[1:3]] == [1, 1]


def test_the_writer_refuses_what_the_reader_would(tmp_path: Path) -> None:
    with (tmp_path / "t").open("wb") as out:
        writer = Writer(out, top_k=4, requests=4)
        for call in (
            lambda: writer.selection(0, -1, 0, np.array([0], np.int32), ONE),
            lambda: writer.bind(0, 4, 1),
            lambda: writer.bind(0, 0, 2**31),
            lambda: writer.release(0, -1),
        ):
            with pytest.raises(ArgumentError):
                call()
        for request in (4, -1):
            assert not writer.selection(0, 0, 0, np.array([request], np.int32), ONE)
        writer.bind(0, 1, 1, 7)  # type: ignore[arg-type]
    assert events(tmp_path / "t") == [Bound(0, 1, 1, True)]


# -------------------------------------------------------------------------------- files


def test_files_say_what_to_do(tmp_path: Path) -> None:
    small(tmp_path / "t").close()
    with pytest.raises(SystemCallError, match=r"File exists\. .*give another name") as caught:
        small(tmp_path / "t")
    assert caught.value.errno == errno.EEXIST
    with pytest.raises(SystemCallError, match="Create its folder first"):
        small(tmp_path / "absent" / "t")
    with pytest.raises(SystemCallError, match=r"Give a file that .*Recorder wrote"):
        Trace(tmp_path / "absent")
    for wrong in (7, None, "a\0b"):
        opens: tuple[Callable[[Any], Any], ...] = (small, Trace)
        for open_it in opens:
            with pytest.raises(ArgumentError, match="a file's name is needed"):
                open_it(wrong)


# ------------------------------------------------------------------------------- torch


def test_torch_types(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with small(tmp_path / "t") as recorder:
        for wrong in (torch.ones(1, 4), torch.ones(1, 4, dtype=torch.bfloat16)):
            with pytest.raises(ArgumentError, match="tokens"):
                recorder.record(0, 0, [0], wrong)
        with pytest.raises(ArgumentError, match="tokens have 4294967301"):
            recorder.record(0, 0, [0], torch.tensor([[2**32 + 5]]))
        with pytest.raises(ArgumentError, match="tokens lie on meta"):
            recorder.record(0, 0, [0], torch.ones((1, 4), dtype=torch.int32, device="meta"))
        with pytest.raises(ArgumentError, match="layer is a Tensor"):  # it may be on a GPU
            recorder.record(0, torch.tensor(0), [0], ONE)
    assert events(tmp_path / "t") == []


def test_no_cuda_is_a_gpu_error(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with small(tmp_path / "t") as recorder:
        recorder.prepare(2)
        recorder.prepare(2, torch.device("cpu"))
        with pytest.raises(GpuError, match="torch with CUDA are needed"):
            recorder.prepare(2, "cuda")
        for wrong in ("gpu0", "meta", None, object()):
            with pytest.raises(ArgumentError, match="device is"):
                recorder.prepare(2, wrong)
        recorder.record(0, 0, [0], ONE)
    assert len(events(tmp_path / "t")) == 1


def test_what_came_not_from_the_gpu_is_a_gpu_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Slot) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(Slot, "wait", fails)
    recorder = small(tmp_path / "t")
    recorder.record(0, 0, [0], ONE)
    with pytest.raises(GpuError, match="illegal memory access"):
        recorder.close()
    recorder = small(tmp_path / "u")
    recorder.record(0, 0, [0], ONE)
    recorder.__exit__(KeyError, None, None)  # the engine's own error matters more


class OnGpu:
    """Stands for a tensor in GPU memory: no number of it may be looked at."""

    is_cuda = True

    def __init__(self, shape: tuple[int, ...], dtype: str = "torch.int32") -> None:
        self.shape, self.ndim, self.dtype = shape, len(shape), dtype
        self.device = SimpleNamespace(type="cuda")

    def __len__(self) -> int:
        return self.shape[0]


@pytest.fixture
def gpu_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libsac.trace_check.is_torch", lambda value: isinstance(value, OnGpu))


@pytest.mark.usefixtures("gpu_tensors")
def test_tensors_on_a_gpu_by_their_types() -> None:
    writer = Writer(SimpleNamespace(write=len), top_k=4, requests=4)  # type: ignore[arg-type]
    there = OnGpu((2,)), OnGpu((2, 4))
    assert selection(writer, 0, 1, *there) == (0, 1, *there)
    assert selection(writer, 0, 1, [0, 3], there[1])[2].tolist() == [0, 3]
    for requests, tokens, says in (
        (there[0], OnGpu((2, 4), "torch.int64"), r"tokens are torch.int64.*tokens\.to\("),
        (there[0], OnGpu((2, 4), "torch.float32"), "tokens are torch.float32"),
        (OnGpu((2,), "torch.int64"), there[1], "requests are torch.int64"),
        (there[0], OnGpu((2, 5)), "5 units; 1 to 4"),
        (OnGpu((3,)), there[1], "with 3 requests"),
        (OnGpu((2, 1)), there[1], r"requests have the shape \(2, 1\)"),
        ([0, 4], there[1], "request is 4"),
        (there[0], [[1], [2]], "requests lie on .*both in GPU memory"),  # to copy waits
    ):
        with pytest.raises(ArgumentError, match=says):
            selection(writer, 0, 1, requests, tokens)
