# SPDX-License-Identifier: Apache-2.0
"""A hot buffer behind its public face: made, and its launches with tensors looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import torch

from libsac import _core
from libsac.arguments import milliseconds, unsigned
from libsac.closing import Closing
from libsac.errors import ArgumentError, BusyError, GpuError
from libsac.gpu import Device
from libsac.hotbuffer import ops
from libsac.hotbuffer.tensors import Where, batch_of, count_of, selection, source_rows
from libsac.plane import Plane
from libsac.store import Namespace

__all__ = ["POLICIES", "HotBase"]

POLICIES = ("lru", "fifo", "random", "clock", "lru_score")  # position: sac_hot_policy
PATHS = ("auto", "gpu", "cpu")
_PADDED, _CPU = 1, 2  # flags of sac_hot_options

Path = Literal["gpu", "cpu"]


class HotBase(Closing):
    """What HotBuffer is made of; its arguments and attributes are described there."""

    _kind: ClassVar[str] = "cuda"
    # For measurements, read at each launch: copy no rows; thread blocks a lane.
    _plan_only = False
    _blocks: int | None = None

    def __init__(
        self,
        ns: Namespace,
        *,
        requests: int,
        slots: int = 4096,
        top_k: int = 2048,
        device: Any = None,
        block: int = 1,
        policy: str = "lru",
        path: str = "auto",
        max_tokens: int = 131072,
        groups: Iterable[str] | None = None,
        share: Mapping[int, int] | None = None,
        padded: bool = False,
        threads: int = 0,
        timeout: float = 600.0,
    ) -> None:
        if not isinstance(ns, Namespace):
            raise ArgumentError(f"ns must be a libsac namespace, not {type(ns).__name__}")
        if policy not in POLICIES:
            raise ArgumentError(f"policy is {policy!r}; {', '.join(POLICIES)} are the policies")
        if path not in PATHS:
            raise ArgumentError(f"path is {path!r}; {', '.join(PATHS)} are the paths")
        self._ns = ns
        self.requests = unsigned(requests, "requests", 1)
        self.slots, self.top_k = unsigned(slots, "slots", 1), unsigned(top_k, "top_k", 1)
        self.block = unsigned(block, "block", 1)
        self.max_tokens = unsigned(max_tokens, "max_tokens", 1)
        numbers = [plane[3] for plane in ns._native.planes()]  # of each plane's group
        self._number = {p.name: n for p, n in zip(ns.layout.planes, numbers, strict=True)}
        wanted = [] if groups is None else [self._group(g) for g in groups]
        if not isinstance(share, Mapping | None):
            raise ArgumentError(f"share is {share!r}; {{layer: leader}} is needed, or None")
        if not isinstance(padded, bool):
            raise ArgumentError(f"padded is {padded!r}; True or False is needed")
        followed = [
            (unsigned(a, "share"), unsigned(b, "share")) for a, b in (share or {}).items()
        ]

        def options(flags: int) -> _core.HotOptions:
            return _core.HotOptions(
                requests=self.requests,
                slots=self.slots,
                top_k=self.top_k,
                block=self.block,
                policy=POLICIES.index(policy),
                flags=flags | (_PADDED if padded else 0),
                threads=unsigned(threads, "threads"),
                max_tokens=self.max_tokens,
                timeout_ms=max(1, milliseconds(timeout, "timeout")),
                groups=wanted,
                share=followed,
            )

        # Before a driver is looked for: what is wrong on every machine is said on every one.
        _core.hot_check(ns._native, options(0))
        self._device = Device(device)
        info = self._device.info()
        self._where = Where(self._kind, info.ordinal)
        self.path, self.why = self._choose(path, timeout)
        chosen = options(_CPU if self.path == "cpu" else 0)
        self._native = _core.hot_open(self._device._native, ns._native, chosen)
        first = next(n for p, n in zip(ns.layout.planes, numbers, strict=True) if not p.is_tail)
        self._groups: dict[int, list[Plane]] = {
            g: [p for p in ns.layout.planes if self._number[p.name] == g]
            for g in wanted or [first]
        }
        self._plane_numbers = {p.name: i for i, p in enumerate(ns.layout.planes)}
        self._views: dict[tuple[int, int], Any] = {}
        device = torch.device(self._kind, info.ordinal if self._kind == "cuda" else None)
        layers = {n for of in self._groups.values() for p in of for n in p.layers}
        self._turns = {n: torch.zeros(1, dtype=torch.int32, device=device) for n in layers}
        self._ahead: dict[tuple[int, int], Any] = {}  # prefetches that resolve has to wait for
        self._id = ops.add(self)

    def _choose(self, path: str, timeout: float) -> tuple[Path, str]:
        if path != "auto":
            return "cpu" if path == "cpu" else "gpu", "it was asked for"
        try:
            self._device.register(self._ns).wait(timeout)
        except (GpuError, BusyError) as error:
            return "cpu", str(error)
        return "gpu", "the pool is registered with CUDA"

    def _group(self, name: str) -> int:
        """The number of the group that has a plane of that name; NotFoundError."""
        number = self._number.get(name)
        return self._number[self._ns.layout.plane(name).name] if number is None else number

    def _planes(self, group: int) -> list[Plane]:
        planes = self._groups.get(group)
        if planes is None:
            there = ", ".join(p.name for of in self._groups.values() for p in of)
            raise ArgumentError(f"the buffer was made for the planes {there} only")
        return planes

    def _stream(self) -> int:
        if self._kind != "cuda":
            return 0
        return int(torch.cuda.current_stream(self._where.index).cuda_stream)

    def _view(self, plane: int, layer: int) -> torch.Tensor:
        view = self._views.get((plane, layer))
        if view is None:
            index = self._where.index if self._kind == "cuda" else -1
            view = self._views[plane, layer] = self._native.rows(plane, layer, index)
        return view

    def _turn(self, layer: int) -> torch.Tensor:
        """What ops.py orders a layer's operators by."""
        turn = self._turns.get(layer)
        if turn is None:
            raise ArgumentError(f"the buffer has no layer {layer!r}")
        return turn

    def _select(
        self,
        launch: Any,
        group: int,
        layer: int,
        requests: torch.Tensor,
        tokens: torch.Tensor,
        scores: torch.Tensor | None,
        out: int,
    ) -> None:
        heads = self._planes(group)[0].heads
        batch, top_k = selection(self._where, heads, requests, tokens, scores)
        launch(
            group,
            unsigned(layer, "layer"),
            batch,
            top_k,
            requests.data_ptr(),
            tokens.data_ptr(),
            0 if scores is None else scores.data_ptr(),
            out,
            self._stream(),
            self._blocks or 0,
            self._plan_only,
        )

    def _resolve(
        self,
        group: int,
        layer: int,
        requests: torch.Tensor,
        tokens: torch.Tensor,
        scores: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        ahead = self._ahead.pop((group, layer), None)
        if ahead is not None:
            torch.cuda.current_stream(self._where.index).wait_event(ahead)
        self._select(
            self._native.resolve, group, layer, requests, tokens, scores, out.data_ptr()
        )

    def _prefetch(
        self,
        group: int,
        layer: int,
        requests: torch.Tensor,
        tokens: torch.Tensor,
        scores: torch.Tensor | None,
    ) -> None:
        self._select(self._native.prefetch, group, layer, requests, tokens, scores, 0)

    def _append(
        self,
        group: int,
        layer: int,
        requests: torch.Tensor,
        rows: Mapping[str, torch.Tensor],
        first: torch.Tensor | None,
    ) -> None:
        batch, count = batch_of(self._where, requests), count_of(rows)
        if first is not None:
            self._where.check(first, "first", torch.int32)
            if first.shape != requests.shape:
                raise ArgumentError(
                    f"first has the shape {tuple(first.shape)}, requests "
                    f"{tuple(requests.shape)}"
                )
        planes = {plane.name: plane for plane in self._planes(group)}
        sources = []
        for name, tensor in rows.items():
            plane = planes.get(name)
            if plane is None:
                raise ArgumentError(
                    f"plane '{name}' is not of the group of {', '.join(planes)}; append writes "
                    "the planes of one group"
                )
            number = self._plane_numbers[name]
            sources.append(source_rows(self._where, plane, number, tensor, batch, count))
        self._native.append(
            group,
            unsigned(layer, "layer"),
            batch,
            requests.data_ptr(),
            0 if first is None else first.data_ptr(),
            count,
            sources,
            self._stream(),
        )
