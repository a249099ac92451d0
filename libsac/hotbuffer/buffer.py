# SPDX-License-Identifier: Apache-2.0
"""The hot buffer as an engine uses it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import torch

from libsac.arguments import unsigned
from libsac.errors import ArgumentError, ClosedError, ForkedError
from libsac.hotbuffer.base import POLICIES, HotBase
from libsac.hotbuffer.stats import HotStats, errors_of
from libsac.hotbuffer.tensors import batch_of, request_list
from libsac.pages import Prefix, Sequence

__all__ = ["POLICIES", "HotBuffer", "HotStats"]


class HotBuffer(HotBase):
    """Rows of the pool in GPU memory: for each request (and head) and layer an exact cache of
    ``slots`` units, which one kernel fills straight from the pool. Thread-safe.

    All calls go into torch's current stream and wait for nothing but what is said. resolve,
    replay, prefetch and append can be captured into CUDA graphs, which see what bind, extend,
    truncate, release and refresh changed before each replay.

    A unit is what a selection names and a slot holds: ``block`` rows one after another; a row
    is a token, or ``tokens_per_row`` of them in a compressed plane.

    Args:
        ns: the namespace of the pages.
        requests: that can be bound at once; they have the numbers 0 .. requests-1.
        slots: units a lane and layer, 1..8192. A lane is a request, or each head of one where
            the planes have heads.
        top_k: most entries of a selection; at most slots.
        device: CUDA's number, a torch device or its name; None: torch's current one.
        block: rows of a unit, 1..128; divides the rows of a page.
        policy: which unit leaves first: "lru", "fifo", "random", "clock", or "lru_score",
            which of one step's units takes that of the lowest score.
        path: "gpu": the kernel reads the pool; "cpu": threads gather the rows into pinned
            memory, short contexts are cached like others, append is refused, and all steps of
            a buffer go into one stream; "auto": "gpu" where the pool can be registered with
            CUDA.
        max_tokens: of a context.
        groups: which groups of planes (each by the name of one of its planes); None: that of
            the layout's first plane. Indexer keys, which are read whole, need none.
        share: layers that take another's selections, each with that layer.
        padded: slots at multiples of 128 bytes: up to 7% faster for rows of 656 bytes, for a
            sixth more memory.
        threads: of the CPU, for the path "cpu"; 0: chosen.
        timeout: seconds to wait for the pool's registration.

    Attributes:
        path: "gpu" or "cpu"; why: of that one, a sentence.
        block, slots, top_k, requests, max_tokens: as given.

    Raises:
        ArgumentError: options that do not go together, window and state planes.
        GpuError: no GPU, no NVRTC, no memory; or the pool cannot be registered.
        BusyError: it was not registered in time.
    """

    # ---------------------------------------------------------------- requests

    def bind(self, i: int, source: Prefix | Sequence, *, direct: bool = True) -> None:
        """Request i joins, with a prefix or a sequence of the namespace.

        Its pages stay pinned until the GPU is done with them after release, even if the source
        is closed before. The slots are empty, the error bits clear. A context that fits into
        the slots is loaded now, whole, and its steps copy nothing; direct=False caches it all
        the same. Raises ArgumentError, RangeError (max_tokens), BusyError (i is bound).
        """
        if not isinstance(source, (Prefix, Sequence)):
            raise ArgumentError(
                f"source must be a prefix or a sequence, not {type(source).__name__}"
            )
        i = unsigned(i, "request")
        self._native.bind(i, source._prefix(), bool(direct), self._stream())

    def extend(self, requests: int | Iterable[int]) -> None:
        """These requests have now what their sequences have: tokens, and pages.

        One small copy for all. Rows of new tokens must be written before a step selects them:
        with Sequence.write before this call, or with append after it. RangeError: a context
        grew past max_tokens.
        """
        self._native.extend(request_list(requests), self._stream())

    def truncate(self, i: int, tokens: int) -> None:
        """Cuts request i and its sequence to so many tokens: drafts that were not accepted.

        Tokens in committed pages cannot be taken back: RangeError.
        """
        self._native.truncate(
            unsigned(i, "request"), unsigned(tokens, "tokens"), self._stream()
        )

    def written(self, requests: int | Iterable[int]) -> None:
        """What the current stream was given so far writes all rows of the buffer's planes, up
        to the tokens of the last extend: call it after a step that appends.

        The sequence commits full pages behind that point when it is extended or flushed next.
        """
        self._native.written(request_list(requests), self._stream())

    def release(self, i: int) -> None:
        """Request i leaves; its pages stay pinned until the stream got here."""
        self._native.release(unsigned(i, "request"), self._stream())

    def refresh(self) -> int:
        """Looks for pages of bound requests whose memory died: how many there are.

        Steps after this take them for missing: -1 and the error "page". bind and extend look
        as well.
        """
        return self._native.refresh(self._stream())

    # -------------------------------------------------------------------- steps

    def resolve(
        self,
        group: str,
        layer: int,
        requests: torch.Tensor,
        tokens: torch.Tensor,
        *,
        scores: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Where each selected row lies, after what was missing was fetched: one launch.

        Args:
            group: by the name of any of its planes.
            requests: (B,) int32, numbers of bound requests, each once.
            tokens: int32 numbers of units, -1 for none: (B, K); (B, Q, K) where several query
                tokens of a request share one resolve, with Q * K at most top_k; where the
                planes have heads (B, H, K) or (B, H, Q, K).
            scores: float32 as tokens, for the policy "lru_score".
            out: int32 as tokens; mutated and returned.

        Returns int32 as tokens: positions in rows(), -1 where tokens has it and for wrong
        input, which sets an error bit of the request and touches nobody else.
        """
        number = self._group(group)
        if torch.compiler.is_compiling() and out is None:
            compiled: torch.Tensor = torch.ops.libsac.resolve(
                self._turn(layer), requests, tokens, scores, self._id, number, layer
            )
            return compiled
        self._where.check(tokens, "tokens", torch.int32)
        result = torch.empty_like(tokens) if out is None else out
        self._where.check(result, "out", torch.int32)
        if result.shape != tokens.shape:
            raise ArgumentError(
                f"out has the shape {tuple(result.shape)}, tokens {tuple(tokens.shape)}"
            )
        self._resolve(number, layer, requests, tokens, scores, result)
        return result

    def replay(self, group: str, layer: int, requests: torch.Tensor) -> None:
        """Brings to a layer that shares another's selections what that layer's last resolve
        brought; the positions are the same."""
        batch = batch_of(self._where, requests)
        self._native.replay(
            self._group(group),
            unsigned(layer, "layer"),
            batch,
            requests.data_ptr(),
            self._stream(),
        )

    def prefetch(
        self,
        group: str,
        layer: int,
        requests: torch.Tensor,
        tokens: torch.Tensor,
        *,
        scores: torch.Tensor | None = None,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """Fetches units that a step to come will select; arguments as resolve.

        Takes no slot that the layer's last resolve used, and leaves out units for which there
        is no other. stream: waits for the current one, runs there, and the layer's next
        resolve waits for it (in a captured graph: both in the same capture). None: the
        current stream.
        """
        number = self._group(group)
        if torch.compiler.is_compiling():
            torch.ops.libsac.prefetch(
                self._turn(layer), requests, tokens, scores, self._id, number, layer
            )
            return
        if stream is None or self._kind != "cuda":
            self._prefetch(number, layer, requests, tokens, scores)
            return
        stream.wait_stream(torch.cuda.current_stream(self._where.index))
        with torch.cuda.stream(stream):
            self._prefetch(number, layer, requests, tokens, scores)
        for tensor in (requests, tokens, scores):
            if tensor is not None:
                tensor.record_stream(stream)
        self._ahead[number, layer] = stream.record_event()

    def append(
        self,
        layer: int,
        requests: torch.Tensor,
        rows: Mapping[str, torch.Tensor],
        *,
        first: torch.Tensor | None = None,
    ) -> None:
        """New tokens' rows of a layer, into their pages in the pool and into slots.

        Args:
            requests: (B,) int32.
            rows: by plane, of all planes of a group: (B, n, row), or (B, n, H, row) where the
                plane has heads; n of 1..16, any dtype whose bytes make up the row.
            first: (B,) int32, the number of each request's first new row, -1 for none; None:
                the last n rows of each request, which extend has told of.

        Rows of committed pages and of full ones are left out: error "range"; give first -1
        where a request has no new token.

        On the path "cpu" it is refused with ArgumentError, for the GPU does not reach the pool:
        Sequence.write takes the rows there, before extend.
        """
        if not rows:
            raise ArgumentError("rows is empty; a plane's name and tensor are needed")
        number = self._group(next(iter(rows)))
        if torch.compiler.is_compiling():
            values = [rows[plane.name] for plane in self._groups[number]]
            torch.ops.libsac.append(
                self._turn(layer), requests, values, first, self._id, number, layer
            )
            return
        self._append(number, layer, requests, rows, first)

    def rows(self, plane: str, layer: int) -> torch.Tensor:
        """What attention reads: (lanes * slots, row_bytes) uint8, or (lanes * slots, block,
        row_bytes), in the buffer's memory. Lane: request, or request * heads + head."""
        return self._view(self._ns._plane(plane), unsigned(layer, "layer"))

    def lanes(self, group: str) -> int:
        """Lanes of a group: requests * heads."""
        return self.requests * self._planes(self._group(group))[0].heads

    # ------------------------------------------------------------- what it says

    def stats(self) -> HotStats:
        """Counters, read by a stream of their own: no other stream waits."""
        return HotStats(**self._native.stats()[0])

    def errors(self) -> dict[int, set[str]]:
        """What went wrong with each request since it was bound, where something did: "range"
        (a unit below -1 or past the end, or of a short context that has no rows yet; an
        appended row past the end or in a full page), "unbound", "page" (its memory died),
        "twice" (named twice in one call). Key -1: a request that there is not. Read as stats().
        """
        return errors_of(self._native.stats()[1])

    @property
    def memory_bytes(self) -> int:
        """Bytes of GPU memory that the buffer takes, all tables included."""
        return int(self._native.info()["memory_bytes"])

    @property
    def memory(self) -> dict[str, int]:
        """memory_bytes by what it is for: "rows", "state" (what the slots hold, in which
        order), "tables" (pages of the requests, counters)."""
        info = self._native.info()
        return {"rows": info["rows_bytes"], "state": info["state_bytes"],
                "tables": info["table_bytes"]}  # fmt: skip

    def close(self) -> None:
        """Releases all requests, and the memory once no view of rows() is left; that waits
        for the GPU. May be called twice. GpuError: the GPU failed; it is closed all the same.
        """
        self._views.clear()
        self._ahead.clear()
        try:
            # Views may keep the memory for long: pages are not kept pinned with it.
            for i in range(self.requests):
                # Not bound, closed by another thread, or of the parent process.
                with suppress(ArgumentError, ClosedError, ForkedError):
                    self._native.release(i, self._stream())
        finally:
            self._native.close()

    def __repr__(self) -> str:
        if self._native.closed:
            return "<HotBuffer: closed>"
        return (
            f"<HotBuffer of '{self._ns.name}': {self.requests} requests, {self.slots} slots, "
            f"{self.memory_bytes} bytes, path {self.path}: {self.why}>"
        )
