# SPDX-License-Identifier: Apache-2.0
"""The main job: a long prefix is put, found, pinned, its top-k rows gathered and checked.

Writing and reading are apart, so that two processes can do them.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

import libsac

PRESET = "deepseek-v3.2-bf16"
PAGE_TOKENS = 64
TOP_K = 2048


def content(
    plane: int, layer: int, tokens: NDArray[np.int64], row_bytes: int
) -> NDArray[np.uint8]:
    """The row of each token in a plane and layer, (k, row_bytes): a function of all of them,
    so that a wrong row, layer, plane or byte order is noticed."""
    words = -(-row_bytes // 8)
    column = np.arange(1, words + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    seed = (
        (tokens.astype(np.uint64) << np.uint64(20)) + np.uint64(plane << 10) + np.uint64(layer)
    )
    mixed = (seed[:, None] + np.uint64(1)) * column[None, :]
    mixed ^= mixed >> np.uint64(29)
    return mixed.view(np.uint8)[:, :row_bytes]


def put_prefix(ns: libsac.Namespace, keys: libsac.Keys, start: int = 0) -> float:
    """Writes the pages that are missing; seconds that libsac took for it."""
    taken = 0.0
    step = 64  # pages at a time: the rows are made up here and need memory too
    for first in range(0, len(keys), step):
        begin = time.perf_counter()
        put = ns.put(keys[first : first + step])
        taken += time.perf_counter() - begin
        with put:
            tokens = (
                (first + put.missing[:, None]) * PAGE_TOKENS + np.arange(PAGE_TOKENS)
            ).ravel()
            for number, plane in enumerate(ns.layout.planes):
                for layer in plane.layers:
                    rows = content(number, layer, tokens, plane.row_bytes)
                    begin = time.perf_counter()
                    shape = (len(put.missing), plane.rows, plane.row_bytes)
                    put.write(plane.name, layer, rows.reshape(shape))
                    taken += time.perf_counter() - begin
            begin = time.perf_counter()
            put.commit()
            taken += time.perf_counter() - begin
    return taken


def gather_and_check(
    ns: libsac.Namespace, prefix: libsac.Prefix, steps: int, layers: int
) -> tuple[float, int]:
    """Decode steps: top-k rows of each layer. (seconds in libsac, bytes that differ)."""
    rng = np.random.default_rng(7)
    taken, wrong = 0.0, 0
    row_bytes = ns.layout.plane("latent").row_bytes
    out = np.empty((TOP_K, row_bytes), np.uint8)
    for _ in range(steps):
        for layer in range(layers):
            tokens = rng.choice(prefix.tokens, TOP_K, replace=False)
            begin = time.perf_counter()
            prefix.gather("latent", layer, tokens, out=out)
            taken += time.perf_counter() - begin
            wrong += int(np.count_nonzero(out != content(0, layer, tokens, row_bytes)))
    return taken, wrong


def verify(ns: libsac.Namespace, prefix: libsac.Prefix) -> tuple[int, int]:
    """Reads every row that was put and compares it: (bytes read, bytes that differ)."""
    read = wrong = 0
    tokens = np.arange(prefix.tokens)
    for number, plane in enumerate(ns.layout.planes):
        for layer in plane.layers:
            for part in np.array_split(tokens, max(1, len(tokens) // 4096)):
                rows = prefix.gather(plane.name, layer, part)
                read += rows.nbytes
                wrong += int(
                    np.count_nonzero(rows != content(number, layer, part, plane.row_bytes))
                )
    return read, wrong


def pool_bytes(layout: libsac.Layout, tokens: int) -> int:
    """Bytes of a pool in which the pages of so many tokens find room."""
    return int(tokens // PAGE_TOKENS * layout.page_bytes * 1.1) + (64 << 20)


def show_layout(layout: libsac.Layout, layers: int) -> None:
    print(f"layout     {PRESET}, {layers} layers, pages of {PAGE_TOKENS} tokens:")
    for plane in layout.planes:
        print(f"             plane {plane.name:8} {plane.row_bytes:5} B a token and layer")


def write(ns: libsac.Namespace, keys: libsac.Keys) -> None:
    """Puts what is missing of the prefix and says how fast."""
    found = ns.longest(keys)
    seconds = put_prefix(ns, keys)
    moved = ns.stats().bytes_written
    if found < len(keys):
        print(
            f"put        {len(keys) - found} pages, {mib(moved)} "
            f"at {moved / seconds / 1e9:.2f} GB/s (memory touched for the first time)"
        )
    else:
        print(f"put        nothing: all {found} pages were there already")


def read(ns: libsac.Namespace, keys: libsac.Keys, steps: int, layers: int) -> int:
    """Finds and pins the prefix, gathers rows of decode steps and compares every byte.

    Says how fast; returns how many bytes differ.
    """
    begin = time.perf_counter()
    hits = int(ns.lookup(keys).sum())
    looked = time.perf_counter() - begin
    begin = time.perf_counter()
    with ns.pin(keys) as prefix:
        pinned = time.perf_counter() - begin
        print(f"lookup     {hits} of {len(keys)} keys found in {looked * 1e6:.0f} us")
        print(
            f"pin        {prefix.pages} pages, {prefix.tokens} tokens in {pinned * 1e6:.0f} us"
        )
        if prefix.pages < len(keys):
            print(f"error      {len(keys) - prefix.pages} pages are not there")
            return 1
        row_bytes = ns.layout.plane("latent").row_bytes
        seconds, wrong = gather_and_check(ns, prefix, steps, layers)
        calls = steps * layers
        copied = calls * TOP_K * row_bytes
        print(
            f"gather     {calls} calls of {TOP_K} rows: "
            f"{seconds / calls * 1e6:.0f} us a call, {copied / seconds / 1e9:.2f} GB/s"
        )
        whole = prefix.tokens * row_bytes * calls
        print(
            f"           {mib(copied)} read where full attention reads "
            f"{mib(whole)}: {whole / copied:.1f} times less"
        )
        size, differ = verify(ns, prefix)
    print(f"verified   {mib(size)} put and each gathered row: {wrong + differ} bytes wrong")
    return wrong + differ


def mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
