# SPDX-License-Identifier: Apache-2.0
"""The kernels on a GPU.

Memory is NumPy arrays. Each has a twin in GPU memory, which is brought up to date before a
launch and read back behind it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hotkit.machine import Array, Grid, Launch, shared_bytes
from hotkit.shape import KERNELS, Shape

PAGE = mmap.PAGESIZE


class GpuMachine:
    """The first GPU, through cuda.core and the driver."""

    def __init__(self) -> None:
        driver = import_module("cuda.bindings.driver")
        core = import_module("cuda.core")

        self.driver = driver
        self.device = core.Device(0)
        self.device.set_current()
        self.arch = "sm_" + "".join(str(n) for n in self.device.compute_capability)
        self.stream = self.call("cuStreamCreate", 0)
        self.built: dict[tuple[str, Shape], GpuModule] = {}
        self.twins: dict[int, tuple[int, int]] = {}
        self.pools: list[Array] = []

    def call(self, name: str, *args: Any) -> Any:
        error, *values = getattr(self.driver, name)(*args)
        if int(error) != 0:
            raise RuntimeError(f"{name}: {error!r}")
        return values[0] if values else None

    def array(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        array: Array = np.zeros(shape, dtype)
        start, size = int(array.ctypes.data), max(array.nbytes, 1)
        twin = int(self.call("cuMemAlloc", size))
        self.twins[start] = (array.nbytes, twin)
        weakref.finalize(array, self._forget, start).atexit = False
        return array

    def _forget(self, start: int) -> None:
        self.call("cuMemFree", self.twins.pop(start)[1])

    def pool(self, size: int, parts: Sequence[tuple[int, int]] = ()) -> Array:
        array = np.frombuffer(_memfd(size), np.uint8)
        base = int(array.ctypes.data)
        for begin, end in parts or [(0, size)]:  # whole pages of the host: what lies there
            first, last = begin // PAGE * PAGE, min(-(-end // PAGE) * PAGE, size)
            portable_and_mapped = 3
            self.call("cuMemHostRegister", base + first, last - first, portable_and_mapped)
        self.pools.append(array)
        return array

    def far(self, size: int, byte: int) -> GpuFar:
        return GpuFar(self, size, byte)

    def address(self, array: Array | None) -> int:
        if array is None:
            return 0
        at = int(array.ctypes.data)
        for start, (size, twin) in self.twins.items():
            if start <= at < start + max(size, 1):
                return twin + at - start
        assert any(p.ctypes.data <= at < p.ctypes.data + p.nbytes for p in self.pools)
        return at

    def upload(self) -> None:
        for start, (size, twin) in self.twins.items():
            self.call("cuMemcpyHtoD", twin, start, size)

    def download(self) -> None:
        self.call("cuStreamSynchronize", self.stream)
        for start, (size, twin) in self.twins.items():
            self.call("cuMemcpyDtoH", start, twin, size)

    def load(self, source: str, shape: Shape) -> GpuModule:
        if (source, shape) not in self.built:
            self.built[source, shape] = GpuModule(self, source, shape)
        return self.built[source, shape]


class GpuFar:
    def __init__(self, machine: GpuMachine, size: int, byte: int) -> None:
        self.call = machine.call
        self.address = int(self.call("cuMemAlloc", size))
        weakref.finalize(self, self.call, "cuMemFree", self.address).atexit = False
        self.call("cuMemsetD8", self.address, byte, size)

    def read(self, at: int, into: Array) -> None:
        self.call("cuMemcpyDtoH", into.ctypes.data, self.address + at, into.nbytes)


def _memfd(size: int) -> Any:
    fd = os.memfd_create("pool")
    os.ftruncate(fd, size)
    memory = mmap.mmap(fd, size)
    os.close(fd)
    return memory


class GpuModule:
    def __init__(self, machine: GpuMachine, source: str, shape: Shape) -> None:
        core = import_module("cuda.core")
        self.machine, self.shape = machine, shape
        options = core.ProgramOptions(
            arch=machine.arch,
            std="c++17",
            include_path=[str(KERNELS)],
            define_macro=[(k, str(v)) for k, v in shape.macros().items()],
        )
        code = (
            core.Program((KERNELS / source).read_text(), "c++", options).compile("cubin").code
        )
        self.code = bytes(code)
        self.module = machine.call("cuModuleLoadData", self.code)
        self.functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        if name not in self.functions:
            found = self.machine.call("cuModuleGetFunction", self.module, name.encode())
            attribute = self.machine.driver.CUfunction_attribute
            most = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.machine.call("cuFuncSetAttribute", found, most, shared_bytes(name, self.shape))
            self.functions[name] = found
        return self.functions[name]

    def enqueue(
        self, name: str, grid: Grid, args: ctypes.Structure, *, pdl: bool = False
    ) -> None:
        """Launches on the machine's stream; pdl: may begin while the kernel before it ends."""
        d, pointers = self.machine.driver, (ctypes.c_void_p * 1)(ctypes.addressof(args))
        config = d.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self.shape.threads, 1, 1
        config.sharedMemBytes = shared_bytes(name, self.shape)
        config.hStream = self.machine.stream
        if pdl:
            attribute = d.CUlaunchAttribute()
            which = d.CUlaunchAttributeID
            attribute.id = which.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        params = ctypes.addressof(pointers)
        self.machine.call("cuLaunchKernelEx", config, self.function(name), params, 0)

    def launch(self, name: str, grid: Grid, args: ctypes.Structure) -> None:
        self.machine.upload()
        self.enqueue(name, grid, args)
        self.machine.download()

    def graph(self, launches: Sequence[Launch]) -> Callable[[], None]:
        start = self.capture(launches)

        def replay() -> None:
            self.machine.upload()
            start()
            self.machine.download()

        return replay

    def capture(self, launches: Sequence[Launch], *, pdl: bool = False) -> Callable[[], None]:
        """As graph, without waiting for the end."""
        call, stream = self.machine.call, self.machine.stream
        for name, _, _ in launches:
            self.function(name)
        call("cuStreamBeginCapture", stream, self.machine.driver.CUstreamCaptureMode(2))
        for name, grid, args in launches:
            self.enqueue(name, grid, args, pdl=pdl)
        graph = call("cuGraphInstantiate", call("cuStreamEndCapture", stream), 0)

        return lambda: call("cuGraphLaunch", graph, stream)
