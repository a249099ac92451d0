# SPDX-License-Identifier: Apache-2.0
"""The script of steps that the simulator is checked with too: the kernel must answer each
write as it says (tests/steps)."""

from __future__ import annotations

from vm.guest.kit import sh

# The newer kernel only on machines that other scenarios start.
TOPOLOGIES = {
    "6.12": ("1hb1", "1hb2", "1hb4", "2hb2", "2hb2g4k", "2hb4", "4hb4", "sw2", "sw4"),
    "7.3": ("1hb1", "1hb2", "2hb2", "2hb4", "4hb4", "sw4"),
}
LIMIT = 180


def test_the_kernel_answers_as_the_script_says() -> None:
    paths = "PYTHONPATH=/payload/tests:/payload/product"
    done = sh("env", paths, "python3", "-P", "-m", "steps", limit=170)
    assert " 0 differ" in done.out
