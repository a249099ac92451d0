# SPDX-License-Identifier: Apache-2.0
"""The hot buffer on several GPUs of one host at once, one process a GPU, each with a pool of
its own on its GPU's NUMA node: ``python benchmarks/two_gpus.py``.

Each process first measures alone while the others wait, then all at once. What they share is
the host's memory and its bridges; a ratio of 1 says that they do not disturb each other.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import machine
from hot import traces

LIMIT_S = 240


def main() -> int:
    parser = argparse.ArgumentParser(prog="two_gpus", description=__doc__)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--row", type=int, default=1152, help="bytes")
    parser.add_argument("--context", type=int, default=131072)
    parser.add_argument("--top-k", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--path", default="gpu", choices=["gpu", "cpu"])
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("there is no GPU here that torch can use", file=sys.stderr)
        return 1
    if torch.cuda.device_count() < args.gpus:
        there = torch.cuda.device_count()
        print(f"torch sees {there} GPUs here, not {args.gpus}: give --gpus", file=sys.stderr)
        return 1
    print(machine())
    print(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(args.gpus)
    answers = context.Queue()
    workers = [
        context.Process(target=_worker, args=(gpu, args, barrier, answers), daemon=True)
        for gpu in range(args.gpus)
    ]
    for worker in workers:
        worker.start()
    found: dict[int, Any] = {}
    end = time.monotonic() + LIMIT_S
    while len(found) < args.gpus and time.monotonic() < end:
        with suppress(Exception):  # nothing came yet
            gpu, answer = answers.get(timeout=1)
            found[gpu] = answer
        if any(w.exitcode not in (None, 0) for w in workers):
            break
    for worker in workers:
        worker.join(10)
        if worker.is_alive():
            worker.kill()
    if len(found) < args.gpus:
        print("a process failed; its own words are above", file=sys.stderr)
        return 1
    print("gpu  node  alone us  GB/s  together us  GB/s  together/alone")
    for gpu, (node, alone, together, moved) in sorted(found.items()):
        print(
            f"{gpu:3} {node:5} {alone:9.1f} {moved / alone / 1000:5.1f} {together:12.1f} "
            f"{moved / together / 1000:5.1f} {together / alone:15.3f}"
        )
    return 0


def _near(gpu: int) -> int:
    """Binds this process to the cores of the GPU's NUMA node, so that the pool's memory is
    touched there first; the node's number, -1 where the system does not tell."""
    import torch

    properties = torch.cuda.get_device_properties(gpu)
    with suppress(AttributeError, OSError, ValueError):
        address = (
            f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:"
            f"{properties.pci_device_id:02x}.0"
        )
        node = int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text())
        listed = Path(f"/sys/devices/system/node/node{node}/cpulist").read_text().strip()
        cores: set[int] = set()
        for run in listed.split(","):
            first, _, last = run.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
        os.sched_setaffinity(0, cores & os.sched_getaffinity(0))
        return node
    return -1


def _worker(gpu: int, args: argparse.Namespace, barrier: Any, answers: Any) -> None:
    import torch
    from hot.pool import Contexts
    from hot.timing import captured

    import libsac

    node = _near(gpu)
    torch.cuda.set_device(gpu)
    made = traces.closed(args.steps, args.batch, args.context, args.top_k, seed=gpu + 1)
    steps = torch.from_numpy(made).cuda()
    requests = torch.arange(args.batch, dtype=torch.int32, device="cuda")
    with Contexts(args.batch, args.context, args.row) as pool:
        buffer = libsac.HotBuffer(
            pool.ns,
            requests=args.batch,
            slots=args.slots,
            top_k=args.top_k,
            path=args.path,
            max_tokens=args.context,
        )
        with closing(buffer):
            for request, prefix in enumerate(pool.prefixes):
                buffer.bind(request, prefix)
            graph = captured(
                lambda n: buffer.resolve("row", 0, requests, steps[n]), args.steps
            ).graph
            graph.replay()
            torch.cuda.synchronize()
            before = buffer.stats().bytes
            graph.replay()
            torch.cuda.synchronize()
            moved = (buffer.stats().bytes - before) / args.steps
            alone = 0.0
            for turn in range(args.gpus):
                barrier.wait(LIMIT_S)
                if turn == gpu:
                    alone = _time(graph, args.seconds) / args.steps
            barrier.wait(LIMIT_S)
            together = _time(graph, args.seconds) / args.steps
            barrier.wait(LIMIT_S)
            answers.put((gpu, (node, alone, together, moved)))


def _time(graph: Any, seconds: float) -> float:
    """Microseconds of a replay, the median of those that fit into that time."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    taken = []
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) * 1000)
    return float(median(taken))


if __name__ == "__main__":
    sys.exit(main())
