# SPDX-License-Identifier: Apache-2.0
"""Many processes that gather from one pool at once, against what the cores do alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from common import Bare, Section, median
from gatherer import COUNT, PAGE_TOKENS, PLANE, ROW, layout
from house import House, pool_size, shm

HERE = Path(__file__).resolve().parent
PROCESSES = 8
SPELL_S = 2.0
END_S = 30.0


class Gatherers:
    """The processes; a spell is the same work in some of them for SPELL_S seconds."""

    def __init__(self, stack: ExitStack, command: list[str], count: int) -> None:
        self.all: list[subprocess.Popen[str]] = []
        for seed in range(count):
            process = subprocess.Popen(
                [*command, str(seed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(self._end, process)
            self.all.append(process)
        for process in self.all:
            if self._line(process).strip() != "ready":
                raise RuntimeError("a gathering process failed; see above")

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline()

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def spell(self, what: str, count: int) -> tuple[float, list[int]]:
        """GB/s of the first count processes together, and nanoseconds of all their calls."""
        some = self.all[:count]
        begin = time.monotonic_ns()
        # One end for all: with an end each, the last ones would have the cores for themselves.
        end = begin + int(SPELL_S * 1e9)
        for process in some:
            assert process.stdin is not None
            process.stdin.write(f"{what} {end}\n")
            process.stdin.flush()
        calls = [call for process in some for call in json.loads(self._line(process))]
        return len(calls) * COUNT * ROW / (end - begin), calls


def run(rows: int = 1 << 20, rounds: int = 5) -> Section:
    """Spells by turns: the bare loop in a process a core, in all processes, and our gather."""
    cores = len(os.sched_getaffinity(0))
    section = Section(
        f"{PROCESSES} processes gather {COUNT} random rows of {ROW} B a call from "
        f"{rows * ROW / 2**30:.2f} GiB",
        f"the bare loop over the same memory in a process a core ({cores})",
    )
    pages = rows // PAGE_TOKENS
    with ExitStack() as stack:
        folder = stack.enter_context(shm())
        house = stack.enter_context(House(folder / "house"))
        house.pool("many", [pool_size(rows * ROW)])
        with house.connect("many") as pool:
            ns = pool.namespace("rows", layout())
            keys = ns.keys(np.arange(pages * PAGE_TOKENS, dtype=np.uint32))
            block = np.ones((64, PAGE_TOKENS, ROW), np.uint8)
            for at in range(0, pages, 64):
                with ns.put(keys[at : at + 64]) as put:
                    put.write(PLANE, 0, block[: len(put.missing)])
        library = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "bare.so"
        Bare.compile(library)
        words = [str(HERE / "gatherer.py"), str(house.socket), "many", "rows", str(library)]
        gatherers = Gatherers(stack, [sys.executable, *words], PROCESSES)
        alone: list[float] = []
        bare: list[float] = []
        ours: list[float] = []
        calls: list[int] = []
        for _ in range(rounds):
            alone.append(gatherers.spell("bare", cores)[0])
            bare.append(gatherers.spell("bare", PROCESSES)[0])
            rate, taken = gatherers.spell("ours", PROCESSES)
            ours.append(rate)
            calls += taken
        one = [gatherers.spell("ours", 1) for _ in range(rounds)]
    section.add(f"bare loop, {cores} processes", median(alone), "GB/s")
    section.add(f"bare loop, {PROCESSES} processes", median(bare), "GB/s")
    section.add(f"gather, {PROCESSES} processes", median(ours), "GB/s")
    share = median(a / b for a, b in zip(ours, alone, strict=True))
    section.add("gather / what the cores do alone", share, "x", (">=", 0.9))
    p50, p99 = np.percentile(calls, [50, 99]) / 1e3
    note = f"of {len(calls)} calls; {PROCESSES} processes share {cores} cores"
    section.add(f"a call, {PROCESSES} processes, p50", p50, "us")
    section.add(f"a call, {PROCESSES} processes, p99", p99, "us", note=note)
    p50, p99 = np.percentile([t for _, taken in one for t in taken], [50, 99]) / 1e3
    section.add("a call, one process, p50", p50, "us")
    section.add("a call, one process, p99", p99, "us")
    return section
