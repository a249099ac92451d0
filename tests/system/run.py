# SPDX-License-Identifier: Apache-2.0
"""Starts the child processes of the system tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    there = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{TESTS}:{there}".rstrip(":"), **more}


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """``python -m system.child ...`` with pipes; killed at the end if it still runs."""
    command = [sys.executable, "-m", "system.child", *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment()) as p:
        try:
            yield p
        finally:
            p.kill()


def line(process: subprocess.Popen[str]) -> list[str]:
    """The words of the next line that the process says."""
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text.endswith("\n"), f"the child ended: {process.wait()}"
    return text.split()


def python(code: str, *arguments: object) -> str:
    """Runs a script to its end; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
