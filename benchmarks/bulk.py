# SPDX-License-Identifier: Apache-2.0
"""Pages put from GPU memory, and rows gathered into it, beside the copy engine:
``python benchmarks/bulk.py``.

Put: all layers of many pages, from tensors of several layouts, against one copy of as many
bytes to pinned memory. Gather: rows of one layer by CPU threads through pinned staging and by
a kernel, against the slower of what the CPU's gather and the copy engine need alone. All works
of a comparison take turns in one run, and what was moved is compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch
from common import machine

import libsac
from libsac.gpu import Mover

PAGE = 64  # tokens
ROW = 1152
HEADS, HEAD_ROW = 8, 256


class Source:
    """A layout of an engine's tensors, and the planes that it is put into."""

    def __init__(self, name: str, axes: str, shape: Callable[[int, int], tuple[int, ...]],
                 planes: list[str], heads: int, row: int) -> None:  # fmt: skip
        """shape(layers, pages): of a tensor, without the row's bytes."""
        self.name, self.axes, self.shape = name, axes, shape
        self.planes, self.heads, self.row = planes, heads, row

    def layout(self, layers: int) -> libsac.Layout:
        made = [
            libsac.Plane(name, range(layers), self.row, heads=self.heads, group="kv")
            for name in self.planes
        ]
        return libsac.Layout(made, PAGE)


SOURCES = [
    Source("MLA, layer-first", "layer token", lambda n, p: (n, p * PAGE), ["row"], 1, ROW),
    Source("MLA, page-first", "page layer token", lambda n, p: (p, n, PAGE), ["row"], 1, ROW),
    Source(
        "MHA, layer-first", "layer token head", lambda n, p: (n, p * PAGE, HEADS),
        ["k", "v"], HEADS, HEAD_ROW,
    ),
    Source(
        "MHA, page-head", "layer page head token", lambda n, p: (n, p, HEADS, PAGE),
        ["k", "v"], HEADS, HEAD_ROW,
    ),
]  # fmt: skip


def _events() -> tuple[Any, Any]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _timed(work: Callable[[], object]) -> float:
    """Microseconds on the current stream."""
    begin, end = _events()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1000


def put(source: Source, layers: int, pages: int, rounds: int) -> list[dict[str, Any]]:
    """A put of new pages each round beside a copy of as many bytes."""
    layout = source.layout(layers)
    total = pages * layout.page_bytes
    shape = (*source.shape(layers, pages), source.row)
    tensors = {
        name: torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
        for name in source.planes
    }
    flat = torch.randint(0, 256, (total,), dtype=torch.uint8, device="cuda")
    pinned = torch.empty(total, dtype=torch.uint8, pin_memory=True)
    ours, engine = [], []
    # Room for three rounds: the pages of older ones are evicted.
    with libsac.embedded(4 * total + (256 << 20), prefault=True) as pool:
        ns = pool.namespace("put", layout)
        with closing(Mover(ns, path="gpu")) as mover:
            for turn in range(-2, rounds):
                first = (turn + 2) * pages * PAGE
                keys = ns.keys(np.arange(first, first + pages * PAGE).astype(np.uint32))
                with ns.put(keys) as writing:
                    if len(writing.missing) != pages:
                        raise RuntimeError("pages of another round are there already")
                    taken = _timed(partial(mover.put, writing, tensors, source.axes))
                copied = _timed(lambda: pinned.copy_(flat, non_blocking=True))
                if turn >= 0:
                    ours.append(taken)
                    engine.append(copied)
            with ns.pin(keys) as prefix:
                _check_put(source, prefix, tensors, layers)
    one = {
        "what": f"put {source.name}",
        "bytes": total,
        "us": median(ours),
        "gbps": total / median(ours) / 1000,
        "engine_gbps": total / median(engine) / 1000,
        "ratio": median(e / o for e, o in zip(engine, ours, strict=True)),
        "goal": 0.9,
    }
    return [one]


def _check_put(source: Source, prefix: Any, tensors: dict[str, Any], layers: int) -> None:
    """Compares some rows of each plane and layer. Raises RuntimeError."""
    some = np.random.default_rng(1).choice(prefix.tokens, min(512, prefix.tokens), False)
    page, at = some // PAGE, some % PAGE
    for name, tensor in tensors.items():
        host = tensor.cpu().numpy()
        for layer in range(layers):
            index = np.tile(some, (source.heads, 1)) if source.heads > 1 else some
            found = np.asarray(prefix.gather(name, layer, index))
            wanted = {
                "layer token": lambda h=host, n=layer: h[n, some],
                "page layer token": lambda h=host, n=layer: h[page, n, at],
                "layer token head": lambda h=host, n=layer: h[n, some].swapaxes(0, 1),
                "layer page head token": lambda h=host, n=layer: h[n, page, :, at].swapaxes(
                    0, 1
                ),
            }[source.axes]()
            if not np.array_equal(found, wanted):
                raise RuntimeError(f"{source.name}: wrong rows of {name}, layer {layer}")


def gather(rows: int, row: int, threads: int, rounds: int, burst: int) -> list[dict[str, Any]]:
    """Rows of 8 requests of 32K tokens into GPU memory, ``burst`` calls in a row, by each
    path; beside the CPU's gather into pinned memory alone and the copy engine alone."""
    context, requests = 1 << 15, 8
    layout = libsac.Layout([libsac.Plane("row", [0], row)], PAGE)
    rng = np.random.default_rng(2)
    total = requests * context // PAGE * layout.page_bytes
    with libsac.embedded(int(total * 1.2) + (64 << 20), prefault=True) as pool:
        ns = pool.namespace("gather", layout)
        prefixes = []
        for request in range(requests):
            keys = ns.keys((np.arange(context) + request * context).astype(np.uint32))
            with ns.put(keys) as writing:
                content = rng.integers(0, 256, (len(keys), PAGE, row), np.uint8)
                writing.write("row", 0, content, threads=8)
            prefixes.append(ns.pin(keys))
        each = rows // requests
        # Other rows in each call of a burst and in each round.
        picks = [
            rng.integers(0, context, (requests, each)).astype(np.int32)
            for _ in range(burst * 4)
        ]
        on_gpu = [torch.from_numpy(p).cuda() for p in picks]
        out = torch.empty((requests, each, row), dtype=torch.uint8, device="cuda")
        pinned = torch.empty((requests, each, row), dtype=torch.uint8, pin_memory=True)
        by_cpu, by_gpu = Mover(ns, path="cpu", threads=threads), Mover(ns, path="gpu")
        with closing(by_cpu), closing(by_gpu):
            what = ("row", 0, prefixes)

            def timed(call: Callable[[int], object]) -> Callable[[int], float]:
                def run(turn: int) -> float:
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                    for n in range(burst):
                        call((turn * burst + n) % len(picks))
                    torch.cuda.synchronize()
                    return (time.perf_counter() - began) * 1e6 / burst

                return run

            def alone(n: int) -> object:
                return ns.gather(
                    "row", 0, prefixes, picks[n], out=pinned, threads=threads, stream=True
                )

            works = {
                "CPU path": timed(lambda n: by_cpu.gather(*what, picks[n], out=out)),
                "GPU path": timed(lambda n: by_gpu.gather(*what, on_gpu[n], out=out)),
                "CPU gather alone": timed(alone),
                "copy engine alone": timed(lambda n: out.copy_(pinned, non_blocking=True)),
            }
            for mover, given in ((by_cpu, picks), (by_gpu, on_gpu)):
                mover.gather(*what, given[0], out=out)
                wanted = np.asarray(ns.gather("row", 0, prefixes, picks[0]))
                if not np.array_equal(out.cpu().numpy(), wanted):
                    raise RuntimeError("a gather brought other rows")
            taken: dict[str, list[float]] = {name: [] for name in works}
            for turn in range(-2, rounds):
                for name, work in works.items():
                    value = work(turn + 2)
                    if turn >= 0:
                        taken[name].append(value)
        for prefix in prefixes:
            prefix.close()
    us = {name: median(values) for name, values in taken.items()}
    limit = max(us["CPU gather alone"], us["copy engine alone"])
    return [
        {
            "what": f"{name}, {rows} rows of {row} B",
            "bytes": rows * row,
            "us": value,
            "gbps": rows * row / value / 1000,
            "engine_gbps": rows * row / us["copy engine alone"] / 1000,
            "ratio": limit / value,
            "goal": 0.8 if name == "CPU path" else None,
        }
        for name, value in us.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bulk", description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--pages", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, default=2048, help="of a gather")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--burst", type=int, default=16, help="gathers in a row")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here that torch can use", file=sys.stderr)
        return 1
    print(f"{machine()}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
    found: list[dict[str, Any]] = []
    print("work                                     us    GB/s  engine   ratio")
    works: list[Callable[[], list[dict[str, Any]]]] = [
        partial(put, source, args.layers, args.pages, args.rounds) for source in SOURCES
    ]
    works += [
        partial(gather, args.rows, row, args.threads, args.rounds * 4, args.burst)
        for row in (1152, 656)
    ]
    for work in works:
        for one in work():
            found.append(one)
            goal = one["goal"]
            met = (
                ""
                if goal is None
                else f"goal {goal} {'met' if one['ratio'] >= goal else 'NOT MET'}"
            )
            print(
                f"{one['what']:34} {one['us']:8.1f} {one['gbps']:7.1f} "
                f"{one['engine_gbps']:7.1f} {one['ratio']:7.2f}  {met}",
                flush=True,
            )
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
