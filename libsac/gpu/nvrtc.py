# SPDX-License-Identifier: Apache-2.0
"""NVRTC, CUDA's run-time compiler: where it lies, and compiling without a GPU."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from libsac import _core
from libsac.arguments import text
from libsac.errors import ArgumentError

__all__ = ["Compiled", "compile_kernel", "find_nvrtc", "kernel_sources"]

# Where the wheels of NVIDIA put it, newest first, below the folder of the package `nvidia`.
_PLACES = ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel source, compiled.

    Attributes:
        arch: that it was compiled for: the one asked for, or an older one of its family whose
            code runs there.
        cubin_bytes: of code.
        cached: it was in the cache on disk.
        nvrtc_version: 13000 for 13.0.
        log: the compiler's, which says what each kernel uses of registers, local memory and
            shared memory.
        not_kept: why the cache could not be used; "" where it was.
    """

    arch: str
    cubin_bytes: int
    cached: bool
    nvrtc_version: int
    log: str
    not_kept: str


def find_nvrtc() -> str | None:
    """The path of NVRTC in the wheel ``nvidia-cuda-nvrtc`` (torch brings it), or None.

    Imports nothing of NVIDIA's.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for place in _PLACES:
            path = Path(folder, place)
            if path.exists():
                return os.fspath(path)
    return None


def use_found_nvrtc() -> None:
    """Tells the library where the wheel's NVRTC lies; SAC_NVRTC still goes first."""
    path = find_nvrtc()
    if path is not None:
        _core.gpu_set_nvrtc(path)


def kernel_sources() -> dict[str, str]:
    """The kernels' CUDA sources that the library carries, by file name."""
    return dict(_core.gpu_sources())


def compile_kernel(source: str, arch: str, macros: Mapping[str, int | str]) -> Compiled:
    """Compiles one of :func:`kernel_sources`, or takes it from the cache. Needs no GPU.

    For tests, which look at its log. Which macros a hot buffer or a transfer needs follows from
    its shapes: an engine's first start compiles its kernels and fills the cache.

    Args:
        source: its file name.
        arch: such as "sm_90".
        macros: name to value.

    Raises:
        GpuError: no NVRTC, or it refuses the source: then the message has its log; or an
            architecture older than sm_80.
        NotFoundError: no such source.
        ArgumentError: a malformed architecture or macro.
    """
    if not isinstance(arch, str):
        raise ArgumentError(f'arch is {arch!r}; an architecture is written "sm_90"')
    if not isinstance(macros, Mapping):
        raise ArgumentError(
            f"macros must be a mapping of names to values, not {type(macros).__name__}"
        )
    given = [(text(name, "a macro's name"), str(value)) for name, value in macros.items()]
    use_found_nvrtc()
    made = _core.gpu_compile(text(source, "source"), text(arch, "arch"), given)
    return Compiled(**made)
