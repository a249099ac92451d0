# SPDX-License-Identifier: Apache-2.0
"""Sizes of a hot buffer, the macros its kernels are compiled with, and their arguments."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path

import numpy as np

from libsac.hotbuffer import policies

KERNELS = Path(policies.__file__).parent / "kernels"
APPEND_MAX = 16
GROUP_PLANES = 4
BOUND, DIRECT = 1, 2
PLAN_ONLY, FOLLOWER = 1, 2
COUNTERS = ("hits", "misses", "bytes", "evictions", "kept", "prefetched", "appended")

# HotRequest.
TABLE = np.dtype(
    [("pages", "u8"), ("units", "u4"), ("flags", "u4"), ("rows", "u8"), ("open", "u8")]
)

u32, u64, i64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64


class Plane(ctypes.Structure):
    _fields_ = [("rows", u64), ("offset", u64), ("head_stride", u64)]


class Args(ctypes.Structure):
    """HotArgs."""

    _fields_ = [
        *((name, u64) for name in ("selection", "scores", "requests", "out", "slot_token")),
        *((name, u64) for name in ("order", "state", "plan", "table", "counters", "errors")),
        ("planes", Plane * GROUP_PLANES),
        *((name, u32) for name in ("batch", "table_size", "heads", "top_k", "flags", "spare")),
    ]


class Source(ctypes.Structure):
    _fields_ = [("rows", u64), ("request", i64), ("token", i64), ("head", i64)]


class Append(ctypes.Structure):
    """HotAppend."""

    _fields_ = [
        ("hot", Args),
        ("first", u64),
        ("sources", Source * GROUP_PLANES),
        ("count", u32),
        ("spare", u32),
    ]


class Load(ctypes.Structure):
    """HotLoad."""

    _fields_ = [("hot", Args), ("first", u32), ("end", u32)]


class Reset(ctypes.Structure):
    """HotReset."""

    _fields_ = [
        *((name, u64) for name in ("slot_token", "order", "state", "plan", "counters")),
        *((name, u32) for name in ("lanes", "first", "mode", "units", "is_new", "spare")),
    ]


class Scatter(ctypes.Structure):
    """HotScatter."""

    _fields_ = [("hot", Args), ("staging", u64 * GROUP_PLANES), ("starts", u64)]


class Gather(ctypes.Structure):
    """HotGather."""

    _fields_ = [
        *((name, u64) for name in ("units", "requests", "table", "errors", "out", "out_pitch")),
        *((name, u64) for name in ("offset", "head_stride")),
        *((name, u32) for name in ("count", "table_size")),
    ]


def _ceil(n: int, d: int) -> int:
    return -(-n // d)


@dataclass(frozen=True)
class PlaneShape:
    """Bytes of a row, from row to row in the pool, and of a slot (0: the least)."""

    row: int
    pitch: int = 0
    slot: int = 0

    def row_pitch(self) -> int:
        return self.pitch or self.row

    def unit_bytes(self, block: int) -> int:
        return (block - 1) * self.row_pitch() + self.row

    def slot_pitch(self, block: int) -> int:
        return self.slot or _ceil(self.unit_bytes(block), 16) * 16

    def access(self, block: int) -> int:
        pitch = block * self.row_pitch()
        return gcd(16, pitch, self.unit_bytes(block), self.slot_pitch(block))


@dataclass(frozen=True)
class Shape:
    """All that the kernels of one group are compiled for, and the heads of its planes."""

    slots: int = 96
    top_k: int = 64
    units_max: int = 600
    planes: tuple[PlaneShape, ...] = field(default=(PlaneShape(24),))
    heads: int = 1
    block: int = 1
    page_units: int = 4
    policy: str = "lru"
    early: bool = True

    @property
    def threads(self) -> int:
        """hot_threads() of args.h; so are the other sizes."""
        threads = 128
        while threads < 1024 and threads * 4 < max(self.slots, self.top_k):
            threads *= 2
        return threads

    @property
    def slots_pitch(self) -> int:
        return _ceil(self.slots, self.threads) * self.threads

    def top_k_pitch(self, top_k: int) -> int:
        return _ceil(top_k, self.threads) * self.threads

    @property
    def plan_bytes(self) -> int:
        return 16 + 8 * self.top_k_pitch(self.top_k)

    def shared_bytes(self, top_k: int) -> int:
        k, s, threads = self.top_k_pitch(top_k), self.slots_pitch, self.threads
        if self.units_max <= 4 * 32 * threads:
            numbers = 6 * threads * _ceil(self.units_max, 32 * threads)
        else:
            numbers = 6 * threads * _ceil(self.units_max, 1024 * threads) + 6 * k
        keys = 1 << (k - 1).bit_length()
        extra = {"random": 2 * s, "lru_score": 8 * keys}.get(self.policy, 0)
        return numbers + 14 * k + s + extra

    def early_bytes(self) -> int:
        k, threads = self.top_k_pitch(self.top_k), self.threads
        flat = self.units_max <= 4 * 32 * threads
        return 6 * (threads * _ceil(self.units_max, 32 * threads) if flat else k)

    def macros(self) -> dict[str, int]:
        """As args.h asks for them."""
        macros = {
            "SAC_SLOTS": self.slots,
            "SAC_TOP_K": self.top_k,
            "SAC_UNITS_MAX": self.units_max,
            "SAC_THREADS": self.threads,
            "SAC_POLICY": policies.NAMES.index(self.policy),
            "SAC_BLOCK": self.block,
            "SAC_PAGE_UNITS": self.page_units,
            "SAC_EARLY": int(self.early),
            "SAC_PLANES": len(self.planes),
        }
        for i, p in enumerate(self.planes):
            macros |= {
                f"SAC_ROW_BYTES_{i}": p.row,
                f"SAC_UNIT_BYTES_{i}": p.unit_bytes(self.block),
                f"SAC_POOL_PITCH_{i}": self.block * p.row_pitch(),
                f"SAC_SLOT_PITCH_{i}": p.slot_pitch(self.block),
                f"SAC_ACCESS_{i}": self.access(i),
            }
        return macros

    def access(self, plane: int) -> int:
        """Divides the plane's sizes and the offsets of all planes before it."""
        before = [p.row_pitch() * self.block * self.page_units for p in self.planes[:plane]]
        return gcd(self.planes[plane].access(self.block), *before, 16)


def sizes() -> dict[str, int]:
    """Bytes of the arguments, by the name of their struct."""
    structs = (Args, Append, Load, Reset, Scatter, Gather)
    return {f"Hot{c.__name__}": ctypes.sizeof(c) for c in structs}
