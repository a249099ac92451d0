# SPDX-License-Identifier: Apache-2.0
"""The service manager's side: readiness, status, watchdog, and the socket it made.

Spoken as systemd documents it (sd_notify, sd_listen_fds), without its library.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress

from sacctl.errors import UsageError

__all__ = ["Notifier", "listen_fd"]

FIRST_FD = 3


class Notifier:
    """Says to the service manager how the daemon is; says nothing where there is none.

    Takes $NOTIFY_SOCKET and the watchdog's variables out of env, so that no child has them.

    Attributes:
        watchdog: seconds in which the manager wants to hear of us; 0.0: it does not.
    """

    def __init__(self, env: MutableMapping[str, str] = os.environ) -> None:
        address = env.pop("NOTIFY_SOCKET", "")
        usec, pid = env.pop("WATCHDOG_USEC", ""), env.pop("WATCHDOG_PID", "")
        self.watchdog = 0.0
        if usec.isascii() and usec.isdigit() and pid in ("", str(os.getpid())):
            self.watchdog = int(usec) / 1e6
        # A leading @ means the abstract namespace, where the first byte is zero.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address.startswith(("/", "\0")):
            self._socket = socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
            )
            # A manager that does not read must not stop the daemon.
            self._socket.setblocking(False)

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        """For the watchdog: only to be called while the daemon does serve."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={usec}")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=stopping")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *fields: str) -> None:
        if self._socket is None:
            return
        try:
            text = "\n".join(field.replace("\n", " ") for field in fields)
            self._socket.sendto(text.encode(), self._address)
        except OSError:
            pass  # nobody to tell it to


def listen_fd(env: MutableMapping[str, str] = os.environ) -> int | None:
    """The listening Unix socket that the service manager made for this process, or None.

    Takes its variables out of env; fds beyond the first are closed. Raises UsageError where
    what it handed over is no such socket.
    """
    pid, count = env.pop("LISTEN_PID", ""), env.pop("LISTEN_FDS", "")
    env.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdigit() or int(count) == 0:
        return None
    for extra in range(FIRST_FD + 1, FIRST_FD + min(int(count), 1024)):
        with suppress(OSError):
            os.close(extra)
    try:
        given = socket.socket(fileno=os.dup(FIRST_FD))
    except OSError as error:
        raise UsageError(
            f"LISTEN_FDS is {count}, but descriptor {FIRST_FD} is not a socket",
            errno=error.errno or 0,
        ) from None
    with given:
        listening = given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if given.family != socket.AF_UNIX or given.type != socket.SOCK_STREAM or not listening:
            raise UsageError(
                "the service manager's socket is no listening Unix stream socket",
                hint="the socket unit needs ListenStream= with a path",
            )
    os.set_inheritable(FIRST_FD, False)
    return FIRST_FD
