# SPDX-License-Identifier: Apache-2.0
"""Hostile trace files: read or refused by name, in memory and work by the size of the file."""

from __future__ import annotations

import random
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from libsac.errors import CorruptError, SacError
from libsac.trace import Trace
from libsac.trace_file import BIND, HEADER, LOST, RECORD, RELEASE, SELECTION
from sacctl.bench.policy import MAX_SLOTS, POLICIES, policy
from sacctl.errors import UsageError

TABLES = 16 << 20  # of request numbers, 12 MiB at most, and of units looked at together


def header(top_k: int = 4, heads: int = 1, requests: int = 4, block: int = 1) -> bytes:
    """Of a trace, with the right checksum whatever it says."""
    meta = b"{}" + b" " * (-(HEADER.size + 2) % 8)
    limits = (top_k, heads, block, requests)
    head = HEADER.pack(b"SACTRACE", 1, HEADER.size, *limits, len(meta), 0, 0, 0, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(meta, zlib.crc32(head))) + meta


def record(kind: int, what: Sequence[int], number: int = 0, payload: bytes = b"") -> bytes:
    """With the right checksum, whatever it says."""
    fields = (kind, len(payload), *what, number, 0)
    crc = zlib.crc32(payload, zlib.crc32(RECORD.pack(0x54434153, 0, *fields)[8:]))
    return RECORD.pack(0x54434153, crc, *fields) + payload


def selection(layer: int, requests: Any, tokens: Any) -> bytes:
    """tokens: (B, heads, K)."""
    tokens = np.asarray(tokens, "<i4")
    payload = np.asarray(requests, "<i4").tobytes() + tokens.tobytes()
    return record(SELECTION, (0, layer, len(tokens), tokens.shape[2]), 0, payload)


def small() -> bytes:
    """One record of each kind and some selections."""
    return b"".join(
        (
            header(),
            record(BIND, (1, 1, 9, 0)),
            selection(0, [1], [[[1, 2, -1, 8]]]),
            record(LOST, (2, 0, 0, 0), 1),
            selection(0, [1, 3], [[[1, 3]], [[7, 7]]]),
            record(RELEASE, (1, 0, 0, 0), 2),
            selection(0, [1], [[[1, 2, 3]]]),
        )
    )


def looked_at(path: Path, data: bytes) -> str:
    """What becomes of the file: nothing but the project's errors may come."""
    path.write_bytes(data)
    try:
        found = policy(path, [4])
    except SacError as error:
        return type(error).__name__
    for result in found["results"]:
        assert result["hits"] + result["misses"] == found["selected"]
        assert result["misses"] >= found["first_touches"]
    return "truncated" if found["truncated"] else "whole"


def test_cut_at_every_byte(tmp_path: Path) -> None:
    data = small()
    for size in range(len(data)):
        with_header = size >= len(header())
        became = looked_at(tmp_path / "t", data[:size])
        assert became in (("truncated", "whole") if with_header else ("CorruptError",)), size
    assert looked_at(tmp_path / "t", data) == "whole"


@pytest.mark.parametrize("seed", range(4))
def test_random_flips(tmp_path: Path, seed: int) -> None:
    rng, data = random.Random(seed), small()
    for _ in range(400):
        other = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 8])):
            other[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        if bytes(other) != data:
            assert looked_at(tmp_path / "t", bytes(other)) != "whole"


@pytest.mark.parametrize("seed", range(4))
def test_records_with_right_checksums_that_say_anything(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    numbers = [0, 1, 2, 3, 4, 5, 9, 2**16, 2**20, 2**30, 2**31 - 1, 2**31, 2**32 - 1]
    refused = 0
    for _ in range(400):
        heads = rng.choice([1, 2, 1024])
        parts = [header(heads=heads)]
        for _ in range(rng.randrange(5)):
            kind = rng.choice([SELECTION, SELECTION, BIND, RELEASE, LOST, 0, 5, 2**32 - 1])
            what = [rng.choice(numbers) for _ in range(4)]
            payload = b""
            if kind == SELECTION and rng.random() < 0.8:
                batch, width = rng.randrange(1, 3), rng.randrange(1, 5)
                what[2:] = [batch, width]
                payload = rng.randbytes(4 * batch * (1 + heads * width))
                if rng.random() < 0.8:  # requests that there are
                    payload = struct.pack(f"<{batch}I", *[0, 3][:batch]) + payload[4 * batch :]
            parts.append(record(kind, what, rng.choice(numbers), payload))
        refused += looked_at(tmp_path / "t", b"".join(parts)) == "CorruptError"
    assert 0 < refused < 400


@pytest.mark.parametrize(
    "limits", [{"top_k": 0}, {"heads": 1025}, {"requests": (1 << 20) + 1}, {"block": 129}]
)
def test_headers_with_right_checksums(tmp_path: Path, limits: dict[str, int]) -> None:
    (tmp_path / "t").write_bytes(header(**limits))
    with pytest.raises(CorruptError, match="no sound trace"):
        Trace(tmp_path / "t")


def test_more_slots_than_a_hot_buffer_has_are_not_made(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(header(16_384, 1024) + selection(0, [1], np.zeros((1, 1024, 1))))
    with pytest.raises(UsageError, match="up to 16384 units; a hot buffer has at most 8192"):
        policy(path)


# ------------------------------------------------------------------------------- bounds


def spent(path: Path, data: bytes, policies: Sequence[str] = POLICIES) -> tuple[int, int, Any]:
    """Peak bytes allocated, and lines of the package's Python run, by policy on the file."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        policy(path, (), policies)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        name = frame.f_code.co_filename
        if "sacctl/bench" not in name and "libsac" not in name:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = policy(path, (), policies)
    finally:
        sys.settrace(before)
    return peak, lines, found


def many_lanes() -> bytes:
    """2,048 lanes with a unit each, for buffers of 8,192 slots: the first reproduction."""
    one = np.zeros((1, 1024, 1))
    return header(MAX_SLOTS, 1024) + b"".join(selection(i, [0], one) for i in range(2))


def few_bytes_a_lane() -> bytes:
    """1,228,800 lanes of 4 bytes each: the second one."""
    one = np.zeros((1, 1024, 1))
    return header(1, 1024) + b"".join(selection(i, [0], one) for i in range(1200))


def few_bytes_a_row() -> bytes:
    """Every request number in use, in several layers."""
    every, one = np.arange(1 << 16), np.zeros((1 << 16, 1, 1))
    return header(1, requests=1 << 20) + b"".join(selection(i, every, one) for i in range(5))


def binds_of_many_lanes() -> bytes:
    """Many lanes live while requests come and go: each bind looked at all of them."""
    every, one = np.arange(4000), np.zeros((4000, 1, 1))
    binds = b"".join(record(BIND, (i % 4000, 1, 5, 0)) for i in range(4000))
    return header(1, requests=4000) + selection(0, every, one) + binds


@pytest.mark.parametrize(
    "make", [many_lanes, few_bytes_a_lane, few_bytes_a_row, binds_of_many_lanes]
)
def test_memory_and_work_are_bounded_by_the_file(
    tmp_path: Path, make: Callable[[], bytes]
) -> None:
    data = make()
    peak, lines, found = spent(tmp_path / "t", data)
    assert found["selected"] > 0
    assert peak < TABLES + 16 * len(data)
    assert lines < 20_000 + len(data)


def test_memory_of_one_long_lane(tmp_path: Path) -> None:
    """All units different: each selection fetches all that it names."""
    units = np.arange(128 * 1024).reshape(128, 1, 1, 1024)
    data = header(1024) + b"".join(selection(0, [0], one) for one in units)
    peak, lines, found = spent(tmp_path / "t", data)
    assert {r["misses"] for r in found["results"]} == {128 * 1024}
    assert peak < TABLES + 24 * len(data)
    assert lines < 20_000 + 40 * len(data)  # ten plays, each with a few lines a unit


@pytest.mark.parametrize("name", ["lru", "fifo", "random", "clock", "best"])
def test_work_is_by_units_selected_and_not_by_slots(tmp_path: Path, name: str) -> None:
    """Selections of a unit with thousands of slots full: no more work than with few."""
    steps = []
    for slots in (64, 4096):
        full = np.arange(3 * slots).reshape(3, 1, 1, slots)
        fill = header(slots) + b"".join(selection(0, [0], one) for one in full)
        rng = np.random.default_rng(1)
        more = b"".join(selection(0, [0], [[[n]]]) for n in rng.integers(0, 3 * slots, 300))
        lines = [spent(tmp_path / "t", data, [name])[1] for data in (fill, fill + more)]
        steps.append(lines[1] - lines[0])
    # A hand that comes round once, and a heap made anew once, have been paid for before.
    assert steps[1] < 2 * steps[0] + 4096
