# SPDX-License-Identifier: Apache-2.0
"""The way from the guest to the host: a virtio port, one JSON line each way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["HostError", "ask", "hand_on", "tell"]

_NAME = "tests"
# The port can be open only once; programs that a script starts find its descriptor here.
_HANDED = "VM_CHANNEL"
_port: int | None = None


class HostError(Exception):
    """The host could not do what it was asked."""


def _open() -> int:
    global _port
    if _port is None and _HANDED in os.environ:
        _port = int(os.environ[_HANDED])
    if _port is None:
        for port in Path("/sys/class/virtio-ports").iterdir():
            if (port / "name").read_text().strip() == _NAME:
                _port = os.open(f"/dev/{port.name}", os.O_RDWR | os.O_CLOEXEC)
                break
        else:
            raise HostError(f"there is no virtio port named {_NAME}")
    return _port


def hand_on() -> None:
    """Programs that this process becomes or starts (with close_fds=False) may use the port."""
    port = _open()
    os.set_inheritable(port, True)
    os.environ[_HANDED] = str(port)


def tell(message: dict[str, Any]) -> dict[str, Any]:
    """Sends a message and returns the answer to it."""
    port = _open()
    rest = json.dumps(message).encode() + b"\n"
    while rest:
        rest = rest[os.write(port, rest) :]
    got = b""
    while not got.endswith(b"\n"):
        got += os.read(port, 1 << 16)
    answer: dict[str, Any] = json.loads(got)
    return answer


def ask(todo: str, **arguments: Any) -> Any:
    """What the host's do_<todo> returns. Raises HostError."""
    answer = tell({"do": todo, **arguments})
    if "error" in answer:
        raise HostError(answer["error"])
    return answer.get("return")
