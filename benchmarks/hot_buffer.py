# SPDX-License-Identifier: Apache-2.0
"""The hot buffer on a GPU: resolve, its floor and its peer in the same run.

``python benchmarks/hot_buffer.py``; needs torch, cuda-core and a GPU, and for the peer what
benchmarks/peers/sglang_hot.py says (left out where it is not there). Figures are medians of
CUDA graph replays in which the works take turns, one layer a call, counters on. Before any of
it is timed the trace is played once and every row is compared with what was put.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from common import machine
from hot import traces
from hot.measure import Figures, Shape, memory, one_row_size
from hot.report import goals, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="hot_buffer", description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--slots", type=int, nargs="+", default=[4096, 6144])
    parser.add_argument("--rows", type=int, nargs="+", default=[1152, 656], help="bytes")
    parser.add_argument("--context", type=int, default=131072)
    parser.add_argument("--top-k", type=int, default=2048)
    parser.add_argument("--overlap", type=float, default=traces.OVERLAP)
    parser.add_argument("--hot", type=int, default=traces.HOT_TOKENS, help="hot tokens")
    parser.add_argument("--steps", type=int, default=96, help="steps in a graph")
    parser.add_argument("--trace", type=Path, help="play this file instead (docs/trace.md)")
    parser.add_argument("--policy", default="lru")
    parser.add_argument("--path", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--padded", action="store_true", help="slots at multiples of 128 bytes")
    parser.add_argument("--blocks", type=int, nargs="+", help="thread blocks a request, to try")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here that torch can use", file=sys.stderr)
        return 1
    print(f"{machine()}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
    requests, context, top_k = max(args.batch), args.context, args.top_k
    if args.trace is None:
        made = traces.closed(
            args.steps, requests, context, top_k, hot=args.hot, overlap=args.overlap
        )
        print(
            f"made-up trace: {args.steps} steps of {top_k} of {context} tokens, overlap "
            f"{traces.overlap_of(made[:, :1]):.3f}, {args.hot} hot tokens"
        )
    else:
        made, context = traces.recorded(args.trace, requests)
        context = -(-context // 64) * 64
        top_k = made.shape[2]
        print(
            f"{args.trace.name}: {len(made)} steps of {top_k} of {context} tokens, overlap "
            f"{traces.overlap_of(made):.3f}"
        )
    shape = Shape(
        context=context,
        top_k=top_k,
        policy=args.policy,
        path=args.path,
        padded=args.padded,
        blocks=tuple(args.blocks or ()),
        check=not args.no_check,
    )
    peer = None
    if not args.no_peer:
        from peers import sglang_hot

        try:
            began = time.monotonic()
            sglang_hot.build([(row, slots, top_k) for row in args.rows for slots in args.slots])
            peer = sglang_hot
            print(f"{peer.NAME} {peer.version()}, built in {time.monotonic() - began:.0f} s")
        except sglang_hot.PeerError as error:
            print(f"the peer is left out: {error}")
    found: list[Figures] = []
    for row in args.rows:
        found += one_row_size(row, made, args.batch, args.slots, shape, peer)
    print("\n" + table(found))
    kept = memory(1152, 61, 4096, top_k) if not args.no_memory else {}
    for what, gb in kept.items():
        print(f"GPU memory, {what}: {gb:.4f} GB")
    print("\n" + goals(found, kept))
    if args.json is not None:
        record = {"figures": [asdict(f) for f in found], "memory_gb": kept}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
