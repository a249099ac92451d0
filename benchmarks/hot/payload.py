# SPDX-License-Identifier: Apache-2.0
"""Rows that say which request and token they are of, in each of their words."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

SPREAD = 0x9E3779B1  # odd: different numbers stay different modulo 2^32
STEP = 0x85EBCA77
STRIDE = 1 << 21  # numbers of a request; contexts are shorter
MASK = 0xFFFFFFFF


def write(out: NDArray[np.uint32], first: NDArray[np.uint32]) -> None:
    """out: (rows, words) of rows whose numbers (request * STRIDE + token) are ``first``."""
    ramp = (np.arange(out.shape[1], dtype=np.uint64) * STEP).astype(np.uint32)
    np.add((first * np.uint32(SPREAD))[:, None], ramp[None, :], out=out)


def fill(out: NDArray[np.uint32], numbers: NDArray[np.uint32], step: int = 1 << 14) -> None:
    """As write, by several threads."""
    with ThreadPoolExecutor(max(1, min(12, (os.cpu_count() or 2) - 2))) as pool:
        parts = range(0, len(out), step)
        list(pool.map(lambda a: write(out[a : a + step], numbers[a : a + step]), parts))


def wrong(rows: Any, requests: Any, tokens: Any) -> Any:
    """How many of these rows are not those of the tokens, as an int64 CUDA scalar.

    rows: (n, row_bytes) uint8 CUDA. requests, tokens: (n,) int64 CUDA.
    """
    words = rows.contiguous().view(torch.int32).long() & MASK
    ramp = torch.arange(words.shape[1], device=words.device, dtype=torch.int64) * STEP
    first = (requests * STRIDE + tokens) * SPREAD
    expected = (first[:, None] + ramp[None, :]) & MASK
    return (words != expected).any(dim=1).sum()
