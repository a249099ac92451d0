# SPDX-License-Identifier: Apache-2.0
"""``python -m libsac.demo``: the main job, and what a user's mistakes look like."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def demo(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "libsac.demo", *args],
        capture_output=True,
        text=True,
        check=False,
    )


SMALL = ("--tokens", "4096", "--layers", "2", "--steps", "2")


def test_main_job() -> None:
    done = demo(*SMALL)
    assert done.returncode == 0, done.stderr
    assert re.search(r"put +64 pages, 10 MiB", done.stdout)
    assert re.search(r"verified +10 MiB put and each gathered row: 0 bytes wrong", done.stdout)
    assert done.stderr == ""


def test_found_again(tmp_path: Path) -> None:
    path = str(tmp_path / "pool")
    assert demo(*SMALL, "--path", path).returncode == 0
    again = demo(*SMALL, "--path", path)
    assert again.returncode == 0
    assert "nothing: all 64 pages were there already" in again.stdout


def mistakes(tmp_path: Path) -> list[tuple[tuple[str, ...], int, str]]:
    used = str(tmp_path / "used")
    demo(*SMALL, "--path", used)
    return [
        (
            ("--path", used, "--tokens", "4096", "--layers", "3"),
            1,
            "same --tokens and --layers",
        ),
        (("--path", str(tmp_path / "no" / "such")), 1, "such"),
        (("--path", "/etc/passwd"), 1, "/etc/passwd"),
        (("--path", ""), 1, "path is empty"),
        (("--tokens", "100000000", "--layers", "61"), 1, "MiB"),
        (("--tokens", "5"), 2, "at least 2048"),
        (("--tokens", "9" * 20), 2, "below 2^32"),
        (("--layers", "62"), 2, "1 to 61"),
    ]


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    for args, code, text in mistakes(tmp_path):
        done = demo(*args)
        assert done.returncode == code, (args, done)
        assert text in done.stderr, (args, done.stderr)
        assert "Traceback" not in done.stderr, args
        assert done.stdout == "", args
    assert not (tmp_path / "no").exists()


def test_output_that_cannot_be_written() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "libsac.demo", *SMALL],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "cannot write the output" in done.stderr
    assert "Traceback" not in done.stderr


_WAITER = """
import libsac, sys
ns = libsac.embedded("2M").namespace("n", libsac.Layout([libsac.Plane("k", [0], 4096)], 64))
keys = ns.keys(range(64 * 20))
with ns.put(keys[:8]) as put:
    put.write("k", 0, __import__("numpy").zeros((8, 64, 4096), "uint8"))
prefix = ns.pin(keys)
print("waiting", flush=True)
try:
    ns.put(keys[8:10], timeout=600)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.timeout(60)
def test_waiting_for_room_can_be_interrupted() -> None:
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _WAITER], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=30)
    assert out == "interrupted\n"
