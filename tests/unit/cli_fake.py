# SPDX-License-Identifier: Apache-2.0
"""A daemon for tests of the command line: speaks frames, answers what it was told to.

Written against docs/protocol.md, without sacctl/daemon/frames.py.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sacctl.errors import CtlError, UsageError

Answer = Mapping[str, Any] | CtlError | Callable[[dict[str, Any]], Any]

_HEADER = struct.Struct("<4sHHIIQ")


class FakeDaemon:
    """Listens until it is closed; every connection has a thread.

    Attributes:
        answers: op -> result, error, or function of the request that gives one of both.
            Changed by tests while it runs.
        asked: requests in the order they came.
    """

    def __init__(self, path: Path, answers: dict[str, Answer]) -> None:
        self.path = path
        self.answers = answers
        self.asked: list[dict[str, Any]] = []
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):  # closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.path.unlink(missing_ok=True)

    def ops(self) -> list[str]:
        return [request["op"] for request in self.asked]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                self._open.append(one)
                threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        with suppress(OSError, EOFError), one:
            while True:
                magic, version, op, length, _, sequence = _HEADER.unpack(_read(one, 24))
                assert (magic, version) == (b"SAC1", 1)
                payload = _read(one, length)
                if op == 1:
                    assert len(payload) == 88
                    reply = bytes(range(16)) + struct.pack("<QII32s", 1, 4242, 0, b"9.9.9")
                else:
                    assert op == 32
                    reply = json.dumps(self._answer(json.loads(payload))).encode()
                head = _HEADER.pack(b"SAC1", 1, op | 0x8000, len(reply), 0, sequence)
                one.sendall(head + reply)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        answer: Any = self.answers.get(
            request["op"], UsageError(f"the fake has no answer to {request['op']}")
        )
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, CtlError):
            return {"error": answer.to_reply()}
        return {"result": answer}


def _read(one: socket.socket, count: int) -> bytes:
    out = b""
    while len(out) < count:
        got = one.recv(count - len(out))
        if not got:
            raise EOFError
        out += got
    return out
