# SPDX-License-Identifier: Apache-2.0
"""Machines without CUDA, with the wrong one, or with wrong settings: what is said of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import libsac
import libsac.hotbuffer


def python(code: str, **environment: str) -> str:
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_brings_nothing_of_cuda() -> None:
    code = (
        "import sys, libsac, libsac.gpu\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'cuda', 'nvidia')])\n"
        "print([m for m in open('/proc/self/maps') if 'libcuda' in m or 'nvrtc' in m])"
    )
    assert python(code) == "[]\n[]"


def _empty_names(folder: Path) -> str:
    """LD_LIBRARY_PATH with files of CUDA's names that are no libraries: found, and refused."""
    for name in ("libcuda.so.1", "libnvrtc.so.13", "libnvrtc.so.12"):
        (folder / name).write_bytes(b"")
    return os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")])


def test_without_cuda_the_error_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import libsac.gpu as gpu\n"
        "from libsac.errors import GpuError\n"
        "for call in (gpu.Device, lambda: gpu.compile_kernel('args.h', 'sm_90', {})):\n"
        "    try: call()\n"
        "    except GpuError as e: print(e.errno, e)\n"
    )
    out = python(code, SAC_LIBCUDA="/nowhere/cuda.so", SAC_NVRTC="/nowhere/nvrtc.so")
    driver, nvrtc = out.splitlines()
    assert driver.startswith("0 SAC_LIBCUDA names a CUDA driver that cannot be loaded (/nowh")
    assert "Set it right, or unset it" in driver
    assert nvrtc.startswith("0 SAC_NVRTC names an NVRTC, CUDA's run-time compiler, that cannot")
    assert "unset it: then the one that pip install nvidia-cuda-nvrtc" in nvrtc
    os.mkfifo(tmp_path / "pipe")  # opening one would wait for ever
    out = python(code, SAC_LIBCUDA=str(tmp_path / "pipe"), SAC_NVRTC=str(tmp_path))
    driver, nvrtc = out.splitlines()
    assert f"cannot be loaded ({tmp_path}/pipe: is no file)" in driver
    assert f"({tmp_path}: is no file)" in nvrtc
    # No setting, and a machine that does not have it: both are searched by name. Here NVRTC's
    # wheel may be installed.
    without = "import libsac.gpu.nvrtc as n\nn.find_nvrtc = lambda: None\n" + code
    out = python(without, SAC_LIBCUDA="", SAC_NVRTC="", LD_LIBRARY_PATH=_empty_names(tmp_path))
    driver, nvrtc = out.splitlines()
    assert driver.startswith("0 The CUDA driver is not there (")
    assert "Install NVIDIA's driver" in driver
    assert nvrtc.startswith("0 NVRTC, CUDA's run-time compiler, is not there (")
    assert "pip install nvidia-cuda-nvrtc" in nvrtc
    assert "name its libnvrtc.so in SAC_NVRTC" in nvrtc
    out = python(code, SAC_LIBCUDA="libc.so.6", SAC_NVRTC="libc.so.6")
    assert out.splitlines() == [
        (
            "0 SAC_LIBCUDA: libc.so.6 is no CUDA driver: it has no cuInit. Set it right, or "
            "unset it: then the system's libcuda.so.1 is used."
        ),
        (
            "0 SAC_NVRTC: libc.so.6 is no NVRTC: it has no nvrtcVersion. Set it right, or "
            "unset it: then the one that pip install nvidia-cuda-nvrtc or the CUDA toolkit "
            "brings is used."
        ),
    ]


def test_a_driver_that_is_too_old(tmp_path: Path) -> None:
    (tmp_path / "old.c").write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "old.c", "-o", "old.so"], cwd=tmp_path, check=True
    )
    code = (
        "import libsac.gpu\n"
        "try: libsac.gpu.Device()\n"
        "except libsac.errors.GpuError as e: print(e)\n"
    )
    said = python(code, SAC_LIBCUDA=str(tmp_path / "old.so"))
    assert "has no cuDriverGetVersion: it is too old. Install NVIDIA's driver" in said


def test_what_is_there_is_told() -> None:
    for module in (libsac, libsac.hotbuffer):
        assert set(module.__all__) <= set(dir(module))


def test_nvrtc_of_a_wheel_is_found(tmp_path: Path) -> None:
    library = tmp_path / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    code = "import libsac.gpu; print(libsac.gpu.find_nvrtc())"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert python(code, PYTHONPATH=path) == str(library)
