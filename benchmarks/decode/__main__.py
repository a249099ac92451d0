# SPDX-License-Identifier: Apache-2.0
"""Decoding with all KV in HBM, from a pool through a hot buffer, after a full fetch, and from
ordinary pinned memory: ``python benchmarks/decode``.

A few layers of DeepSeek-V3.2's sizes run and are scaled to the model's 61; weights are those
of one layer, used by all. HBM for the weights of a real server is set aside on paper: it
limits the largest batch of each mode. The pool's files are put on a tmpfs; on a machine with
CXL give ``--folder`` on its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from common import machine

from decode import index
from decode.kv import Pool
from decode.modes import PINNED, POOL, PREFETCH, Bench, Figures, Plan
from decode.report import plot, table, verdict

ALL = ["hbm", "pool", "prefetch", "pinned"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="decode", description=__doc__)
    parser.add_argument("--modes", nargs="+", choices=ALL, default=ALL, help="hbm: fetch too")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=131072)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 5, 16, 32])
    parser.add_argument("--hbm-batch", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--slots", type=int, nargs="+", default=[4096, 6144])
    parser.add_argument("--weights", type=float, default=94.0, help="GB of HBM set aside")
    parser.add_argument("--spare", type=float, default=4.0, help="GB for everything else")
    parser.add_argument("--link", type=float, default=25.0, help="GB/s of the full fetch")
    parser.add_argument("--turn", type=float, default=0.14, help="radians a step, of queries")
    parser.add_argument("--steps", type=int, default=45, help="until queries come back")
    parser.add_argument("--warm", type=int, default=32)
    parser.add_argument("--path", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if "prefetch" in args.modes and ("pool" not in args.modes or args.layers < 2):
        parser.error("prefetch is measured against pool, with two layers or more")
    if not torch.cuda.is_available() or index.triton is None:
        print("there is no GPU here that torch can use, or no triton", file=sys.stderr)
        return 1
    plan = Plan(
        layers=args.layers,
        context=args.context,
        link=args.link,
        weights=args.weights,
        spare=args.spare,
        turn=args.turn,
        steps=args.steps,
        warm=args.warm,
        path=args.path,
    )
    print(f"{machine()}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(
        f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}; {plan.layers} layers run, "
        f"figures scaled to 61; {plan.weights:g} + {plan.spare:g} GB of HBM set aside; "
        f"a request of {plan.context} tokens has {plan.request_bytes / 1e9:.2f} GB; "
        f"link {plan.link:g} GB/s"
    )
    largest = max(*args.batch, *args.hbm_batch)
    found: list[Figures] = []
    states: dict[int, Any] = {}

    def show(one: Figures) -> None:
        found.append(one)
        print(f"# {one}", flush=True)

    def check(batch: int, state: Any, mode: str) -> None:
        if batch in states and not torch.equal(states[batch], state):
            raise SystemExit(f"{mode}, batch {batch}: other numbers than with all KV in HBM")

    def hot(bench: Bench, mode: str) -> None:
        for slots in args.slots:
            for batch in args.batch:
                one, state = bench.hot(mode, batch, slots)
                check(batch, state, mode)
                show(one)

    folder = args.folder / f"sac-decode-{os.getpid()}"
    if {"hbm", "pool", "prefetch"} & set(args.modes):
        try:
            began = time.monotonic()
            generator = torch.Generator("cuda").manual_seed(1)
            pool = Pool(largest, plan.context, plan.layers, str(folder), generator)
            print(f"# pool filled in {time.monotonic() - began:.0f} s", flush=True)
            bench = Bench(pool, plan, largest)
            if "hbm" in args.modes:
                for batch in args.hbm_batch:
                    both, states[batch] = bench.in_hbm(batch)
                    for one in both:
                        show(one)
                    torch.cuda.empty_cache()
            for mode, name in (("pool", POOL), ("prefetch", PREFETCH)):
                if mode in args.modes:
                    hot(bench, name)
            del bench
            pool.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if "pinned" in args.modes:
        torch.cuda.empty_cache()
        generator = torch.Generator("cuda").manual_seed(1)
        pool = Pool(largest, plan.context, plan.layers, None, generator)
        hot(Bench(pool, plan, largest), PINNED)
        pool.close()
    print("\n" + table(found))
    print("\n" + verdict(found))
    if args.plot is not None and not plot(found, args.plot):
        print("no plot: matplotlib is not installed", file=sys.stderr)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(f) for f in found], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
