# SPDX-License-Identifier: Apache-2.0
"""As steps.py, for steps after which memory is lost until the machine is started anew."""

from __future__ import annotations

from vm.guest.kit import sh

LEAVES = "the steps leak memory on purpose"
LIMIT = 180


def test_the_kernel_answers_as_the_script_says() -> None:
    paths = "PYTHONPATH=/payload/tests:/payload/product"
    script = ("--script", "/payload/tests/steps/leak.steps")
    done = sh("env", paths, "python3", "-P", "-m", "steps", *script, limit=170)
    assert " 0 differ" in done.out
