# SPDX-License-Identifier: Apache-2.0
"""Recorders that end without close: killed, or left open at the interpreter's end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from libsac.errors import SacError
from libsac.trace import Recorder, Selection, Trace

START = """
import os, sys, threading
import numpy as np
from libsac.trace import Recorder
from libsac.trace_ring import Slot
recorder = Recorder(sys.argv[1], top_k=4, requests=2, ring=100000)
def record(numbers):
    for n in numbers:
        assert recorder.record(0, n, [0], np.full((1, 4), n))
"""
# The second part stays with the writer: it is what a kill may take.
STUCK = """
record(range(50))
sys.stdin.readline()
Slot.wait = lambda self: threading.Event().wait()
record(range(50, 60))
print("held", flush=True)
threading.Event().wait()
"""


def child(path: Path, text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START + text, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def layers(path: Path) -> list[int]:
    """Of all selections in a trace: each is whole."""
    with Trace(path) as trace:
        found = [event for event in trace if isinstance(event, Selection)]
    assert all((event.tokens == event.layer).all() for event in found)
    return [event.layer for event in found]


def until(path: Path, count: int) -> None:
    """Waits until so many selections can be read."""
    end = time.monotonic() + 30
    found = -1
    while time.monotonic() < end:
        try:
            found = len(layers(path))
        except SacError:
            found = -1
        if found >= count:
            return
        time.sleep(0.01)
    pytest.fail(f"{found} of {count} selections are in the file")


def test_a_new_trace_can_be_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with Recorder(path, top_k=4, requests=2, metadata={"a": 1}), Trace(path) as trace:
        assert (trace.metadata, list(trace), trace.truncated) == ({"a": 1}, [], False)


def test_a_killed_recorder_loses_what_was_under_way(tmp_path: Path) -> None:
    with child(tmp_path / "t", STUCK) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            until(tmp_path / "t", 50)  # no more is given to it: all of it is in the file
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "held\n"
        finally:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert layers(tmp_path / "t") == list(range(50))


@pytest.mark.parametrize("least", [0, 1, 3000])
def test_a_recorder_killed_at_any_time(tmp_path: Path, least: int) -> None:
    endless = """
import itertools
for n in itertools.count():
    recorder.record(0, n, [0], np.full((1, 4), n))
"""
    with child(tmp_path / "t", endless) as process:
        try:
            until(tmp_path / "t", least)
        finally:
            process.send_signal(signal.SIGKILL)
    found = layers(tmp_path / "t")
    assert len(found) >= least
    assert found == sorted(set(found))


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("sys.exit(3)", 3), ("del recorder", 0), ("raise ValueError('the end')", 1)],
)
def test_a_recorder_left_open_is_closed_at_exit(tmp_path: Path, end: str, code: int) -> None:
    with child(tmp_path / "t", f"record(range(5000))\n{end}\n") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert ("the end" in said) == (code == 1)
    assert layers(tmp_path / "t") == list(range(5000))


def test_a_forked_process_leaves_the_trace_alone(tmp_path: Path) -> None:
    text = """
record(range(10))
if (pid := os.fork()) == 0:
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
record(range(10, 20))
"""
    with child(tmp_path / "t", text) as process:
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    assert layers(tmp_path / "t") == list(range(20))


def test_a_closed_recorder_is_not_kept(tmp_path: Path) -> None:
    """Nothing of it stays behind for the interpreter's end."""
    import gc
    import weakref

    recorder = Recorder(tmp_path / "t", top_k=4, requests=2)
    recorder.record(0, 0, [0], np.zeros((1, 4), np.int32))
    recorder.close()
    kept = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert kept() is None
