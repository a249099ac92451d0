# SPDX-License-Identifier: Apache-2.0
"""Programs that measure or test on a GPU say in a line what they lack here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="benchmarks/ is in the sources only"
)


def run(*words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr, without a GPU."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["bulk", "two_gpus", "hot_buffer"])
def test_without_a_gpu(name: str) -> None:
    pytest.importorskip("torch")
    said = (1, "", "there is no GPU here that torch can use\n")
    assert run(f"benchmarks/{name}.py") == said


def test_the_kernels_alone_without_their_packages() -> None:
    begin = "import runpy, sys; sys.modules['cuda'] = None; sys.argv[1:] = ['check']; "
    status, out, error = run(
        "-c", begin + "runpy.run_path('tests/gpu/hot_alone.py', run_name='__main__')"
    )
    assert (status, out) == (1, "")
    assert error.endswith(": pip install -r requirements/gpu.txt\n")
    assert len(error.splitlines()) == 1
