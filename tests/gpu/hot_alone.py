# SPDX-License-Identifier: Apache-2.0
"""The hot buffer's kernels on a GPU with nothing built: correctness, then times.

    python tests/gpu/hot_alone.py [check] [time] [pdl] [sanitize]

Needs NumPy, cuda-core and cuda-bindings. Times are medians of graph replays, one layer a call.
"""

from __future__ import annotations

import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

TREE = Path(__file__).parents[2]
sys.path.insert(0, str(TREE / "tests"))
if "libsac" not in sys.modules:  # the reference needs no compiled module
    package = types.ModuleType("libsac")
    package.__path__ = [str(TREE / "libsac")]
    sys.modules["libsac"] = package

# Late: they need the path and the package of above.
import numpy as np  # noqa: E402
from hotkit.gpu import GpuMachine  # noqa: E402
from hotkit.scenario import LARGE, SHAPES, Life  # noqa: E402
from hotkit.shape import TABLE, Args, Plane, PlaneShape, Reset, Shape  # noqa: E402
from hotkit.world import World  # noqa: E402

from libsac.hotbuffer.policies import NAMES  # noqa: E402

STEPS, REPEATS, PAGE = 24, 21, 64


def check(machine: GpuMachine) -> None:
    """Random lives in all shapes and policies; production sizes with two kinds of numbering."""
    for name, shape in SHAPES.items():
        begin, wrong = time.time(), []
        for policy in NAMES:
            try:
                Life(machine, replace(shape, policy=policy), np.random.default_rng(5)).play(60)
            except AssertionError as error:
                wrong.append(f"{policy}: {str(error)[:300]}")
        print("check", name, wrong or "ok", round(time.time() - begin, 1), "s", flush=True)
    for units, slots in ((131072, 4096), (1 << 20, 4096), (131072, 8192)):
        for policy in NAMES:
            rng = np.random.default_rng(6)
            shape = replace(LARGE, policy=policy, units_max=units, slots=slots)
            try:
                world = World(machine, shape, rng, requests=2, units=20000, layers=1, blocks=16)
                kept = rng.choice(20000, (2, 1, 2048))
                for _ in range(12):
                    new = rng.random(kept.shape) < 0.15
                    kept = np.where(new, rng.integers(0, 6000, kept.shape), kept)
                    world.step([1, 0], kept, scores=rng.normal(size=kept.shape))
                print("check large", units, slots, policy, "ok", flush=True)
            except AssertionError as error:
                print("check large", units, slots, policy, str(error)[:300], flush=True)


def check_briefly(machine: GpuMachine) -> None:
    """A few steps of each kind, for compute-sanitizer."""
    for name in ("plain", "odd", "two-levels", "heads", "blocks", "early"):
        for policy in NAMES if name == "odd" else NAMES[:1]:
            shape = replace(SHAPES[name], policy=policy)
            Life(machine, shape, np.random.default_rng(7)).play(12)
    rng = np.random.default_rng(8)
    world = World(machine, LARGE, rng, requests=1, units=20000, layers=1, blocks=4)
    for _ in range(2):
        world.step([0], rng.integers(0, 20000, (1, 1, 2048)))


def trace(rng: np.random.Generator, batch: int, context: int, top_k: int) -> Any:
    """Selections that keep 85 percent from step to step; the rest from 13,900 units."""
    out = np.empty((STEPS, batch, top_k), np.int32)
    for b in range(batch):
        hot = rng.permutation(context)[:13900].astype(np.int32)
        now = rng.choice(hot, top_k, replace=False)
        for s in range(STEPS):
            kept = now[rng.permutation(top_k)[: int(top_k * 0.85)]]
            others = np.setdiff1d(hot, now, assume_unique=True)
            new = rng.choice(others, top_k - len(kept), replace=False)
            now = np.concatenate([kept, new])
            rng.shuffle(now)
            out[s, b] = now
    return out


class Timed:
    """One layer of a hot buffer in GPU memory, over a registered pool."""

    def __init__(
        self, m: GpuMachine, shape: Shape, batch: int, pool: Any, context: int
    ) -> None:
        self.m, self.shape, self.batch = m, shape, batch
        self.module = m.load("hot.cu", shape)
        row, pages = shape.planes[0].row_pitch(), context // PAGE
        order = np.random.default_rng(2).permutation(batch * pages).astype(np.uint64)
        lists = pool.ctypes.data + order * (PAGE * row)
        table = np.zeros(batch, TABLE)
        at = self.gpu(lists)
        for r in range(batch):
            table[r] = (at + r * pages * 8, context, 1, context, 0)
        s = shape.slots_pitch
        a = Args(table=self.gpu(table), table_size=batch, batch=batch, heads=1)
        a.slot_token, a.order = self.room(batch * s * 4), self.room(batch * s * 4)
        a.state, a.counters = self.room(batch * 16), self.room(64)
        a.errors, a.top_k = self.room(batch * 4 + 4), shape.top_k
        a.requests, a.out = self.gpu(np.arange(batch, dtype=np.int32)), self.room(batch * 8192)
        slots = self.room(batch * shape.slots * shape.planes[0].slot_pitch(1))
        a.planes[0] = Plane(slots, 0, 0)
        self.args = a
        new = Reset(a.slot_token, a.order, a.state, counters=a.counters, lanes=batch, is_new=1)
        self.module.launch("sac_reset", (1, batch, 1), new)

    def room(self, size: int) -> int:
        pointer = self.m.call("cuMemAlloc", size)
        self.m.call("cuMemsetD8", pointer, 0, size)
        return int(pointer)

    def gpu(self, array: Any) -> int:
        pointer = self.room(array.nbytes)
        self.m.call("cuMemcpyHtoD", pointer, array.ctypes.data, array.nbytes)
        return pointer

    def time(self, selections: Any, blocks: int, flags: int = 0, pdl: bool = False) -> float:
        """us a step: median of the replays of a graph of all steps."""
        call, d = self.m.call, self.m.driver
        each = selections[0].nbytes
        at = self.gpu(selections)
        grid = (blocks, self.batch, 1)
        launches = []
        for s in range(len(selections)):
            a = Args.from_buffer_copy(self.args)
            a.selection, a.flags = at + s * each, flags
            launches.append(("sac_resolve", grid, a))
        start = self.module.capture(launches, pdl=pdl)
        start()
        begin, end = call("cuEventCreate", 0), call("cuEventCreate", 0)
        times = []
        for _ in range(REPEATS):
            call("cuEventRecord", begin, self.m.stream)
            start()
            call("cuEventRecord", end, self.m.stream)
            call("cuEventSynchronize", end)
            times.append(call("cuEventElapsedTime", begin, end) * 1000 / len(selections))
        call("cuMemFree", d.CUdeviceptr(at))
        return float(np.median(times))


def times(machine: GpuMachine, pdl: bool) -> None:
    context, batches = 131072, (1, 8, 32)
    pool = machine.pool(32 * context * 1152 + 64)
    rng = np.random.default_rng(1)
    played = trace(rng, 32, context, 2048)
    for row, slot in ((1152, 1152), (656, 656), (656, 768)):
        for batch in batches:
            shape = Shape(4096, 2048, context, (PlaneShape(row, row, slot),), page_units=PAGE)
            world = Timed(machine, shape, batch, pool, context)
            chosen = np.ascontiguousarray(played[:, :batch])
            for blocks in {1: (8, 16, 32), 8: (8, 16), 32: (2, 3, 4)}[batch]:
                line = {
                    "whole": world.time(chosen, blocks),
                    "plan": world.time(chosen, blocks, flags=1),
                    "hits": world.time(np.repeat(chosen[:1], STEPS, 0), blocks),
                }
                if pdl:
                    line["whole pdl"] = world.time(chosen, blocks, pdl=True)
                    line["plan pdl"] = world.time(chosen, blocks, flags=1, pdl=True)
                shown = " ".join(f"{k} {v:.2f}" for k, v in line.items())
                print(f"row {row}/{slot} batch {batch} blocks {blocks}: {shown}", flush=True)
    for policy, slots, most in (
        *((p, 4096, context) for p in NAMES[1:]),
        ("lru", 6144, context),
        ("lru", 4096, 1 << 18),
        ("lru", 4096, 1 << 20),
    ):
        plane = (PlaneShape(1152),)
        shape = Shape(slots, 2048, most, plane, page_units=PAGE, policy=policy)
        world = Timed(machine, shape, 1, pool, context)
        chosen = np.ascontiguousarray(played[:, :1])
        whole, plan = world.time(chosen, 16), world.time(chosen, 16, flags=1)
        print(f"{policy} slots {slots} units_max {most}: whole {whole:.2f} plan {plan:.2f}")


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["check", "time"]
    try:
        gpu = GpuMachine()
    except ModuleNotFoundError as error:
        sys.exit(f"{error}: pip install -r requirements/gpu.txt")
    print("arch", gpu.arch, flush=True)
    for what in wanted:
        if what == "check":
            check(gpu)
        elif what == "sanitize":
            check_briefly(gpu)
        elif what == "time":
            times(gpu, "pdl" in wanted)
