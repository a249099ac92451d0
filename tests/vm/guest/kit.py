# SPDX-License-Identifier: Apache-2.0
"""What scenarios use: the host, commands, waiting, and checks with a text of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from vm.guest.channel import ask

__all__ = [
    "Done",
    "SkipError",
    "child_signal",
    "equal",
    "host",
    "kernel",
    "kernel_log",
    "sacctl",
    "sh",
    "stop",
    "topology",
    "until",
]

PLAN = Path("/payload/plan.json")
T = TypeVar("T")


class SkipError(Exception):
    """Raised by a scenario that has no meaning on this machine, with the reason."""


class _Host:
    """What the machine outside does when it is asked."""

    def qmp(self, command: str, **arguments: Any) -> Any:
        """A QMP command. Names with "-" are given as **{"qom-type": ...}."""
        return ask("qmp", command=command, arguments=arguments)

    def peek(self, device: int, offset: int, length: int) -> bytes:
        """What lies in the memory of the device with serial 0x100 + device."""
        return bytes.fromhex(ask("peek", device=device, offset=offset, length=length))

    def find(self, device: int, what: bytes, most: int = 8) -> list[int]:
        """The offsets at which these bytes are in a device's memory."""
        found: list[int] = ask("find", device=device, what=what.hex(), most=most)
        return found

    def nonzero(self, device: int, offset: int, length: int) -> int | None:
        """The offset of a byte there that is not zero; None where there is none."""
        found: int | None = ask("nonzero", device=device, offset=offset, length=length)
        return found

    def poke(self, device: int, offset: int, data: bytes) -> None:
        ask("poke", device=device, offset=offset, data=data.hex())

    def unplug(self, device: int) -> None:
        """Pulls the device out; returns when it has gone (about 5 s)."""
        ask("unplug", device=device)

    def plug(self, device: int) -> None:
        """Puts it back into its slot, with its old contents."""
        ask("plug", device=device)


host = _Host()


class Done:
    """A command that has run: code, out, err."""

    def __init__(self, words: list[str], code: int, out: str, err: str) -> None:
        self.words, self.code, self.out, self.err = words, code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"{' '.join(self.words)}: exit {self.code}\n{self.out}{self.err}"


def sh(*words: str, code: int | None = 0, limit: float = 60, text: str = "") -> Done:
    """Runs a command; prints it and what it says. Fails unless it exits with the code
    (None: any)."""
    print("$", *words, flush=True)
    made = subprocess.run(
        list(words), input=text, capture_output=True, text=True, timeout=limit, check=False
    )
    done = Done(list(words), made.returncode, made.stdout, made.stderr)
    print(made.stdout + made.stderr, end="", flush=True)
    assert code is None or made.returncode == code, f"not exit {code}: {done!r}"
    return done


def sacctl(*words: str, code: int | None = 0, limit: float = 90) -> Done:
    return sh("sacctl", *words, code=code, limit=limit)


def until(what: str, found: Callable[[], T], seconds: float = 20) -> T:
    """What found() returns once it is true. Fails when that takes too long."""
    end = time.monotonic() + seconds
    while True:
        got = found()
        if got:
            return got
        assert time.monotonic() < end, f"waited {seconds} s for {what}; last: {got!r}"
        time.sleep(0.05)


def equal(found: object, expected: object, what: str) -> None:
    assert found == expected, f"{what}: {found!r}, not {expected!r}"


def child_signal(work: Callable[[], object]) -> int:
    """Runs work in a forked process; the signal that ended it, 0 for none."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def kernel() -> tuple[int, int]:
    """Of the running kernel: (6, 12)."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)


def topology() -> str:
    """The name of the machine's topology."""
    name: str = json.loads(PLAN.read_text())["topology"]
    return name


def kernel_log(lines: int = 0) -> str:
    """The newest lines; all for 0."""
    all_lines = subprocess.run(
        ["dmesg"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    return "\n".join(all_lines[-lines:] if lines else all_lines)


def stop(process: subprocess.Popen[Any], seconds: float = 20) -> int:
    """Ends a process in order; its exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(seconds)
