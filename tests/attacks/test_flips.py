# SPDX-License-Identifier: Apache-2.0
"""Random damage: typed errors or lost pages, never a crash, never a wrong byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from system.run import environment


@pytest.mark.parametrize(("kind", "count"), [("metadata", 120), ("rows", 40)])
def test_random_damage(
    kind: str, count: int, template: Path, tmp_path: Path, seed: int
) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "attacks.flips",
            kind,
            template,
            tmp_path,
            str(seed),
            str(count),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=environment(),
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1:]}, exit status {done.returncode}\n{done.stderr}"
    assert lines[-1] == "survived"
    assert len(lines) == count + 1
