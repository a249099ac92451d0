# SPDX-License-Identifier: Apache-2.0
"""A client in a process of its own that does what a test says: ``python -m system.puppet UID``.

Each line on stdin is a Python literal: source that is run with the test suite's helpers at
hand; ``result`` is what it answers with.
"""

from __future__ import annotations

import ast
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conformance import content
from system.run import environment

import libsac


def main(uid: int) -> None:
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    known: dict[str, Any] = {
        **vars(content),
        "libsac": libsac,
        "errors": libsac.errors,
        "mmap": mmap,
    }
    for line in sys.stdin:
        known["result"] = None
        try:
            exec(ast.literal_eval(line), known)
            said = ("ok", known["result"])
        except Exception as error:
            said = (type(error).__name__, str(error))
        os.write(1, (repr(said) + "\n").encode())


class Puppet:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def begin(self, source: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(repr(source) + "\n")
        self.process.stdin.flush()

    def end(self) -> tuple[str, Any]:
        """("ok", result), or the name of an exception's type and its text."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the puppet ended: {self.process.wait()}"
        said: tuple[str, Any] = ast.literal_eval(line)
        return said

    def do(self, source: str) -> Any:
        self.begin(source)
        kind, result = self.end()
        assert kind == "ok", (kind, result)
        return result

    def fails(self, source: str) -> tuple[str, str]:
        self.begin(source)
        kind, text = self.end()
        assert kind != "ok", text
        return kind, text

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def puppet(socket: str, pool: str | None = "p", uid: int = 0) -> Iterator[Puppet]:
    """Connected already, as ``pool``; without a name of one it is not."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "system.puppet", str(uid)]
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=environment()
    ) as process:
        try:
            one = Puppet(process)
            if pool is not None:
                one.do(f"pool = libsac.connect({pool!r}, socket={socket!r}, timeout=10)")
            yield one
        finally:
            process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]))
