# SPDX-License-Identifier: Apache-2.0
"""Tests that need a GPU: pytest -m gpu. Without one they are skipped.

A process has one CUDA driver for good: the GPU's here, the one for tests (unit/fake_gpu.py)
elsewhere. A run of both is a run of the others.
"""

from __future__ import annotations

import os

import pytest

# Modules of other tests set these when they are collected, run or not.
_GIVEN = {name: os.environ.get(name) for name in ("SAC_LIBCUDA", "SAC_NVRTC")}


@pytest.hookimpl(trylast=True)  # behind -m and -k
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("SAC_TEST_FAKE_GPU") == "1":
        return
    ours = [item for item in items if item.get_closest_marker("gpu")]
    if len(ours) < len(items):
        reason = "on a GPU by themselves: pytest -m gpu (docs/gpu-testing.md)"
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=reason))
        return
    for name, value in _GIVEN.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
