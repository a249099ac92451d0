# SPDX-License-Identifier: Apache-2.0
"""The way to a daemon: one connection, one administration request at a time."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sacctl import paths
from sacctl.daemon import frames
from sacctl.errors import CtlError, NotFoundError, UsageError, from_os, from_reply

__all__ = ["DEFAULT_TIMEOUT", "Link", "Peer"]

DEFAULT_TIMEOUT = 30.0
# What a status of the handshake means; an ADMIN reply says its kind itself.
_KINDS = {1: "usage", 3: "not_found", 7: "busy", 19: "permission"}
_NOBODY = (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that listens, from the kernel."""

    pid: int
    uid: int
    gid: int


class Link:
    """A connection to the daemon. A context manager; not for several threads at once.

    Args:
        path: the daemon's socket; None takes the first of ``paths.client_sockets()`` that
            answers.
        timeout: seconds for the connection and, unless a call says otherwise, for each reply.
        name: how this client is called in lists.

    Raises NotFoundError where no daemon answers (the hint says how to start one), DeniedError
    where the socket may not be used, CtlError for a daemon that does not answer in time or
    speaks another version.

    Attributes:
        path: the socket. peer: who listens. version: of the daemon.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        name: str = "sacctl",
    ) -> None:
        self.timeout = timeout
        self._name = name
        self._sequence = 0
        tried = paths.client_sockets() if path is None else [Path(path)]
        self._socket, self.path = _connect(tried, timeout)
        try:
            self._greet(name)
            if self.peer.pid == 1:
                # The service manager listened when we came, and has just started the daemon:
                # who comes now meets the daemon itself.
                self._socket.close()
                self._socket, self.path = _connect([self.path], timeout)
                self._greet(name)
        except BaseException:
            self._socket.close()
            raise

    def _greet(self, name: str) -> None:
        """Says hello; who listens, and its version, are known then."""
        self.peer = _peer(self._socket)
        reply = self._exchange(frames.HELLO, frames.hello(name), (), self.timeout)
        if len(reply) < 64:
            raise self._failed("its greeting is too short")
        self.version = reply[32:64].split(b"\0")[0].decode(errors="replace")

    def call(
        self, op: str, fds: Sequence[int] = (), *, timeout: float | None = None, **args: Any
    ) -> dict[str, Any]:
        """The result of one operation; sacctl/records.py says what each gives.

        Long lists come in several replies, which are put together here. The fds are sent
        along and stay the caller's. Arguments that are None are left out.

        Raises the CtlError that the daemon answered; CtlError where it went away or did not
        answer in time (what was asked may have been done).
        """
        given = {key: value for key, value in args.items() if value is not None}
        result: dict[str, Any] = {}
        after: Any = None
        while True:
            more = {} if after is None else {"after": after}
            request = json.dumps({"op": op, **given, **more}).encode()
            if len(request) > frames.MAX_PAYLOAD:
                raise UsageError(f"the request {op} is too long: {len(request)} bytes")
            wait = self.timeout if timeout is None else timeout
            answer = self._parse(self._exchange(frames.ADMIN, request, fds, wait))
            if "error" in answer:
                error = answer["error"]
                raise from_reply(error if isinstance(error, dict) else {"message": str(error)})
            part = answer.get("result")
            if not isinstance(part, dict):
                raise self._failed("its answer has no result")
            _join(result, part)
            after, fds = answer.get("next"), ()
            if after is None:
                return result

    def again(self) -> Link:
        """This connection while it holds; else a new one to who listens at the socket now.

        Raises as the constructor: NotFoundError where no daemon listens any more.
        """
        if self._socket.fileno() >= 0:
            return self
        return Link(self.path, timeout=self.timeout, name=self._name)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _exchange(self, op: int, payload: bytes, fds: Sequence[int], timeout: float) -> bytes:
        self._sequence += 1
        try:
            self._socket.settimeout(timeout)
            frames.send(self._socket, op, self._sequence, payload, fds)
            reply = frames.receive(self._socket, timeout)
        except TimeoutError:
            self._socket.close()  # a late reply would be taken for the next one's
            raise self._failed(
                f"it did not answer within {timeout:g} s", errno.ETIMEDOUT, "sacctl health"
            ) from None
        except frames.FrameError as error:
            self._socket.close()
            raise self._failed(str(error)) from None
        except OSError as error:
            self._socket.close()
            raise self._failed("the connection broke", error.errno or 0) from None
        if reply.sequence != self._sequence or reply.op != op:
            self._socket.close()
            raise self._failed("it answered another request than was asked")
        if reply.status:
            said = frames.parse_refusal(reply.payload)
            raise from_reply(
                {
                    "kind": _KINDS.get(reply.status, "failed"),
                    "message": said.message,
                    "object": said.object or str(self.path),
                    "errno": said.errno,
                }
            )
        return reply.payload

    def _parse(self, payload: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(payload)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._failed("its answer is not a JSON object")
        return answer

    def _failed(self, why: str, code: int = 0, hint: str = "") -> CtlError:
        where = str(self.path)
        return CtlError(f"the daemon at {where}: {why}", object=where, errno=code, hint=hint)


def _peer(connected: socket.socket) -> Peer:
    """Who listened at the other end when the connection was made."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return Peer(*struct.unpack("iII", found))


def _connect(tried: Sequence[Path], timeout: float) -> tuple[socket.socket, Path]:
    for path in tried:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(timeout)
            made.connect(os.fspath(path))
            return made, path
        except OSError as error:
            made.close()
            # "AF_UNIX path too long" has no errno; nobody can listen there.
            if error.errno in _NOBODY:
                continue
            if isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
                raise CtlError(
                    f"the daemon at {path} does not accept connections",
                    object=str(path),
                    errno=errno.ETIMEDOUT,
                    hint="systemctl restart sacd, or look at its log",
                ) from None
            hint = ""
            if error.errno in (errno.EACCES, errno.EPERM):
                hint = "ask the administrator for the socket's group (socket_group)"
                if len(tried) > 1:  # the user's own one is not running
                    hint += ", or start your own: sacctl daemon run"
            raise from_os(error, f"cannot connect to the daemon at {path}", hint=hint) from None
    raise NotFoundError(
        f"no daemon listens at {' or '.join(map(str, tried))}",
        object=str(tried[0]),
        hint="sacctl daemon run (or systemctl start sacd)",
    )


def _join(result: dict[str, Any], part: dict[str, Any]) -> None:
    """Adds a part of a long answer: lists and texts are put together, tables within too."""
    for key, value in part.items():
        have = result.get(key)
        if isinstance(have, dict) and isinstance(value, dict):
            _join(have, value)
        elif isinstance(have, list) and isinstance(value, list):
            have.extend(value)
        elif isinstance(have, str) and isinstance(value, str) and key == "text":
            result[key] = have + value
        else:
            result[key] = value
