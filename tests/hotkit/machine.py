# SPDX-License-Identifier: Apache-2.0
"""Where kernels run: on this CPU, from the same sources, or (gpu.py) on a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hotkit.shape import APPEND_MAX, KERNELS, Shape

Array = NDArray[Any]
Grid = tuple[int, int, int]
Launch = tuple[str, Grid, ctypes.Structure]


class Machine(Protocol):
    def array(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        """Zeros that kernels can read and write."""

    def pool(self, size: int, parts: Sequence[tuple[int, int]] = ()) -> Array:
        """Bytes as a pool's mapping is: ordinary memory that the GPU reads as it lies.

        parts: (begin, end) of what is used of it; none: all.
        """

    def far(self, size: int, byte: int) -> Far:
        """Memory for kernels alone, each byte of that value."""

    def address(self, array: Array | None) -> int:
        """Where kernels find an array, or a part of one. 0 for None."""

    def load(self, source: str, shape: Shape) -> Module: ...


class Far(Protocol):
    address: int

    def read(self, at: int, into: Array) -> None:
        """Copies bytes from ``at`` on."""


class Module(Protocol):
    def launch(self, name: str, grid: Grid, args: ctypes.Structure) -> None:
        """Runs a kernel to its end."""

    def graph(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """Something to call that runs all of them, again and again, to their end."""


def shared_bytes(name: str, shape: Shape) -> int:
    """Dynamic shared memory of a kernel."""
    if name in ("sac_resolve", "sac_prefetch"):
        early = shape.early_bytes() if shape.early and name == "sac_resolve" else 0
        return shape.shared_bytes(shape.top_k) + early
    return shape.shared_bytes(APPEND_MAX) if name == "sac_append" else 0


class CpuMachine:
    """Kernels on this CPU: see cuda_on_cpu.hpp. ``seed`` draws the order of threads."""

    compiler = shutil.which("g++")

    def __init__(self, seed: int = 0) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.seed = seed
        self.built: dict[tuple[str, Shape], ctypes.CDLL] = {}

    def array(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        return np.zeros(shape, dtype)

    def pool(self, size: int, parts: Sequence[tuple[int, int]] = ()) -> Array:
        return np.zeros(size, np.uint8)

    def far(self, size: int, byte: int) -> CpuFar:
        return CpuFar(size, byte)

    def address(self, array: Array | None) -> int:
        return 0 if array is None else int(array.ctypes.data)

    def load(self, source: str, shape: Shape) -> CpuModule:
        if (source, shape) not in self.built:
            assert self.compiler is not None
            target = Path(self.folder.name) / f"{len(self.built)}.so"
            here = Path(__file__).parent
            defines = [f"-D{k}={v}" for k, v in shape.macros().items()]
            if source == "gather.cu":
                defines.append("-DSAC_GATHER")
            command = [
                self.compiler,
                "-std=c++20",
                "-O1",
                "-fno-extern-tls-init",
                "-fno-strict-aliasing",
                "-w",
            ]
            command += ["-shared", "-fPIC", f"-I{KERNELS}", *defines]
            subprocess.run([*command, str(here / "on_cpu.cpp"), "-o", str(target)], check=True)
            self.built[source, shape] = ctypes.CDLL(str(target))
        return CpuModule(self, self.built[source, shape])


class CpuFar:
    def __init__(self, size: int, byte: int) -> None:
        self.memory = np.full(size, byte, np.uint8)
        self.address = int(self.memory.ctypes.data)

    def read(self, at: int, into: Array) -> None:
        into[:] = self.memory[at : at + len(into)]


class CpuModule:
    def __init__(self, machine: CpuMachine, library: ctypes.CDLL) -> None:
        self.machine = machine
        self.run = library.sac_on_cpu
        self.run.argtypes = [
            ctypes.c_char_p,
            *[ctypes.c_uint] * 3,
            ctypes.c_void_p,
            ctypes.c_uint64,
        ]

    def launch(self, name: str, grid: Grid, args: ctypes.Structure) -> None:
        self.machine.seed += 1
        assert self.run(name.encode(), *grid, ctypes.addressof(args), self.machine.seed) == 0

    def graph(self, launches: Sequence[Launch]) -> Callable[[], None]:
        def replay() -> None:
            for name, grid, args in launches:
                self.launch(name, grid, args)

        return replay
