# SPDX-License-Identifier: Apache-2.0
"""QEMU's machine protocol: one command at a time. Its events are not listened to."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

__all__ = ["Qmp", "QmpError", "connect"]


class QmpError(Exception):
    """A command that QEMU refused, in QEMU's words."""


def connect(path: Path, seconds: float = 20) -> socket.socket:
    """To a socket that another process is about to make."""
    end = time.monotonic() + seconds
    while True:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            found.connect(str(path))
            return found
        except OSError:
            found.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


class Qmp:
    def __init__(self, path: Path) -> None:
        self._socket = connect(path)
        self._socket.settimeout(30)
        self._lines = self._socket.makefile("r")
        self._lines.readline()
        self("qmp_capabilities")

    def __call__(self, command: str, **arguments: Any) -> Any:
        """What the command returns. Raises QmpError."""
        request = {"execute": command, "arguments": arguments}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            answer = json.loads(self._lines.readline())
            if "event" in answer:
                continue
            if "error" in answer:
                raise QmpError(f"{command}: {answer['error'].get('desc', answer['error'])}")
            return answer["return"]

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
