# SPDX-License-Identifier: Apache-2.0
"""NVRTC compiles the kernels of transfers for every architecture, without a GPU, for the rows
of every preset; nothing spills, and enough blocks run at once."""

from __future__ import annotations

import re

import pytest
from unit.test_hot_kernels import ARCHITECTURES, NVRTC, compile_source

from libsac import Layout
from libsac.presets import NAMES as PRESETS

pytestmark = pytest.mark.skipif(
    NVRTC is None, reason="needs nvidia-cuda-nvrtc (requirements/test.txt)"
)

THREADS, PAGE = 256, 64
ODD = {(132, 132), (7, 7), (6, 8), (9000, 9000)}


def shapes() -> list[tuple[int, int]]:
    """(bytes of a row, bytes from row to row) of all presets, and odd ones."""
    found = set(ODD)
    for name in PRESETS:
        found |= {(p.row_bytes, p.row_pitch) for p in Layout.preset(name).planes}
    return sorted(found)


def check(log: str) -> None:
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", log)
    assert spills == [("0", "0")]
    (registers,) = re.findall(r"Used (\d+) registers", log)
    assert int(registers) * THREADS * 4 <= 65536


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("row", "pitch"), shapes())
def test_put_and_gather(row: int, pitch: int, arch: str) -> None:
    bits = row | pitch | 16
    access = bits & -bits
    check(compile_source("put.cu", {"SAC_PUT_BYTES": row, "SAC_PUT_ACCESS": access}, arch))
    macros = {
        "SAC_UNIT_BYTES_0": row,
        "SAC_POOL_PITCH_0": pitch,
        "SAC_ACCESS_0": access,
        "SAC_PAGE_UNITS": PAGE,
        "SAC_BLOCK": 1,
        "SAC_THREADS": THREADS,
    }
    check(compile_source("gather.cu", macros, arch))
