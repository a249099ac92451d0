# SPDX-License-Identifier: Apache-2.0
"""Administration requests: taken from the server, checked, answered by a few threads."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from libsac.errors import ClosedError, SacError
from libsac.server import AdminRequest
from sacctl.daemon.access import Peer
from sacctl.daemon.args import Args
from sacctl.daemon.frames import MAX_PAYLOAD
from sacctl.daemon.log import log
from sacctl.errors import CtlError, UsageError, from_libsac, from_os

if TYPE_CHECKING:
    from sacctl.daemon.service import Service

__all__ = ["Admin", "Call", "Handler", "Part"]

WORKERS = 2
POLL = 1.0  # seconds: how soon a worker sees that it is to end, should stop() not wake it


@dataclass(frozen=True, slots=True)
class Call:
    """One request. The handler takes its arguments from args, ends with ``args.done()``
    before it does anything, and leaves the fds open."""

    service: Service
    peer: Peer
    args: Args
    fds: Sequence[int]


@dataclass(frozen=True, slots=True)
class Part:
    """A result that goes on: the client asks again with ``after`` = next."""

    result: dict[str, Any]
    next: Any = None


Handler = Callable[[Call], "dict[str, Any] | Part"]


class Admin:
    """The threads that answer. handlers: by name of the operation."""

    def __init__(self, service: Service, handlers: dict[str, Handler]) -> None:
        self._service = service
        self._handlers = handlers
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for number in range(WORKERS):
            thread = threading.Thread(target=self._work, name=f"admin-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def join(self, timeout: float) -> bool:
        """Waits for the threads after the server has stopped; False: one is still at work."""
        self._ending.set()
        for thread in self._threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        server = self._service.server
        while not self._ending.is_set():
            try:
                request = server.next_request(POLL)
                if request is not None:
                    server.answer(request.id, self.handle(request))
            except ClosedError:
                return
            except Exception:
                # Whatever it was, the next request must be answered; and not at once, should
                # it be one that lasts.
                log.exception("an administration request could not be answered")
                self._ending.wait(0.1)

    def handle(self, request: AdminRequest) -> bytes:
        """The answer to a request, JSON. Never raises; closes the request's fds."""
        try:
            reply = self._reply(request)
        finally:
            for fd in request.fds:
                try:
                    os.close(fd)
                except OSError as error:
                    log.warning(f"cannot close a descriptor that came along: {error}")
        body = json.dumps(reply, separators=(",", ":")).encode()
        if len(body) > MAX_PAYLOAD:
            too_long = CtlError(
                f"the answer has {len(body)} bytes; {MAX_PAYLOAD} fit in a frame",
                hint="ask for one pool or namespace",
            )
            body = json.dumps({"error": too_long.to_reply()}).encode()
        return body

    def _reply(self, request: AdminRequest) -> dict[str, Any]:
        peer = Peer(request.pid, request.uid, request.gid, tuple(request.groups))
        op = ""
        try:
            op, args = parse(request.body)
            handler = self._handlers.get(op)
            if handler is None:
                known = ", ".join(sorted(self._handlers))
                raise UsageError(
                    f"unknown operation '{op[:64]}'; known are {known}", object="op"
                )
            part = handler(Call(self._service, peer, args, request.fds))
            if isinstance(part, Part):
                more = {} if part.next is None else {"next": part.next}
                return {"result": part.result, **more}
            return {"result": part}
        except CtlError as refusal:
            failed = refusal
        except SacError as error:
            failed = from_libsac(error)
        except OSError as error:
            failed = from_os(error, f"{op} failed")
        except Exception as error:
            log.exception(f"{op} failed", operation=op, user=peer.uid)
            failed = CtlError(
                f"{op or 'the request'} failed: {type(error).__name__}: {error}",
                object=op,
                hint="see the daemon's log",
            )
        log.debug(f"{op or 'a request'} refused: {failed}", operation=op, user=peer.uid)
        return {"error": failed.to_reply()}


def parse(body: bytes) -> tuple[str, Args]:
    """Operation and arguments of a request. Raises UsageError."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the request is not JSON: {str(error)[:100]}") from None
    if not isinstance(request, dict):
        raise UsageError(f"the request is {type(request).__name__}; a JSON object is needed")
    op = request.pop("op", None)
    if not isinstance(op, str):
        raise UsageError("the request has no op", object="op")
    return op, Args(op, request)
