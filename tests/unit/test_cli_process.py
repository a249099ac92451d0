# SPDX-License-Identifier: Apache-2.0
"""sacctl as a process: pipes, signals, terminals, completion, and what it imports."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from unit import cli_records as r
from unit.cli_fake import FakeDaemon
from unit.test_cli_json import ANSWERS

from sacctl.errors import BusyError

SACCTL = [sys.executable, "-m", "sacctl"]


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    (tmp_path / "sac.toml").write_text(f'[pools]\ndir = "{tmp_path}/pools.d"\n')
    monkeypatch.setenv("SAC_CONFIG", str(tmp_path / "sac.toml"))
    monkeypatch.setenv("SAC_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    # Unbuffered, Python does not notice that a pipe was closed within one large write.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    fake = FakeDaemon(tmp_path / "s", dict(ANSWERS))
    fake.answers["pool.list"] = {"pools": [r.pool()]}
    yield fake
    fake.close()


def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*SACCTL, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done


def shell(script: str) -> subprocess.CompletedProcess[str]:
    words = " ".join(SACCTL)
    return subprocess.run(
        ["bash", "-c", f'set -o pipefail; sacctl() {{ {words} "$@"; }}; {script}'],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Terminal:
    """sacctl on a terminal of its own."""

    def __init__(self, *words: str, kind: str = "xterm") -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": kind, "COLUMNS": "160", "LINES": "50"}
            os.execv(sys.executable, [*SACCTL, *words])
        self.seen = ""

    def until(self, pattern: str) -> str:
        """Reads until the pattern has come; all that was seen."""
        end = time.monotonic() + 30
        while not re.search(pattern, self.seen):
            assert time.monotonic() < end, self.seen
            if select.select([self.fd], [], [], 0.1)[0]:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")
        return self.seen

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        """Reads the rest; the exit code."""
        with suppress(OSError):  # a terminal nobody has open any more gives EIO
            while got := os.read(self.fd, 65536):
                self.seen += got.decode(errors="replace")
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


# ---------------------------------------------------------------------- what it imports


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["--help"], ["numpy", "libsac", "rich", "socket", "sacctl.settings"]),
        (["pool", "--help"], ["numpy", "libsac", "rich", "socket", "sacctl.pool"]),
        (["stats"], ["numpy", "libsac", "rich"]),
        (["-o", "json", "client", "list"], ["numpy", "libsac", "rich"]),
        (["health"], ["numpy", "libsac", "rich"]),
    ],
)
def test_imports_little(words: list[str], unwanted: list[str], daemon: FakeDaemon) -> None:
    script = (
        "import sys\nfrom sacctl.cli import root\n"
        f"root.run({words!r})\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stderr.split())
    assert "click" in loaded
    assert loaded.isdisjoint(unwanted)


# ------------------------------------------------------------------------------- pipes


def test_a_closed_pipe_is_quiet(daemon: FakeDaemon) -> None:
    many = [r.client(f"client-{n}", n, f"{n:032x}") for n in range(1, 5000)]
    daemon.answers["client.list"] = {"clients": many}
    done = shell("sacctl client list | head -1")
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout.startswith("ID")
    done = shell("sacctl --help | head -0")
    assert done.stderr == ""


@pytest.mark.parametrize("words", ["pool list", "-o json stats", "metrics", "--help"])
def test_a_full_disk_is_one_line(words: str, daemon: FakeDaemon) -> None:
    done = shell(f"sacctl {words} > /dev/full")
    assert done.stderr == "error: cannot write to stdout: No space left on device\n"
    assert done.returncode == 1


# ----------------------------------------------------------------------------- signals


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SACCTL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_interrupted_while_it_waits(daemon: FakeDaemon) -> None:
    asked, go = threading.Event(), threading.Event()

    def hang(request: object) -> BusyError:
        asked.set()
        go.wait(60)
        return BusyError("late")

    daemon.answers["stats"] = hang
    process = start("stats")
    assert asked.wait(30)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=30)
    go.set()
    assert process.returncode == 130
    assert (out, said.strip()) == ("", "")


def test_ctrl_c_ends_a_watch_in_a_pipe(daemon: FakeDaemon) -> None:
    process = start("-o", "json", "stats", "--watch", "--interval", "0.1")
    assert process.stdout is not None
    for _ in range(3):
        assert json.loads(process.stdout.readline())["schema"] == "sac.stats/1"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, "")


def test_a_watch_ends_with_its_pipe(daemon: FakeDaemon) -> None:
    done = shell("sacctl -o json stats --watch --interval 0.1 | head -2")
    assert (done.returncode, done.stderr) == (141, "")
    assert len(done.stdout.splitlines()) == 2


# --------------------------------------------------------------------------- terminals


def test_watch_on_a_terminal(daemon: FakeDaemon) -> None:
    terminal = Terminal("stats", "--watch", "--interval", "0.1")
    terminal.until(r"(?s)totals; Ctrl-C ends.*kv.*a second; Ctrl-C ends")
    daemon.answers["stats"] = BusyError("the daemon is away")
    terminal.until("the daemon is away")
    terminal.type("\x03")
    assert terminal.end() == 0
    # The other screen, then the usual one and the cursor again.
    assert terminal.seen.index("\x1b[?1049h") < terminal.seen.rindex("\x1b[?1049l")
    assert terminal.seen.rindex("\x1b[?25h") > terminal.seen.rindex("\x1b[?25l")
    assert "Traceback" not in terminal.seen


def test_watch_on_a_terminal_that_cannot_be_drawn_on(daemon: FakeDaemon) -> None:
    words = ("stats", "--watch", "--interval", "0.1", "--count", "2")
    terminal = Terminal(*words, kind="dumb")
    assert terminal.end() == 0
    assert terminal.seen.count("pools") == 2
    assert "\x1b[?1049h" not in terminal.seen


def test_tables_on_a_terminal_are_drawn(daemon: FakeDaemon) -> None:
    terminal = Terminal("pool", "list")
    assert terminal.end() == 0
    assert "\x1b[" in terminal.seen
    assert "serving" in terminal.seen


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 4), ("\x03", 130)])
def test_a_question_on_a_terminal(answer: str, code: int, daemon: FakeDaemon) -> None:
    terminal = Terminal("namespace", "destroy", "chat", "-p", "kv")
    terminal.until(re.escape("with 900 pages? [y/N] "))
    terminal.type(answer)
    assert terminal.end() == code, terminal.seen
    assert ("namespace.destroy" in daemon.ops()) == (code == 0)


# -------------------------------------------------------------------------- completion


def complete(words: str, shell_name: str = "bash") -> list[str]:
    listed = words.split(" ")
    env = {
        **os.environ,
        "_SACCTL_COMPLETE": f"{shell_name}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(listed) - 1),
    }
    done = subprocess.run(
        SACCTL, capture_output=True, text=True, env=env, timeout=60, check=False
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_completions(daemon: FakeDaemon) -> None:
    daemon.answers["pool.list"] = {"pools": [r.pool(), r.pool("kv2")]}
    assert complete("sacctl na") == ["namespace"]
    assert complete("sacctl pool sh") == ["show"]
    assert complete("sacctl pool show ") == ["kv", "kv2"]
    assert complete("sacctl namespace show ") == ["chat"]
    assert complete("sacctl namespace list --pool kv") == ["kv", "kv2"]
    assert complete("sacctl client evict 47") == ["4711"]
    assert complete("sacctl client evict 01") == [r.CLIENT_ID]
    assert complete("sacctl -o j") == ["json"]
    assert "SAC101" in complete("sacctl health --explain sac1")
    assert "glm-5-fp8" in complete("sacctl namespace create x --layout glm-5-f")


def test_completion_without_a_daemon_is_quiet(daemon: FakeDaemon) -> None:
    daemon.close()
    assert complete("sacctl pool show ") == []
    assert complete("sacctl pool l") == ["list"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_scripts(name: str) -> None:
    text = run("completion", name).stdout
    assert f"_SACCTL_COMPLETE={name}_complete" in text


def test_completion_in_bash(daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "sacctl").write_text(f'#!/bin/sh\nexec {" ".join(SACCTL)} "$@"\n')
    (tmp_path / "sacctl").chmod(0o755)
    script = (
        f"export PATH={tmp_path}:$PATH; source <(sacctl completion bash); "
        "COMP_WORDS=(sacctl pool show k); COMP_CWORD=3; "
        "_sacctl_completion sacctl k show; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("kv", "")
