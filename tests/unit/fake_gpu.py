# SPDX-License-Identifier: Apache-2.0
"""A CUDA driver that runs on the CPU (tests/native/fake_cuda), built once a test run.

SAC_FAKE_CUDA in the environment names one that is built already.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-pthread", "-fvisibility=hidden")
INCLUDED = (
    "libsac/core",
    "libsac/include",
    "libsac/hotbuffer/kernels",
    "tests/native/fake_cuda",
)


@functools.cache
def library() -> str:
    """Path of the library."""
    built = os.environ.get("SAC_FAKE_CUDA")
    if built:
        return built
    folder = tempfile.mkdtemp(prefix="sac-fake-cuda-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    compiler = os.environ.get("CXX", "c++")
    include = [f"-I{ROOT / part}" for part in INCLUDED]

    def compile_one(source: Path) -> str:
        made = f"{folder}/{source.stem}.o"
        subprocess.run([compiler, *FLAGS, *include, "-c", str(source), "-o", made], check=True)
        return made

    sources = sorted((ROOT / "tests/native/fake_cuda").glob("*.cpp"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources))
    out = f"{folder}/libfake_cuda.so"
    subprocess.run([compiler, "-shared", "-pthread", *objects, "-o", out], check=True)
    return out


def use() -> None:
    """Has this process take it for CUDA; before anything of libsac asks for a GPU."""
    os.environ["SAC_LIBCUDA"] = os.environ["SAC_NVRTC"] = library()


class Knobs:
    """What the fake driver does (tests/native/fake_cuda/state.hpp), put back in the end."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(library())
        self._library.fake_cuda_get.restype = ctypes.c_long
        self._library.fake_cuda_get.argtypes = [ctypes.c_char_p]
        self._library.fake_cuda_set.argtypes = [ctypes.c_char_p, ctypes.c_long]
        self._before: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return int(self._library.fake_cuda_get(name.encode()))

    def __setitem__(self, name: str, value: int) -> None:
        self._before.setdefault(name, self[name])
        self._library.fake_cuda_set(name.encode(), value)

    def restore(self) -> None:
        for name, value in self._before.items():
            self[name] = value
