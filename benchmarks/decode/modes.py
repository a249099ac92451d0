# SPDX-License-Identifier: Apache-2.0
"""The four ways to have a request's KV at hand, and what each costs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hot.pool import PAGE_TOKENS

from decode import index
from decode.kv import Hot, InHbm, Pool
from decode.loop import Loop
from decode.model import MODEL_LAYERS, ROW_BYTES, WIDTH, Layer

HBM, POOL, FETCH, PINNED = "all in HBM", "pool", "full fetch", "pinned memory"
PREFETCH = "pool, prefetch"


@dataclass(frozen=True)
class Plan:
    """Parameters of a run. link: GB/s of the full fetch. weights, spare: GB of HBM that a
    real server has for weights and for everything else. turn: radians a step of the
    indexer's queries."""

    layers: int
    context: int
    link: float
    weights: float
    spare: float
    turn: float
    steps: int
    warm: int
    path: str

    @property
    def request_bytes(self) -> int:
        """KV of a request in the whole model."""
        return self.context * MODEL_LAYERS * (ROW_BYTES + index.KEY_BYTES)

    def largest_batch(self, per_request: float) -> int:
        """Requests of so many bytes of HBM each that fit."""
        total = torch.cuda.get_device_properties(0).total_memory
        return max(0, int((total - (self.weights + self.spare) * 1e9) // per_request))


@dataclass
class Figures:
    """One row of the table; of the whole model where not said otherwise, scaled from the
    layers that ran. ready_ms: a request's KV made ready. ttft_ms: mean over a batch whose
    requests arrive together and are made ready one after the other; with the first step, none
    of whose rows were selected before. hbm_gb: of the batch's KV.
    misses: rows fetched a request, layer and step. part_ms: a step of the layers that ran."""

    mode: str
    slots: int | None
    batch: int
    tokens_s: float
    tbt_ms: float
    p99_ms: float
    ready_ms: float
    ttft_ms: float
    hbm_gb: float
    largest: int
    overlap: float
    misses: float | None
    part_ms: float
    exposed_ms: float | None = None


class Bench:
    """Runs modes on one filled pool."""

    def __init__(self, pool: Pool, plan: Plan, largest: int) -> None:
        """largest: of the batches to come; their indexer keys are fetched here."""
        self._pool, self._plan = pool, plan
        self._first: dict[tuple[int, int | None], float] = {}  # fetching adds to a layer, ms
        generator = torch.Generator("cuda").manual_seed(3)
        self._weights = Layer(generator)
        self._drift = index.Drift(plan.steps, plan.layers, largest, plan.turn, generator)
        shape = (plan.layers, largest, plan.context)
        self._keys = torch.empty((*shape, index.DIM), dtype=torch.uint8, device="cuda")
        self._scales = torch.empty(shape, dtype=torch.float32, device="cuda")
        pages, key_bytes = plan.context // PAGE_TOKENS, PAGE_TOKENS * index.DIM
        raw = torch.empty(
            (plan.layers, pages, PAGE_TOKENS * index.KEY_BYTES),
            dtype=torch.uint8,
            device="cuda",
        )
        taken = []
        pool.fetch("index", 0, raw)  # registers, compiles
        for request in range(largest):
            taken.append(pool.fetch("index", request, raw))
            self._keys[:, request] = raw[..., :key_bytes].reshape(plan.layers, -1, index.DIM)
            scales = raw[..., key_bytes:].contiguous().view(torch.float32)
            self._scales[:, request] = scales.view(plan.layers, -1)
        self.index_ms = float(np.median(taken)) * 1000 * MODEL_LAYERS / plan.layers

    def _loop(self, store: Any, batch: int, ahead: bool = False) -> Loop:
        # Layers' keys of a smaller batch are no one block: a copy, made once.
        keys = [t[:, :batch].contiguous() for t in (self._keys, self._scales)]
        return Loop(self._weights, store, keys[0], keys[1], self._drift, ahead=ahead)

    def _figures(self, mode: str, loop: Loop, batch: int, ready_ms: float) -> Figures:
        scale = MODEL_LAYERS / self._plan.layers
        loop.capture(mode in (HBM, FETCH) or self._plan.path == "gpu")
        first = loop.first()
        taken = loop.run(self._plan.steps * 4, self._plan.warm)
        return Figures(
            mode=mode,
            slots=None,
            batch=batch,
            tokens_s=batch * 1000 / (float(np.mean(taken)) * scale),
            tbt_ms=float(np.median(taken)) * scale,
            p99_ms=float(np.percentile(taken, 99)) * scale,
            ready_ms=ready_ms,
            ttft_ms=_arrived(batch, ready_ms) + first * scale,
            hbm_gb=0.0,
            largest=0,
            overlap=loop.overlap(),
            misses=None,
            part_ms=float(np.median(taken)),
        )

    def in_hbm(self, batch: int) -> tuple[list[Figures], Any]:
        """HBM only, and the same after a full fetch over the link; and the hidden state
        after the first step, to compare with."""
        plan = self._plan
        rows = torch.empty(
            (plan.layers, batch, plan.context, WIDTH), dtype=torch.bfloat16, device="cuda"
        )
        flat = torch.empty(
            (plan.layers, plan.context, ROW_BYTES), dtype=torch.uint8, device="cuda"
        )
        taken = []
        self._pool.fetch("row", 0, flat)  # compiles
        for request in range(batch):
            taken.append(self._pool.fetch("row", request, flat))
            rows[:, request] = flat.view(torch.bfloat16)
        del flat
        loop = self._loop(InHbm(rows), batch)
        one = self._figures(HBM, loop, batch, 0.0)
        one.largest = plan.largest_batch(plan.request_bytes)
        one.hbm_gb = batch * plan.request_bytes / 1e9
        copied = float(np.median(taken)) * 1000 * MODEL_LAYERS / plan.layers
        link = plan.request_bytes / plan.link / 1e6
        other = Figures(**{**vars(one), "mode": FETCH})
        other.ready_ms = max(link, copied + self.index_ms)
        other.ttft_ms += _arrived(batch, other.ready_ms)
        return [one, other], _first_state(loop)

    def hot(self, mode: str, batch: int, slots: int) -> tuple[Figures, Any]:
        """A hot buffer; mode is what the pool is. As in_hbm."""
        plan = self._plan
        buffer, bound = self._pool.hot(batch, slots, plan.path)
        with closing(buffer):
            ahead = mode == PREFETCH
            loop = self._loop(Hot(buffer, batch, ahead), batch, ahead)
            one = self._figures(mode, loop, batch, bound * 1000 + self.index_ms)
            before = buffer.stats()
            loop.run(plan.steps, 0)
            after = buffer.stats()
            each = plan.steps * plan.layers * batch
            one.misses = (
                after.misses - before.misses + _prefetched(after) - _prefetched(before)
            ) / each
            per_request = (
                buffer.memory_bytes / batch / plan.layers * MODEL_LAYERS
                + plan.context * MODEL_LAYERS * index.KEY_BYTES
            )
            one.slots = slots
            one.largest = plan.largest_batch(per_request)
            one.hbm_gb = batch * per_request / 1e9
            state = _first_state(loop)
            if plan.path == "gpu":
                # The same steps with nothing copied: what is left over is the fetching.
                buffer._plan_only = True
                loop.capture()
                quiet = loop.run(plan.steps * 2, plan.warm)
                self._expose(one, one.part_ms - float(np.median(quiet)), ahead)
        return one, state

    def _expose(self, one: Figures, part_ms: float, ahead: bool) -> None:
        """Scales what fetching adds to a step of the layers that ran. Of these the first has
        nobody before it who could prefetch; of the whole model's, too, it is only one."""
        layers = self._plan.layers
        plain = part_ms * MODEL_LAYERS / layers
        key = one.batch, one.slots
        if not ahead:
            self._first[key] = part_ms / layers
            one.exposed_ms = plain
            return
        first = self._first[key]
        one.exposed_ms = first + (part_ms - first) * (MODEL_LAYERS - 1) / (layers - 1)
        less = plain - one.exposed_ms
        one.tbt_ms -= less
        one.p99_ms -= less
        one.tokens_s = one.batch * 1000 / (one.batch * 1000 / one.tokens_s - less)


def _arrived(batch: int, each_ms: float) -> float:
    """Mean time until a request of the batch is ready."""
    return each_ms * (batch + 1) / 2


def _prefetched(stats: Any) -> int:
    return int(getattr(stats, "prefetched", 0))


def _first_state(loop: Loop) -> Any:
    loop.restart()
    loop.run(1, 0)
    return loop.hidden.clone()
