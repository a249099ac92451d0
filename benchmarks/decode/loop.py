# SPDX-License-Identifier: Apache-2.0
"""The decode loop: steps of all layers as one CUDA graph, and how long each takes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from hot.timing import Eager
from numpy.typing import NDArray

from decode import index
from decode.kv import Hot, Store
from decode.model import HIDDEN, TOP_K, Layer, normed


class Loop:
    """A batch that decodes.

    The number of the step lies in device memory: one graph is replayed for all steps. hidden:
    (B, 7168), what the last step left; it is put back to its beginning by ``restart``.
    """

    def __init__(
        self,
        weights: Layer,
        store: Store,
        keys: Any,
        scales: Any,
        drift: index.Drift,
        *,
        ahead: bool = False,
    ) -> None:
        """keys: (layers, B, T, 128) uint8, bits of fp8; scales: (layers, B, T) fp32.

        ahead: the indexer of the next layer runs before this one's attention, and the store,
        a Hot with prefetch, begins to fetch what it found.
        """
        self._weights, self._store, self._drift = weights, store, drift
        self._keys, self._scales, self._ahead = keys, scales, ahead
        layers, batch, tokens, _ = keys.shape
        self._layers = layers
        self._scores = torch.empty((batch, tokens), dtype=torch.float32, device="cuda")
        generator = torch.Generator("cuda").manual_seed(5)
        self._start = torch.randn(
            (batch, HIDDEN), device="cuda", dtype=torch.bfloat16, generator=generator
        )
        self.hidden = self._start.clone()
        self._step = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.selected = torch.zeros((layers, batch, TOP_K), dtype=torch.int32, device="cuda")
        self._graph: Any = None

    def restart(self) -> None:
        """From the first step and hidden state again."""
        self._step.zero_()
        self.hidden.copy_(self._start)

    def _select(self, layer: int) -> Any:
        queries = self._drift.at(layer, self._step)[: self._scores.shape[0]]
        index.scores(queries, self._keys[layer], self._scales[layer], self._scores)
        tokens = self._scores.topk(TOP_K, dim=-1, sorted=False).indices.int()
        self.selected[layer].copy_(tokens)
        return tokens

    def _once(self) -> None:
        hidden = self.hidden
        tokens = self._select(0)
        for layer in range(self._layers):
            following = None
            if self._ahead and layer + 1 < self._layers:
                assert isinstance(self._store, Hot)
                following = self._select(layer + 1)
                self._store.prefetch(layer + 1, following)
            query = self._weights.queries(hidden)
            rows, wrong = self._store.rows(layer, tokens)
            hidden = normed(hidden + self._weights.attend(query, rows, wrong))
            hidden = normed(self._weights.dense(hidden))
            if layer + 1 < self._layers:
                tokens = self._select(layer + 1) if following is None else following
        self.hidden.copy_(hidden)
        self._step.add_(1).remainder_(self._drift.steps)

    def capture(self, graph: bool = True) -> None:
        """Makes the graph, after a step without. graph: False where the store has work for
        the CPU in each step: then the steps run without one."""
        if not graph:
            self._graph = Eager(lambda _: self._once(), 1)
            self._graph.replay()
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._once()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self._once()

    def first(self) -> float:
        """Milliseconds of a step none of whose rows were selected lately: the queries come
        from the other side of their circle. That is how a request's first step is."""
        self._step.fill_(self._drift.steps // 2)
        self.run(2, 0)
        self.restart()
        return float(self.run(1, 0)[0])

    def run(self, steps: int, warm: int) -> NDArray[np.float64]:
        """Milliseconds of each of so many steps, from one's begin to the next one's."""
        for _ in range(warm):
            self._graph.replay()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        marks[0].record()
        for mark in marks[1:]:
            self._graph.replay()
            mark.record()
        torch.cuda.synchronize()
        return np.array([a.elapsed_time(b) for a, b in pairwise(marks)])

    def overlap(self) -> float:
        """Mean part of a layer's selection that the step before had, over one more step."""
        before = self.selected.clone()
        self._graph.replay()
        torch.cuda.synchronize()
        seen = torch.zeros(self._keys.shape[2], dtype=torch.bool, device="cuda")
        parts = []
        for old, new in zip(
            before.view(-1, TOP_K).long(), self.selected.view(-1, TOP_K).long(), strict=True
        ):
            seen.zero_()
            seen[old] = True
            parts.append(float(seen[new].float().mean()))
        return float(np.mean(parts))
