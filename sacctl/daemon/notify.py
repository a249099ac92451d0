# SPDX-License-Identifier: Apache-2.0
"""The service manager's side: readiness, status, watchdog, files kept over a restart, and
what it hands over: the socket it made and the files it kept.

Spoken as systemd documents it (sd_notify, sd_listen_fds), without its library.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import stat
import time
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field

from sacctl.errors import UsageError

__all__ = ["Handed", "Notifier", "is_writable", "take_handed"]

FIRST_FD = 3
MOST_FDS = 16384  # that are looked at; a manager keeps far fewer
PATIENCE = 2.0  # seconds in which the manager takes a file that is to be kept


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

    def keep(self, name: str, fd: int) -> bool:
        """Asks the manager to keep a file over a restart, under this name; False: it did not
        take the message, or there is no manager. A file that it has already is kept once.

        name: printable ASCII without ":", 255 characters at most. The fd stays the caller's.
        """
        # Not to be watched: a file of a device that dies would leave the store unasked.
        return self._store(f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}", fd)

    def drop(self, name: str) -> bool:
        """Asks the manager to close every file that it keeps under this name."""
        return self._store(f"FDSTOREREMOVE=1\nFDNAME={name}")

    @property
    def there(self) -> bool:
        """Whether there is a manager to speak to."""
        return self._socket is not None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _store(self, text: str, fd: int | None = None) -> bool:
        """Other than a status, this must arrive: waits a little for a manager that is busy."""
        with_it = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _rights(fd))]
        end = time.monotonic() + PATIENCE
        while self._socket is not None:
            try:
                self._socket.sendmsg([text.encode()], with_it, 0, self._address)
                return True
            except BlockingIOError:
                left = end - time.monotonic()
                if left <= 0:
                    return False
                select.select([], [self._socket], [], min(left, 0.05))
            except OSError:
                return False
        return False

    def _send(self, *fields: str) -> None:
        if self._socket is None:
            return
        try:
            text = "\n".join(field.replace("\n", " ") for field in fields)
            self._socket.sendto(text.encode(), self._address)
        except OSError:
            pass  # nobody to tell it to


def _rights(fd: int) -> array.array[int]:
    return array.array("i", [fd])


@dataclass(slots=True)
class Handed:
    """What the service manager passed to this process.

    Attributes:
        listening: the listening Unix socket that it made, or None.
        stored: files that an earlier daemon asked it to keep, by name; whoever takes one out
            closes it.
    """

    listening: int | None = None
    stored: dict[str, list[int]] = field(default_factory=dict)


def take_handed(env: MutableMapping[str, str] = os.environ) -> Handed:
    """Takes what the service manager passed, and its variables out of env.

    A regular file or a device is one that was kept; a socket is one to listen at: the first
    is taken, others are closed, as is anything else. Raises UsageError where the socket is
    no listening Unix stream socket, and where all that came is of no use and none of it has a
    name of the store's.
    """
    pid, count = env.pop("LISTEN_PID", ""), env.pop("LISTEN_FDS", "")
    names = env.pop("LISTEN_FDNAMES", "").split(":")
    handed = Handed()
    if pid != str(os.getpid()) or not (count.isascii() and count.isdigit()):
        return handed
    other = kept = False
    for number in range(min(int(count), MOST_FDS)):
        fd = FIRST_FD + number
        name = names[number] if number < len(names) else ""
        kept = kept or name.startswith("pool.")
        try:
            kind = os.fstat(fd).st_mode
            os.set_inheritable(fd, False)
        except OSError:
            other = True
            continue
        if stat.S_ISREG(kind) or stat.S_ISCHR(kind):
            handed.stored.setdefault(name, []).append(fd)
        elif stat.S_ISSOCK(kind) and handed.listening is None:
            handed.listening = fd
        else:
            other = True
            with suppress(OSError):
                os.close(fd)
    if handed.listening is not None:
        _check_listening(handed.listening)
    elif other and not kept and not handed.stored:
        raise UsageError(f"LISTEN_FDS is {count}, but none of them is a socket")
    return handed


def _check_listening(fd: int) -> None:
    with socket.socket(fileno=os.dup(fd)) as given:
        listening = given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if given.family != socket.AF_UNIX or given.type != socket.SOCK_STREAM or not listening:
            raise UsageError(
                "the service manager's socket is no listening Unix stream socket",
                hint="the socket unit needs ListenStream= with a path",
            )


def is_writable(fd: int) -> bool:
    """Whether the file was opened for reading and writing."""
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
