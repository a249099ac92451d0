# SPDX-License-Identifier: Apache-2.0
"""The indexer: which 2,048 tokens of its context each request attends to."""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

# Comes with torch where that has CUDA; without both, the program says so and ends.
triton: Any = import_module("triton") if find_spec("triton") else None
tl: Any = import_module("triton.language") if triton else None

HEADS, DIM = 64, 128
KEY_BYTES = DIM + 4  # fp8, and one scale a key
BLOCK = 128
FP8 = torch.float8_e4m3fn


def _score(
    queries: tl.tensor,
    keys: tl.tensor,
    scales: tl.tensor,
    scores: tl.tensor,
    tokens: tl.tensor,
    heads: tl.constexpr,
    dim: tl.constexpr,
    block: tl.constexpr,
) -> None:
    request = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < tokens
    channel = tl.arange(0, dim)
    head = tl.arange(0, heads)
    query = tl.load(queries + (request * heads + head[:, None]) * dim + channel[None, :])
    where = request * tokens + at
    key = tl.load(keys + where[None, :] * dim + channel[:, None], mask=inside[None, :])
    limit = tl.maximum(tl.dot(query, key), 0.0)
    scale = tl.load(scales + where, mask=inside)
    tl.store(scores + where, tl.sum(limit, axis=0) * scale, mask=inside)


_kernel: Any = triton.jit(_score) if triton else None


def scores(queries: Any, keys: Any, scales: Any, out: Any) -> Any:
    """Sum over the heads of the positive part of query . key, times the key's scale.

    queries: (B, 64, 128) with the heads' weights, which are positive, in them; keys: (B, T,
    128); both fp8, or uint8 with the bits of it. scales: (B, T) fp32. out: (B, T) fp32, which
    is returned.
    """
    batch, tokens, dim = keys.shape
    if keys.dtype == torch.uint8:
        queries, keys = queries.view(FP8), keys.view(FP8)
    _kernel[(-(-tokens // BLOCK), batch)](
        queries, keys, scales, out, tokens, heads=queries.shape[1], dim=dim, block=BLOCK
    )
    return out


class Drift:
    """Queries that turn a little each step, so that selections overlap from step to step.

    Kept ready in memory. The way is closed: the first step follows the last like any other.
    """

    def __init__(
        self, steps: int, layers: int, batch: int, turn: float, generator: Any
    ) -> None:
        """turn: radians from step to step, rounded so that the steps make whole circles."""
        circles = max(1, round(steps * turn / (2 * torch.pi)))
        shape = (layers, batch, HEADS, DIM)
        one, other = (torch.randn(shape, device="cuda", generator=generator) for _ in range(2))
        self.steps = steps
        # As bytes: torch indexes and copies those whatever it can do with fp8.
        self._queries = torch.empty((steps, *shape), dtype=torch.uint8, device="cuda")
        for step in range(steps):
            angle = 2 * torch.pi * circles * step / steps
            turned = one * math.cos(angle) + other * math.sin(angle)
            self._queries[step] = turned.to(FP8).view(torch.uint8)

    def at(self, layer: int, step: Any) -> Any:
        """(B, 64, 128) uint8 of a layer. step: its number, (1,) int64 CUDA."""
        return self._queries[:, layer].index_select(0, step)[0]
