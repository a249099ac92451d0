# SPDX-License-Identifier: Apache-2.0
"""``python -m sacctl.demo``: a daemon, a writer, a reader, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SMALL = ("--tokens", "4096", "--layers", "2", "--steps", "2")
SHM = Path("/dev/shm")


def left(tmp_path: Path) -> list[Path]:
    return [*tmp_path.iterdir(), *SHM.glob("sac-demo-*")]


def start(tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "sacctl.demo", *args],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def running(session: int) -> list[int]:
    """Processes of a session, or that have a socket of the demo in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if fields[0] != "Z" and (int(fields[3]) == session or b"sac-demo-" in words):
            found.append(int(folder.name))
    return found


def test_main_job_through_a_daemon(tmp_path: Path) -> None:
    with start(tmp_path, *SMALL) as demo:
        out, err = demo.communicate(timeout=120)
    assert demo.returncode == 0, err
    assert err == ""
    pids = re.findall(r"^(?:daemon|writer|reader) +process (\d+)", out, re.MULTILINE)
    assert len(set(pids)) == 3
    assert re.search(r"put +64 pages, 10 MiB", out)
    assert re.search(r"lookup +64 of 64 keys", out)
    assert re.search(r"verified +10 MiB put and each gathered row: 0 bytes wrong", out)
    assert left(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["begin", "daemon", "writer", "reader"])
def test_nothing_is_left_after_ctrl_c(
    tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    with start(tmp_path, "--tokens", "32768", "--layers", "4", "--steps", "20") as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        while moment == "begin" and not left(tmp_path):
            time.sleep(0.01)
        while moment != "begin":
            line = demo.stdout.readline()
            assert line, demo.stderr.read()
            if line.startswith(moment):
                break
        if number == signal.SIGINT:  # the terminal sends it to all
            os.killpg(demo.pid, number)
        else:
            demo.send_signal(number)
        demo.stdout.read()
        err = demo.stderr.read()
        code = demo.wait(60)
    assert code == (130 if number == signal.SIGINT else 143), err
    assert err.strip() in ("interrupted", ""), err
    assert left(tmp_path) == []
    assert running(demo.pid) == []


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    for args, code, text in (
        (("--tokens", "5"), 2, "at least 2048"),
        (("--tokens", "100000000", "--layers", "61"), 1, "MiB"),
    ):
        with start(tmp_path, *args) as demo:
            out, err = demo.communicate(timeout=60)
        assert demo.returncode == code
        assert text in err
        assert "Traceback" not in err
        assert out == "" or code == 1
    assert left(tmp_path) == []


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sacctl.demo", *SMALL],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert "cannot write the output" in done.stderr
    assert "Traceback" not in done.stderr
    assert left(tmp_path) == []
