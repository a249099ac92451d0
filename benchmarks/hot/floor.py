# SPDX-License-Identifier: Apache-2.0
"""The floor of a step: so many rows read straight from the pool's memory, and nothing else."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hot.timing import captured, replayed

# Blocks and threads; the best of them is the floor.
GRIDS = ((16, 1024), (32, 1024), (64, 256), (96, 128), (132, 256), (132, 1024), (264, 128))


class _Stream:
    """torch's current stream, as cuda.core takes it."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, torch.cuda.current_stream().cuda_stream


class Floor:
    """The kernel of floor.cu for one size of row. Raises SystemExit without cuda.core."""

    def __init__(self, row_bytes: int, pitch: int | None = None) -> None:
        try:
            self._core: Any = import_module("cuda.core")
        except ImportError:
            raise SystemExit("the floor needs cuda.core: pip install cuda-core") from None
        self.pitch = pitch or row_bytes
        self._device = self._core.Device(torch.cuda.current_device())
        self._device.set_current()
        access = next(n for n in (16, 8, 4) if row_bytes % n == self.pitch % n == 0)
        macros = {"ROW_BYTES": row_bytes, "PITCH": self.pitch, "ACCESS": access}
        options = self._core.ProgramOptions(
            arch=f"sm_{self._device.arch}",
            std="c++17",
            define_macro=[(name, str(value)) for name, value in macros.items()],
        )
        source = (Path(__file__).parent / "floor.cu").read_text()
        self._module = self._core.Program(source, "c++", options).compile("cubin")
        self._kernel = self._module.get_kernel("floor_copy")

    def call(self, addresses: Any, target: Any, rows: int, grid: int, threads: int) -> None:
        """Copies on the current stream. addresses: int64 CUDA tensor, as the GPU sees them."""
        self._core.launch(
            self._device.create_stream(_Stream()),
            self._core.LaunchConfig(grid=grid, block=threads),
            self._kernel,
            addresses.data_ptr(),
            target.data_ptr(),
            np.int32(rows),
        )

    def measure(self, addresses: NDArray[np.uint64]) -> tuple[float, tuple[int, int]]:
        """Microseconds of a step at its best grid, and the grid.

        addresses: (steps, rows) of rows in registered memory, other rows each step.
        """
        steps, rows = addresses.shape
        if rows == 0:
            return 0.0, (0, 0)
        lists = torch.from_numpy(addresses.view(np.int64)).cuda()
        target = torch.empty(rows * self.pitch, dtype=torch.uint8, device="cuda")

        def work(grid: int, threads: int) -> Any:
            return captured(
                lambda n: self.call(lists[n], target, rows, grid, threads), steps, warm=False
            )

        graphs = {f"{g} {t}": work(g, t) for g, t in GRIDS}
        name, best = min(replayed(graphs, 11).items(), key=lambda item: item[1])
        grid, threads = map(int, name.split())
        return best, (grid, threads)
