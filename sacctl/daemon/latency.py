# SPDX-License-Identifier: Apache-2.0
"""Counts of durations, as the native side keeps them, made into records."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sacctl.records import LatencyRecord

__all__ = ["BUCKETS", "UPPER", "latency_record"]

BUCKETS = 128
# Bucket 4 e + f counts 2^e (1 + f/4) ns up to the next one's beginning.
UPPER = [int(2 ** (b // 4) * (1 + b % 4 / 4)) for b in range(1, BUCKETS + 1)]


def latency_record(counts: NDArray[np.uint64]) -> LatencyRecord:
    """The record of BUCKETS counts. Some are a client's to write, so any number is taken."""
    # A sum of hostile counts must not wrap round: Python's integers do not.
    some = [(b, int(counts[b])) for b in np.flatnonzero(counts)]
    total = sum(count for _, count in some)

    def quantile(permille: int) -> int:
        seen, found = 0, 0
        for b, count in some:
            seen, found = seen + count, UPPER[b]
            if seen * 1000 >= permille * total:
                break
        return found

    return {
        "count": total,
        "p50_ns": quantile(500),
        "p90_ns": quantile(900),
        "p99_ns": quantile(990),
        "p999_ns": quantile(999),
        "buckets": [[UPPER[b], count] for b, count in some],
    }
