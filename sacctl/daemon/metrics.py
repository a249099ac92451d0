# SPDX-License-Identifier: Apache-2.0
"""Metrics over HTTP: GET /metrics on a loopback address, when the settings name one."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sacctl.daemon.log import log
from sacctl.errors import CtlError, from_os
from sacctl.render.prometheus import CONTENT_TYPE
from sacctl.settings import parse_listen

__all__ = ["MetricsListener"]

MOST_AT_ONCE = 8
SLOW = 5.0  # seconds a peer has for each step


class MetricsListener:
    """Serves the text that render() gives; restarted by :meth:`listen`.

    Each request is answered in a thread of its own, so that a slow reader hinders nobody.
    """

    def __init__(self, render: Callable[[], str]) -> None:
        self._render = render
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it listens; the port is the real one, should the settings say 0."""
        return None if self._server is None else self._server.server_address[:2]  # type: ignore[return-value]

    def listen(self, where: str) -> None:
        """Listens there from now on; "": nowhere. Raises CtlError, and is off then."""
        self.close()
        if not where:
            return
        address = parse_listen(where)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._server = _Server(address, family, self._render)
        except OSError as error:
            raise from_os(
                error, f"cannot listen for metrics at {where}", hint="change metrics.listen"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()
        log.info(f"metrics at http://{where}/metrics")

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        if self._thread is not None:
            self._thread.join(SLOW)
            self._thread = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(
        self, address: tuple[str, int], family: socket.AddressFamily, render: Callable[[], str]
    ) -> None:
        self.address_family = family
        self.render = render
        self.room = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the resolver for a name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a reader of metrics went away")


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SLOW
    server_version = "sacd"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        # A page in a browser must not read it by a name that points to loopback.
        host = re.sub(r":[0-9]*\Z", "", self.headers.get("Host", ""))
        if host not in ("", "localhost", "127.0.0.1", "[::1]", self.server.server_name):
            return self._send(
                403, "text/plain; charset=utf-8", "this host name is not served\n"
            )
        if self.path.partition("?")[0] != "/metrics":
            return self._send(404, "text/plain; charset=utf-8", "it is at /metrics\n")
        try:
            text = self.server.render()
        except Exception as error:
            log.exception("metrics cannot be made")
            why = f"{type(error).__name__}: {error}\n"
            return self._send(500, "text/plain; charset=utf-8", why)
        return self._send(200, CONTENT_TYPE, text)

    def _send(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug("metrics: " + format % args)


def listen_or_log(listener: MetricsListener, where: str) -> None:
    """At the start: no metrics are no reason not to serve."""
    try:
        listener.listen(where)
    except CtlError as error:
        log.error(error.sentence())
