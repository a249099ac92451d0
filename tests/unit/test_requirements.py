# SPDX-License-Identifier: Apache-2.0
"""What tests need is there, so none is skipped unseen; and GPU tests keep to themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def pins(name: str) -> dict[str, str]:
    """Package to version of a file in requirements/."""
    text = (ROOT / "requirements" / name).read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.M))


@pytest.mark.parametrize("package", sorted(pins("test.txt")))
def test_packages_of_the_tests_are_installed(package: str) -> None:
    """Tests of optional packages are skipped where these are missing: here that fails."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        pytest.fail(f"{package} is missing: pip install -r requirements/test.txt")


def test_packages_in_two_files_have_one_version() -> None:
    files = {p.name: pins(p.name) for p in (ROOT / "requirements").glob("*.txt")}
    assert {"test.txt", "gpu.txt"} <= files.keys()
    for package in {name for one in files.values() for name in one}:
        found = {name: one[package] for name, one in files.items() if package in one}
        assert len(set(found.values())) == 1, f"{package}: {found}"


def run(*words: str) -> str:
    """A pytest of its own; what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_gpu_tests_are_skipped_beside_others_and_say_why() -> None:
    said = run("tests/gpu/test_trace_gpu.py", "tests/unit/test_sizes.py")
    assert "pytest -m gpu" in said
    assert re.search(r"\d+ passed, \d+ skipped", said), said


def test_only_gpu_tests_are_asked_for_by_their_mark() -> None:
    said = run("-m", "gpu", "--collect-only", "tests/gpu", "tests/unit/test_sizes.py")
    assert "tests/gpu/test_hot_buffer.py" in said
    assert "test_sizes" not in said
