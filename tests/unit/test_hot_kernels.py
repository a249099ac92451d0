# SPDX-License-Identifier: Apache-2.0
"""NVRTC compiles the hot buffer's kernels for every architecture, without a GPU, and they use
what they should: no local memory, so no spills, and registers for a full block."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hotkit.scenario import LARGE, SHAPES
from hotkit.shape import KERNELS, PlaneShape, Shape

from libsac import Layout
from libsac.hotbuffer.policies import NAMES
from libsac.presets import NAMES as PRESETS


def _nvrtc() -> ctypes.CDLL | None:
    """The library of the wheel nvidia-cuda-nvrtc."""
    spec = find_spec("nvidia")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        for library in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            # It looks for these by their name alone, and finds what is loaded already.
            for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(library))
    return None


NVRTC = _nvrtc()
pytestmark = pytest.mark.skipif(
    NVRTC is None, reason="needs nvidia-cuda-nvrtc (requirements/test.txt)"
)

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SHARED = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}  # a block, at most
HOT = {"resolve", "prefetch", "replay", "append", "load", "reset", "scatter"}


def compile_source(source: str, macros: dict[str, int], arch: str) -> str:
    """The compiler's log. Fails with it where NVRTC refuses the source, or warns."""
    assert NVRTC is not None
    headers = sorted(p for p in KERNELS.iterdir() if p.suffix in (".h", ".cuh"))
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v"]
    options += [f"-D{name}={value}" for name, value in macros.items()]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()

    def strings(values: list[bytes]) -> Any:
        return (ctypes.c_char_p * len(values))(*values)

    error = NVRTC.nvrtcCreateProgram(
        ctypes.byref(program), (KERNELS / source).read_bytes(), source.encode(), len(headers),
        strings([p.read_bytes() for p in headers]), strings([p.name.encode() for p in headers]),
    )  # fmt: skip
    assert error == 0
    error = NVRTC.nvrtcCompileProgram(
        program, len(options), strings([o.encode() for o in options])
    )
    NVRTC.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    NVRTC.nvrtcGetProgramLog(program, log)
    NVRTC.nvrtcDestroyProgram(ctypes.byref(program))
    told = log.value.decode(errors="replace")
    assert error == 0, told
    assert "warning" not in told, told
    return told


def usage(log: str) -> dict[str, tuple[int, int]]:
    """Registers, and bytes of local memory (stack and spills), of each kernel."""
    found: dict[str, tuple[int, int]] = {}
    for part in log.split("Compiling entry function '")[1:]:
        name = part.split("'")[0]
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", part)
        registers = re.search(r"Used (\d+) registers", part)
        assert stack is not None
        assert registers is not None
        found[name] = (int(registers[1]), int(stack[1]) + int(stack[2]))
    return found


def check(shape: Shape, arch: str) -> None:
    used = usage(compile_source("hot.cu", shape.macros(), arch))
    assert set(used) == {f"sac_{name}" for name in HOT}
    for name, (registers, local) in used.items():
        assert local == 0, f"{name} uses {local} bytes of local memory"
        assert registers * shape.threads <= 65536, f"{name}: {registers} registers"
    assert shape.shared_bytes(shape.top_k) + shape.early_bytes() + 1024 <= SHARED[arch]


def groups(preset: str) -> dict[tuple[PlaneShape, ...], int]:
    """The planes of a preset's groups of rows, with the units of a page."""
    layout = Layout.preset(preset)
    found: dict[str, list[Any]] = {}
    for plane in layout.planes:
        if plane.kind == "rows":
            found.setdefault(plane.group, []).append(plane)
    return {
        tuple(PlaneShape(p.row_bytes, p.row_pitch) for p in planes): planes[0].rows
        for planes in found.values()
        if len(planes) <= 4
    }


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset(preset: str, arch: str) -> None:
    found = groups(preset)
    assert found
    for planes, page_units in found.items():
        check(replace(LARGE, planes=planes, page_units=page_units), arch)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("policy", NAMES)
def test_every_policy(policy: str, arch: str) -> None:
    for slots, units in ((4096, 1 << 17), (6144, 1 << 20), (8192, 1 << 17)):
        check(replace(LARGE, policy=policy, slots=slots, units_max=units), arch)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_the_tests(name: str) -> None:
    check(SHAPES[name], "sm_90")


@pytest.mark.parametrize("block", [1, 16, 128])
def test_blocks_of_heads(block: int) -> None:
    """K and V of 256 bytes, selected by blocks."""
    planes = (PlaneShape(256), PlaneShape(256))
    shape = Shape(1024, 512, 8192, planes, heads=8, block=block, page_units=128 // block)
    check(shape, "sm_90")


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("row", [1152, 656, 584, 132])
def test_gather(row: int, arch: str) -> None:
    shape = Shape(planes=(PlaneShape(row),))
    used = usage(compile_source("gather.cu", shape.macros(), arch))
    assert used["sac_gather"][1] == 0


def test_what_does_not_fit_is_refused_when_compiling() -> None:
    with pytest.raises(AssertionError, match="static assertion failed"):
        compile_source("hot.cu", {**Shape().macros(), "SAC_SLOTS": 8193}, "sm_90")
    with pytest.raises(AssertionError, match="access"):
        compile_source("hot.cu", {**Shape().macros(), "SAC_ACCESS_0": 16}, "sm_90")
