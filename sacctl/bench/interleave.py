# SPDX-License-Identifier: Apache-2.0
"""``sacctl bench interleave``: where pages lie, and each extent alone against all in turn."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import libsac
from sacctl.bench.record import (
    DEFAULT_REPEATS,
    DEFAULT_SIZE,
    BenchRecord,
    MeasurementRecord,
    measure,
    record,
)
from sacctl.bench.space import buffer, fill, fitting_pages, temporary

__all__ = ["interleave", "mapped_files"]

TOKENS, ROW = 64, 4096  # a page of 256 KiB
PART = 16  # pages a call
LIMIT = "memcpy of the same bytes"


def mapped_files(addresses: NDArray[np.uint64]) -> list[str]:
    """For each address of this process the file mapped there, "" for plain memory.

    What the kernel says, not the pool: this is how placement is checked from outside.
    """
    starts: list[int] = []
    spans: list[tuple[int, str]] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        low, high = (int(number, 16) for number in fields[0].split("-"))
        starts.append(low)
        spans.append((high, fields[5] if len(fields) > 5 and fields[4] != "0" else ""))
    found = []
    for address in addresses.tolist():
        end, name = spans[bisect_right(starts, address) - 1]
        found.append(name if address < end else "")
    return found


def interleave(
    pool: libsac.Pool,
    *,
    pool_name: str = "",
    size: int = DEFAULT_SIZE,
    repeats: int = DEFAULT_REPEATS,
) -> BenchRecord:
    """Pages read from each extent alone and from all by turns; see ``Bencher``.

    A result a file of the pool, whose name ends with its share of the pages.
    """
    layout = libsac.Layout([libsac.Plane("kv", [0], ROW)], TOKENS)
    page = layout.page_bytes
    pages = fitting_pages(pool, layout, size)
    part = min(PART, pages)
    with temporary(pool, layout) as ns:
        keys = ns.keys(np.arange(pages * TOKENS, dtype=np.uint32))
        fill(ns, keys)
        source = buffer(pages // part * part * page).reshape(-1, part * TOKENS, ROW)
        target, limit_target = buffer(part * page), buffer(part * page)
        out = target.reshape(part * TOKENS, ROW)
        with ns.pin(keys) as prefix:
            addresses = np.array(
                [prefix.view("kv", 0, i).ctypes.data for i in range(prefix.pages)], np.uint64
            )
            files = mapped_files(addresses)

            def read(name: str, numbers: NDArray[np.int64]) -> MeasurementRecord:
                rounds = max(1, len(numbers) // part)
                within = np.arange(TOKENS)
                picks = [
                    (numbers[i * part : (i + 1) * part, None] * TOKENS + within).reshape(-1)
                    for i in range(rounds)
                ]

                def work(n: int) -> None:
                    rows = picks[n % rounds]
                    prefix.gather("kv", 0, rows, out=out[: len(rows)], threads=1)

                def copy(n: int) -> None:
                    rows = len(picks[n % rounds])
                    np.copyto(
                        limit_target.reshape(out.shape)[:rows], source[n % len(source), :rows]
                    )

                return measure(
                    f"{name}: {len(numbers)} of {len(files)} pages",
                    work,
                    copy,
                    limit_name=LIMIT,
                    unit="page",
                    units=min(part, len(numbers)),
                    bytes_=min(part, len(numbers)) * page,
                    repeats=repeats,
                )

            results = [read("all extents by turns", np.arange(len(files)))]
            if len(set(files)) > 1:
                for name in sorted(set(files)):
                    here = np.array([i for i, f in enumerate(files) if f == name])
                    results.append(read(name or "memory", here))
        return record("interleave", pool, pool_name, ns, pages, results)
