# SPDX-License-Identifier: Apache-2.0
"""Where the loop's KV is: latent rows in HBM, or in a pool behind a hot buffer."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np
import torch
from hot.pool import PAGE_TOKENS

import libsac
from decode.index import DIM, KEY_BYTES
from decode.model import ROW_BYTES, TOP_K, WIDTH
from libsac.gpu import Mover

PUT_PAGES = 64


class Store(Protocol):
    """Latent rows of a batch."""

    def rows(self, layer: int, tokens: Any) -> tuple[Any, Any]:
        """(B, K, 576) bf16 and (B, K) bool, which of them do not count. tokens: (B, K)
        int32 CUDA. On the current stream; can be captured."""
        ...


class InHbm:
    """All rows in HBM: (layers, B, T, 576) bf16."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        layers, batch, tokens, _ = rows.shape
        self._flat = rows.view(layers, batch * tokens, WIDTH)
        self._first = torch.arange(batch, device="cuda", dtype=torch.int64)[:, None] * tokens

    def rows(self, layer: int, tokens: Any) -> tuple[Any, Any]:
        at = (tokens.long() + self._first).view(-1)
        found = self._flat[layer].index_select(0, at).view(*tokens.shape, WIDTH)
        return found, torch.zeros_like(tokens, dtype=torch.bool)


class Hot:
    """Rows in a pool, those in use in a hot buffer."""

    def __init__(self, buffer: Any, batch: int, prefetch: bool = False) -> None:
        self.buffer = buffer
        self._requests = torch.arange(batch, dtype=torch.int32, device="cuda")
        self._side = torch.cuda.Stream() if prefetch else None

    def rows(self, layer: int, tokens: Any) -> tuple[Any, Any]:
        slots = self.buffer.resolve("row", layer, self._requests, tokens)
        view = self.buffer.rows("row", layer).view(torch.bfloat16)
        found = view.index_select(0, slots.clamp(min=0).view(-1).long())
        return found.view(*tokens.shape, WIDTH), slots < 0

    def prefetch(self, layer: int, tokens: Any) -> None:
        """Begins to fetch what a later resolve of the layer will ask for."""
        self.buffer.prefetch("row", layer, self._requests, tokens, stream=self._side)


class Pool:
    """Prefixes of ``context`` tokens in a pool: latent rows and indexer keys of all layers.

    Attributes: ns, prefixes, row_bytes_each (of one request, both planes).
    """

    def __init__(
        self, requests: int, context: int, layers: int, folder: str | None, generator: Any
    ) -> None:
        """folder: of the pool's files, on a tmpfs or a hugetlbfs; None: ordinary memory of
        this process."""
        self._ends = ExitStack()
        planes = [
            libsac.Plane("row", range(layers), ROW_BYTES, dtype="bf16"),
            # A page's keys and behind them its scales are one row, as engines keep them.
            libsac.Plane(
                "index",
                range(layers),
                PAGE_TOKENS * KEY_BYTES,
                dtype="fp8",
                tokens_per_row=PAGE_TOKENS,
            ),
        ]
        layout = libsac.Layout(planes, PAGE_TOKENS)
        pages = context // PAGE_TOKENS
        self.row_bytes_each = pages * layout.page_bytes
        size = int(requests * self.row_bytes_each * 1.1) + (64 << 20)
        self.pool = libsac.embedded(size, folder, prefault=True)
        self._ends.callback(self.pool.close)
        self.ns = self.pool.namespace("decode", layout)
        self._mover = self._ends.enter_context(Mover(self.ns))
        self._layers = layers
        keys = [
            self.ns.keys((np.arange(context) + request * context).astype(np.uint32))
            for request in range(requests)
        ]
        # The same latent rows for all, since their values cost nothing, but keys of their
        # own for each token: what is selected depends on them.
        latent = torch.randn(
            (2 * PUT_PAGES, PAGE_TOKENS, WIDTH), device="cuda", generator=generator
        ).to(torch.bfloat16)
        rows = latent.view(torch.uint8).cpu().numpy()
        made = np.zeros((layers, PUT_PAGES, 1, PAGE_TOKENS * KEY_BYTES), np.uint8)
        made[..., PAGE_TOKENS * DIM :] = np.ones(PAGE_TOKENS, np.float32).view(np.uint8)
        shape = (*made.shape[:-1], PAGE_TOKENS * DIM)
        for page in range(0, pages, PUT_PAGES):
            count = min(PUT_PAGES, pages - page)
            for request in range(requests):
                fresh = torch.randn(shape, device="cuda", generator=generator)
                bits = fresh.to(torch.float8_e4m3fn).view(torch.uint8)
                made[..., : PAGE_TOKENS * DIM] = bits.cpu().numpy()
                with self.ns.put(keys[request][page : page + count]) as put:
                    for layer in range(layers):
                        turn = (page // PUT_PAGES + 7 * layer + 13 * request) % PUT_PAGES
                        put.write("row", layer, rows[turn : turn + count], threads=8)
                        put.write("index", layer, made[layer, :count], threads=8)
        self.keys = keys
        self.prefixes = [self._ends.enter_context(self.ns.pin(k)) for k in keys]

    def hot(self, batch: int, slots: int, path: str) -> tuple[Any, float]:
        """A hot buffer with the first ``batch`` requests bound, and the seconds that finding,
        pinning and binding one more takes."""
        buffer = libsac.HotBuffer(
            self.ns,
            requests=batch,
            slots=slots,
            top_k=TOP_K,
            groups=["row"],
            path=path,
            max_tokens=self.prefixes[0].tokens,
        )
        for request in range(batch):
            buffer.bind(request, self.prefixes[request])
        buffer.release(0)
        torch.cuda.synchronize()
        began = time.perf_counter()
        with self.ns.pin(self.keys[0]) as prefix:
            buffer.bind(0, prefix)
            torch.cuda.synchronize()
            taken = time.perf_counter() - began
        return buffer, taken

    def fetch(self, plane: str, request: int, out: Any) -> float:
        """All rows of one request's plane into HBM; seconds taken.

        out: (layers, rows, row bytes) uint8 CUDA.
        """
        every = torch.arange(out.shape[1], dtype=torch.int32, device="cuda")[None]
        torch.cuda.synchronize()
        began = time.perf_counter()
        for layer in range(self._layers):
            self._mover.gather(
                plane, layer, [self.prefixes[request]], rows=every, out=out[layer][None]
            )
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def close(self) -> None:
        """Drops the pool."""
        self._ends.close()
