# SPDX-License-Identifier: Apache-2.0
"""Traces: what is recorded is read again, nothing waits, and hostile files are refused."""

from __future__ import annotations

import errno
import os
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libsac.errors import (
    ArgumentError,
    ClosedError,
    CorruptError,
    SystemCallError,
    VersionError,
)
from libsac.trace import Bound, Lost, Recorder, Released, Selection, Trace
from libsac.trace_file import Writer
from libsac.trace_ring import Slot

HEADER, RECORD = 56, 48


def events(path: Path) -> list[Any]:
    with Trace(path) as trace:
        return list(trace)


def plain(event: Any) -> Any:
    """An event as something that == compares."""
    if isinstance(event, Selection):
        return (
            event.number,
            event.group,
            event.layer,
            event.requests.tolist(),
            event.tokens.tolist(),
        )
    return event


def small(path: Path, **more: Any) -> Recorder:
    return Recorder(path, **{"top_k": 4, "requests": 3, **more})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A trace with a record of every kind but "lost"."""
    path = tmp_path / "a.sactrace"
    with small(path, metadata={"model": "x"}) as recorder:
        recorder.bind(2, 100)
        recorder.record(0, 5, [2, 0], np.array([[3, -1, 7, 7], [1, 2, 3, 4]]))
        recorder.release(2)
    return path


def rewritten(path: Path, at: int, fmt: str, value: Any) -> Path:
    """The file with a field of its first record changed and the CRC put right."""
    data = bytearray(path.read_bytes())
    start = HEADER + struct.unpack_from("<I", data, 32)[0]
    struct.pack_into(fmt, data, start + at, value)
    length = struct.unpack_from("<I", data, start + 12)[0]
    crc = zlib.crc32(data[start + 8 : start + RECORD + length])
    struct.pack_into("<I", data, start + 4, crc)
    path.write_bytes(data)
    return path


def headed(path: Path, at: int, fmt: str, value: Any, meta: bytes | None = None) -> Path:
    """The file with a field of its header changed and the CRC put right."""
    data = bytearray(path.read_bytes())
    end = HEADER + struct.unpack_from("<I", data, 32)[0]
    if meta is not None:
        data[HEADER:end] = meta
        struct.pack_into("<I", data, 32, len(meta))
        end = HEADER + len(meta)
    struct.pack_into(fmt, data, at, value)
    struct.pack_into("<I", data, 52, zlib.crc32(data[HEADER:end], zlib.crc32(data[:52])))
    path.write_bytes(data)
    return path


# ---------------------------------------------------------------------- recording, reading


def test_what_was_recorded_is_read(file: Path) -> None:
    with Trace(file) as trace:
        assert (trace.top_k, trace.heads, trace.block, trace.requests) == (4, 1, 1, 3)
        assert trace.metadata == {"model": "x"}
        found = [plain(event) for event in trace]
        assert found == [plain(event) for event in trace]  # a second time the same
        assert not trace.truncated
    tokens = [[[3, -1, 7, 7]], [[1, 2, 3, 4]]]
    assert found == [Bound(0, 2, 100, True), (0, 0, 5, [2, 0], tokens), Released(1, 2)]


def test_the_documented_bytes(file: Path) -> None:
    """docs/trace.md, field by field, read without the product."""
    data = file.read_bytes()
    head = struct.unpack_from("<8s7I16xI", data)
    meta = head[7]
    assert head[:7] == (b"SACTRACE", 1, 56, 4, 1, 1, 3)
    assert data[HEADER : HEADER + meta].rstrip() == b'{"model": "x"}'
    assert (HEADER + meta) % 8 == 0
    assert head[8] == zlib.crc32(data[HEADER : HEADER + meta], zlib.crc32(data[:52]))
    at = HEADER + meta
    found = []
    while at < len(data):
        magic, crc, kind, length, *what, number, zero = struct.unpack_from("<8I2Q", data, at)
        end = at + RECORD + length
        assert (magic, zero) == (0x54434153, 0)
        assert crc == zlib.crc32(data[at + 8 : end])
        found.append((kind, what, number, np.frombuffer(data[at + RECORD : end], "<i4")))
        at = end
    assert [f[:3] for f in found] == [
        (2, [2, 1, 100, 0], 0),
        (1, [0, 5, 2, 4], 0),
        (3, [2, 0, 0, 0], 1),
    ]
    assert found[1][3].tolist() == [2, 0, 3, -1, 7, 7, 1, 2, 3, 4]


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_calls_come_back_in_their_order(data: Any, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    heads = data.draw(st.integers(1, 3))
    expected: list[Any] = []
    number = 0
    with Recorder(path, top_k=5, heads=heads, requests=4, ring=1000) as recorder:
        for kind in data.draw(st.lists(st.sampled_from(["record", "bind", "release"]))):
            request = data.draw(st.integers(0, 3))
            if kind == "record":
                batch = data.draw(st.integers(1, 4))
                width = data.draw(st.integers(1, 5))
                values = st.integers(-(2**31), 2**31 - 1)
                flat = data.draw(
                    st.lists(
                        values, min_size=batch * heads * width, max_size=batch * heads * width
                    )
                )
                tokens = np.array(flat, np.int32).reshape(batch, heads, width)
                requests = np.arange(batch) % 4
                assert recorder.record(7, 60, requests, tokens)
                expected.append((number, 7, 60, requests.tolist(), tokens.tolist()))
                number += 1
            elif kind == "bind":
                fresh = data.draw(st.booleans())
                recorder.bind(request, 9, fresh)
                expected.append(Bound(number, request, 9, fresh))
            else:
                recorder.release(request)
                expected.append(Released(number, request))
    assert [plain(event) for event in events(path)] == expected


def test_the_caller_may_change_what_it_gave(tmp_path: Path) -> None:
    tokens = np.array([[1, 2, 3, 4]], np.int32)
    with small(tmp_path / "t") as recorder:
        for value in range(50):
            tokens[:] = value
            recorder.record(0, 0, [0], tokens)
    assert [e.tokens[0, 0, 0] for e in events(tmp_path / "t")] == list(range(50))


def test_torch_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with small(tmp_path / "t", heads=2) as recorder:
        recorder.record(1, 2, torch.tensor([1]), torch.tensor([[[1, 2], [3, 4]]]))
    assert [plain(e) for e in events(tmp_path / "t")] == [(0, 1, 2, [1], [[[1, 2], [3, 4]]])]


def test_a_full_ring_leaves_out_counts_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    wait = Slot.wait

    def slow(self: Slot) -> Any:
        assert go.wait(30)
        return wait(self)

    monkeypatch.setattr(Slot, "wait", slow)
    recorder = small(tmp_path / "t", ring=2)
    tokens = np.zeros((1, 4), np.int32)
    assert [recorder.record(0, n, [0], tokens) for n in range(5)] == [True, True] + [False] * 3
    assert (recorder.recorded, recorder.lost) == (2, 3)
    go.set()
    while not recorder.record(0, 9, [0], tokens):  # the writer gives slots back
        pass
    lost = recorder.lost
    recorder.close()
    found = events(tmp_path / "t")
    assert [type(e) for e in found] == [Selection, Selection, Lost, Selection]
    assert found[2].count == lost >= 3
    assert [e.number for e in found] == [0, 1, 2 + lost, 2 + lost]


def test_lost_at_the_end_is_said_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    wait = Slot.wait
    monkeypatch.setattr(Slot, "wait", lambda self: (go.wait(30), wait(self))[1])
    recorder = small(tmp_path / "t", ring=1)
    for _ in range(3):
        recorder.record(0, 0, [0], np.zeros((1, 4), np.int32))
    go.set()
    recorder.close()
    assert [type(e) for e in events(tmp_path / "t")] == [Selection, Lost]


class FakeBuffer:
    """Stands for a hot buffer: notes what it was called with."""

    block = 2

    def __init__(self) -> None:
        self.called: list[Any] = []

    def bind(self, request: int, source: Any, direct: bool = True) -> str:
        self.called.append(("bind", request, direct))
        return "bound"

    def resolve(self, group: str, layer: int, requests: Any, tokens: Any, out: Any = 0) -> str:
        self.called.append(("resolve", group, out))
        return "slots"

    def extend(self, requests: Any) -> None:
        self.called.append(("extend", requests))

    def truncate(self, request: int, tokens: int) -> None:
        self.called.append(("truncate", request, tokens))

    def release(self, request: int) -> None:
        self.called.append(("release", request))

    def stats(self) -> str:
        return "its own"


class FakeSource:
    tokens = 101


def test_a_watched_buffer_is_recorded(tmp_path: Path) -> None:
    buffer, source = FakeBuffer(), FakeSource()
    tokens = np.zeros((1, 4), np.int32)
    with small(tmp_path / "t", block=2) as recorder:
        watched = recorder.watch(buffer)
        assert watched.bind(1, source, direct=False) == "bound"
        assert watched.resolve("kv", 3, [1], tokens) == "slots"
        assert watched.resolve("other", 3, [1], tokens, out="o") == "slots"
        source.tokens = 103
        watched.extend([1])
        watched.extend(1)
        watched.truncate(1, 102)
        watched.release(1)
        assert watched.stats() == "its own"
    assert buffer.called == [
        ("bind", 1, False),
        ("resolve", "kv", 0),
        ("resolve", "other", "o"),
        ("extend", [1]),
        ("extend", 1),
        ("truncate", 1, 102),
        ("release", 1),
    ]
    found = events(tmp_path / "t")
    assert found[0] == Bound(0, 1, 51, True)
    assert [e.group for e in found[1:3]] == [0, 1]
    assert found[3:] == [
        Bound(2, 1, 52, False),
        Bound(2, 1, 52, False),
        Bound(2, 1, 51, False),
        Released(2, 1),
    ]


# ----------------------------------------------------------------------------- bad calls


@pytest.mark.parametrize(
    ("requests", "shape"),
    [
        ([0], (1, 5)),  # more than top_k
        ([0], (1, 0)),
        ([0, 1], (1, 4)),
        ([0], (1, 2, 4)),  # heads the trace does not have
        ([0], (4,)),
        ([], (0, 4)),
        ([0, 1, 2, 0], (4, 4)),  # more than the trace's requests
    ],
)
def test_wrong_shapes_are_refused(tmp_path: Path, requests: list[int], shape: Any) -> None:
    with small(tmp_path / "t") as recorder:
        with pytest.raises(ArgumentError):
            recorder.record(0, 0, requests, np.zeros(shape, np.int32))
        assert recorder.recorded == 0
    assert events(tmp_path / "t") == []


@pytest.mark.parametrize("wrong", [{"top_k": 0}, {"heads": 0}, {"block": 129}, {"ring": 0}])
def test_wrong_limits_leave_no_file(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ArgumentError):
        small(tmp_path / "t", **wrong)
    assert list(tmp_path.iterdir()) == []


def test_request_numbers_are_checked(tmp_path: Path) -> None:
    with small(tmp_path / "t") as recorder:
        for call in (recorder.release, lambda n: recorder.bind(n, 1)):
            for number in (-1, 3):
                with pytest.raises(ArgumentError):
                    call(number)


def test_the_file_is_private_and_new(tmp_path: Path) -> None:
    with small(tmp_path / "t"):
        assert (tmp_path / "t").stat().st_mode & 0o777 == 0o600
    with pytest.raises(SystemCallError) as caught:
        small(tmp_path / "t")
    assert caught.value.errno == errno.EEXIST


def test_a_closed_recorder(tmp_path: Path) -> None:
    recorder = small(tmp_path / "t")
    recorder.close()
    recorder.close()
    with pytest.raises(ClosedError):
        recorder.record(0, 0, [0], np.zeros((1, 4), np.int32))
    with pytest.raises(ClosedError):
        recorder.bind(0, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open
    monkeypatch.setattr(os, "open", lambda *a: real("/dev/full", os.O_WRONLY))
    with pytest.raises(SystemCallError, match="cannot write the trace") as caught:
        small(tmp_path / "t")
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_disk_that_fills_up_is_told(tmp_path: Path) -> None:
    recorder = small(tmp_path / "t")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recorder._file.fileno())
    os.close(full)
    recorder.record(0, 0, [0], np.zeros((1, 4), np.int32))
    with pytest.raises(SystemCallError, match="cannot write the trace") as caught:
        recorder.close()
    assert caught.value.errno == errno.ENOSPC
    assert events(tmp_path / "t") == []


# --------------------------------------------------------------------------- hostile files


def test_every_truncation_is_said_or_refused(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    whole = [plain(e) for e in events(file)]
    starts = []
    at = HEADER + struct.unpack_from("<I", data, 32)[0]
    while at < len(data):
        starts.append(at)
        at += RECORD + struct.unpack_from("<I", data, at + 12)[0]
    cut = tmp_path / "cut"
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        if size < starts[0]:
            with pytest.raises(CorruptError):
                Trace(cut)
            continue
        with Trace(cut) as trace:
            found = [plain(e) for e in trace]
            assert found == whole[: sum(s <= size for s in [*starts[1:], len(data)])]
            assert trace.truncated == (size not in starts)


def test_every_changed_byte_is_noticed(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    changed = tmp_path / "changed"
    for at in range(len(data)):
        for bit in (1, 0x80):
            other = bytearray(data)
            other[at] ^= bit
            changed.write_bytes(other)
            try:
                with Trace(changed) as trace:
                    found = list(trace)
                    # A length that grew past the end of the file looks like a cut.
                    assert trace.truncated, at
                    assert len(found) < 3
            except (CorruptError, VersionError):
                continue


@pytest.mark.parametrize(
    ("at", "fmt", "value", "meta"),
    [
        (16, "<I", 0, None),
        (16, "<I", 1 << 17, None),
        (20, "<I", 0, None),
        (24, "<I", 129, None),
        (28, "<I", 0, None),
        (12, "<I", 64, None),
        (32, "<I", 1 << 31, None),
        (36, "<I", 0, b"[]"),
        (36, "<I", 0, b"\xff\xfe"),
        (36, "<I", 0, b"[" * 60_000),
    ],
)
def test_headers_that_lie(file: Path, at: int, fmt: str, value: int, meta: Any) -> None:
    if at == 32:
        data = bytearray(file.read_bytes())
        struct.pack_into(fmt, data, at, value)
        file.write_bytes(data)
    else:
        headed(file, at, fmt, value, meta)
    with pytest.raises(CorruptError, match="no sound trace") as caught:
        Trace(file)
    assert caught.value.offset is not None


def test_another_version_is_named(file: Path) -> None:
    with pytest.raises(VersionError, match="version 2"):
        Trace(headed(file, 8, "<I", 2))


@pytest.mark.parametrize(
    ("kind", "what", "payload"),
    [
        (0, (0, 0, 0, 0), b""),
        (5, (0, 0, 0, 0), b""),
        (1, (0, 0, 0, 4), b""),  # no requests
        (1, (0, 0, 1, 0), b"\0" * 4),
        (1, (0, 0, 1, 5), b"\0" * 24),  # more than top_k
        (1, (0, 0, 1, 4), b"\0" * 16),  # too short
        (1, (0, 0, 1, 4), b"\0" * 24),  # too long
        (1, (0, 0, 0xFFFFFFFF, 4), b"\0" * 20),
        (1, (0, 0, 1, 4), struct.pack("<5i", 3, 1, 1, 1, 1)),  # request 3 of 3
        (1, (0, 0, 1, 4), struct.pack("<5i", -1, 1, 1, 1, 1)),
        (2, (3, 1, 1, 0), b""),
        (2, (0, 2, 1, 0), b""),
        (2, (0, 1, 1 << 31, 0), b""),
        (2, (0, 1, 1, 0), b"\0" * 4),
        (3, (3, 0, 0, 0), b""),
    ],
)
def test_records_that_lie(tmp_path: Path, kind: int, what: Any, payload: bytes) -> None:
    path = tmp_path / "t"
    with path.open("wb") as out:
        Writer(out, top_k=4, requests=3)
        tail = struct.pack("<2I4I2Q", kind, len(payload), *what, 0, 0) + payload
        out.write(struct.pack("<2I", 0x54434153, zlib.crc32(tail)) + tail)
    with Trace(path) as trace, pytest.raises(CorruptError, match="no sound trace"):
        list(trace)


def test_a_length_beyond_the_file_is_not_believed(file: Path) -> None:
    # 2^30 - 4 bytes of a file of some hundred: nothing is allocated for it.
    with Trace(rewritten(file, 12, "<I", (1 << 30) - 4)) as trace:
        assert list(trace) == []
        assert trace.truncated
    with Trace(rewritten(file, 12, "<I", 0xFFFFFFFC)) as trace, pytest.raises(CorruptError):
        list(trace)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SystemCallError) as caught:
        Trace(tmp_path / "absent")
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(SystemCallError):
        Trace(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SystemCallError, match="Illegal seek"):
        Trace(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    with pytest.raises(CorruptError):
        Trace(tmp_path / "empty")


def test_a_closed_trace(file: Path) -> None:
    trace = Trace(file)
    trace.close()
    trace.close()
    with pytest.raises(ClosedError):
        list(trace)
