# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: interleaved timing, results, the bare loop."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent


@dataclass
class Result:
    """One line of the report. goal: ("<" or ">=", number) that value must meet."""

    what: str
    value: float
    unit: str
    goal: tuple[str, float] | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        sign, number = self.goal
        return self.value < number if sign == "<" else self.value >= number


@dataclass
class Section:
    """A benchmark's results and the floor they are measured against."""

    title: str
    floor: str = ""
    results: list[Result] = field(default_factory=list)

    def add(
        self,
        what: str,
        value: float,
        unit: str,
        goal: tuple[str, float] | None = None,
        note: str = "",
    ) -> None:
        self.results.append(Result(what, value, unit, goal, note))


def interleaved(
    works: dict[str, Callable[[int], object]], repeats: int, warm: int = 3, burst: int = 1
) -> dict[str, list[float]]:
    """Seconds of each work, one after the other in every round, so that noise hits all alike.

    A work gets the round's number, to vary its input. burst: calls of it in a row, as the
    layers of a decode step make them; their mean counts.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for n in range(-warm, repeats):
        for name, work in works.items():
            start = time.perf_counter()
            for _ in range(burst):
                work(n % max(repeats, 1))
            taken = (time.perf_counter() - start) / burst
            if n >= 0:
                times[name].append(taken)
    return times


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def ratio(times: dict[str, list[float]], faster: str, slower: str) -> float:
    """How many times faster ``faster`` was: median of the rounds' ratios."""
    return median(s / f for f, s in zip(times[faster], times[slower], strict=True))


class Bare:
    """The limit: benchmarks/bare.cpp, compiled now."""

    def __init__(self, library: Path | None = None) -> None:
        """library: compiled before, for another process; None: compiles it."""
        with tempfile.TemporaryDirectory() as folder:
            if library is None:
                library = Path(folder) / "bare.so"
                self.compile(library)
            self._lib = ctypes.CDLL(str(library))

    @staticmethod
    def compile(library: Path) -> None:
        """Writes the shared library. Raises SystemExit where there is no compiler."""
        compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
        if compiler is None:
            raise SystemExit("benchmarks need a C++ compiler: apt-get install g++")
        options = ["-std=c++20", "-O3", "-falign-loops=64", "-shared", "-fPIC"]
        subprocess.run(
            [*compiler.split(), *options, str(HERE / "bare.cpp"), "-o", str(library)],
            check=True,
        )

    def rows(
        self,
        addresses: NDArray[np.uint64],
        row_bytes: int,
        out: NDArray[np.uint8],
        stream: bool,
    ) -> None:
        self._lib.bare_rows(
            ctypes.c_void_p(addresses.ctypes.data),
            ctypes.c_size_t(len(addresses)),
            ctypes.c_size_t(row_bytes),
            ctypes.c_void_p(out.ctypes.data),
            ctypes.c_int(stream),
        )

    def memcpy(self, source: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        self._lib.bare_memcpy(
            ctypes.c_void_p(source.ctypes.data),
            ctypes.c_size_t(source.nbytes),
            ctypes.c_void_p(out.ctypes.data),
        )


def aligned(nbytes: int, huge: bool = False) -> NDArray[np.uint8]:
    """A touched uint8 buffer on a page boundary; huge: with huge pages asked for."""
    memory = mmap.mmap(-1, nbytes + (2 << 20))
    array = np.frombuffer(memory, np.uint8)
    skip = -array.ctypes.data % (2 << 20)
    if huge:
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = array[skip : skip + nbytes]
    array[::4096] = 1
    return array


def machine() -> str:
    """The processor, for the report."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    cores = len(os.sched_getaffinity(0))
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{model}, {cores} cores, {system}"


def company() -> str:
    """What else the reader must know: other work on the cores, and a real-time policy."""
    text = f", load {os.getloadavg()[0]:.1f}"
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        text += f", real-time priority {os.sched_getparam(0).sched_priority}"
    return text
