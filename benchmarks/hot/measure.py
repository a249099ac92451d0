# SPDX-License-Identifier: Apache-2.0
"""One hot buffer measured: whole calls, planning alone, all hits, its floor, its peer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import libsac
from hot import payload, timing
from hot.floor import Floor
from hot.pool import PAGE_TOKENS, Contexts


@dataclass(frozen=True)
class Shape:
    """What all measurements of a run have in common. blocks: thread blocks a request to try,
    one after the other; none: the buffer's own choice. check: compare every row first."""

    context: int
    top_k: int
    policy: str = "lru"
    path: str = "gpu"
    padded: bool = False
    blocks: tuple[int, ...] = ()
    check: bool = True


@dataclass
class Figures:
    """One line of the table: microseconds a call; misses: distinct units fetched a request
    and step; gbps: of missing rows over the whole call; ratio: floor / whole; wrong: rows that
    were not those selected when every row was compared, None where that was not done."""

    batch: int
    slots: int
    row: int
    blocks: int | None
    misses: float
    whole_us: float
    plan_us: float | None
    hits_us: float
    floor_us: float
    gbps: float
    ratio: float
    peer_us: float | None = None
    peer_plan_us: float | None = None
    wrong: int | None = None


def one_row_size(
    row: int,
    trace: NDArray[np.int32],
    batches: Sequence[int],
    sizes: Sequence[int],
    shape: Shape,
    peer: Any = None,
) -> list[Figures]:
    """All batches and numbers of slots for rows of one size, on one filled pool.

    trace: (steps, requests, top_k). peer: the module peers.sglang_hot, or None.
    """
    found = []
    host = peer.HostRows(max(batches), shape.context, row) if peer else None
    try:
        with Contexts(max(batches), shape.context, row) as pool:
            for slots in sizes:
                for batch in batches:
                    part = np.ascontiguousarray(trace[:, :batch])
                    steps = torch.from_numpy(part).cuda()
                    of_peer = peer.measure(host, steps, slots, shape.check) if peer else None
                    for blocks in shape.blocks or (None,):
                        one = _one(pool, part, steps, row, slots, shape, blocks)
                        if of_peer:
                            one.peer_us, one.peer_plan_us = of_peer
                        found.append(one)
                        print(one, flush=True)
    finally:
        if host is not None:
            host.close()
    return found


def _buffer(pool: Contexts, batch: int, slots: int, shape: Shape) -> Any:
    buffer = libsac.HotBuffer(
        pool.ns,
        requests=batch,
        slots=slots,
        top_k=shape.top_k,
        policy=shape.policy,
        path=shape.path,
        max_tokens=shape.context,
        padded=shape.padded,
    )
    for request in range(batch):
        buffer.bind(request, pool.prefixes[request])
    return buffer


def _one(
    pool: Contexts,
    trace: NDArray[np.int32],
    steps: Any,
    row: int,
    slots: int,
    shape: Shape,
    blocks: int | None,
) -> Figures:
    count, batch, top_k = steps.shape
    requests = torch.arange(batch, dtype=torch.int32, device="cuda")
    out = torch.empty((batch, top_k), dtype=torch.int32, device="cuda")
    with closing(_buffer(pool, batch, slots, shape)) as buffer:
        buffer._blocks = blocks

        def call(n: int) -> Any:
            return buffer.resolve("row", 0, requests, steps[n], out=out)

        # On the CPU's path threads have a part in each call.
        played = timing.captured if shape.path == "gpu" else timing.eager
        wrong = _wrong(buffer, call, steps, requests) if shape.check else None
        whole = played(call, count)
        torch.cuda.synchronize()
        before = buffer.stats()
        whole_us = timing.replayed({"whole": whole})["whole"]
        torch.cuda.synchronize()
        after = buffer.stats()
        if shape.check and wrong == 0:  # the graph's last step, too
            wrong = _compare(buffer, out, steps[count - 1], requests)
        replays = timing.REPLAYS + 2
        misses = (after.misses - before.misses) / (replays * count * batch)
        all_hits = played(lambda n: call(0), count)
        hits_us = timing.replayed({"hits": all_hits})["hits"]
        # Last: it leaves slots without the rows that they are said to hold.
        plan_us = None
        if shape.path == "gpu":
            buffer._plan_only = True
            plan = timing.captured(call, count)
            plan_us = timing.replayed({"plan": plan})["plan"]
    fetched = round(misses * batch)
    floor_us, _ = Floor(row).measure(_missing(pool, trace, fetched, row))
    return Figures(
        batch=batch,
        slots=slots,
        row=row,
        blocks=blocks,
        misses=misses,
        whole_us=whole_us,
        plan_us=plan_us,
        hits_us=hits_us,
        floor_us=floor_us,
        gbps=fetched * row / whole_us / 1000,
        ratio=floor_us / whole_us,
        wrong=wrong,
    )


def _wrong(buffer: Any, call: Any, steps: Any, requests: Any) -> int:
    """Rows that are not those selected, over all steps; also counts answers that are -1."""
    return sum(_compare(buffer, call(n), steps[n], requests) for n in range(len(steps)))


def _compare(buffer: Any, out: Any, tokens: Any, requests: Any) -> int:
    slot = out.long().reshape(-1)
    none = int((slot < 0).sum())
    rows = buffer.rows("row", 0)[slot.clamp(min=0)]
    whose = requests.long().repeat_interleave(tokens.shape[1])
    return max(none, int(payload.wrong(rows, whose, tokens.long().reshape(-1))))


def _missing(
    pool: Contexts, trace: NDArray[np.int32], count: int, row: int
) -> NDArray[np.uint64]:
    """(steps, count) addresses of rows for the floor: of the tokens selected, evenly from the
    batch's requests and in the order of their tokens, as the buffer fetches them."""
    pages = pool.addresses()
    rng = np.random.default_rng(3)
    steps, batch, top_k = trace.shape
    out = np.empty((steps, count), np.uint64)
    for step in range(steps):
        flat = rng.choice(batch * top_k, count, replace=False)
        whose, which = flat // top_k, flat % top_k
        tokens = trace[step, whose, which].astype(np.int64)
        order = np.lexsort((tokens, whose))
        whose, tokens = whose[order], tokens[order]
        inside = (tokens % PAGE_TOKENS * row).astype(np.uint64)
        out[step] = pages[whose, tokens // PAGE_TOKENS] + inside
    return out


def memory(row: int, layers: int, slots: int, top_k: int) -> dict[str, float]:
    """GPU memory in GB (10^9 bytes) of a buffer for one request, all its tables included, as
    the driver counts it, for contexts of 128K and 1M tokens."""
    layout = libsac.Layout([libsac.Plane("row", range(layers), row)], PAGE_TOKENS)
    found = {}
    with libsac.embedded("1G") as pool:
        ns = pool.namespace("memory", layout)
        for what, tokens in (("128K tokens", 1 << 17), ("1M tokens", 1 << 20)):
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            free = torch.cuda.mem_get_info()[0]
            buffer = libsac.HotBuffer(
                ns, requests=1, slots=slots, top_k=top_k, max_tokens=tokens
            )
            torch.cuda.synchronize()
            used = free - torch.cuda.mem_get_info()[0]
            found[what] = max(used, buffer.memory_bytes) / 1e9
            buffer.close()
    return found
