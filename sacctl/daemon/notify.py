# SPDX-License-Identifier: Apache-2.0
"""The service manager's side: readiness, status, watchdog, files kept over a restart, and
what it hands over: the socket it made and the files it kept.

Spoken as systemd documents it (sd_notify, sd_listen_fds), without its library.
"""

from __future__ import annotations

import array
import fcntl
import os
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
PATIENCE = 2.0  # seconds in which the manager takes what must arrive
TURN = 0.02


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
        if _is_number(usec) and pid in ("", str(os.getpid())):
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
        self._surely(f"READY=1\nSTATUS={_line(status)}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={_line(text)}")

    def alive(self) -> None:
        """For the watchdog: only to be called while the daemon does serve."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._surely(f"RELOADING=1\nMONOTONIC_USEC={usec}")

    def stopping(self) -> None:
        self._surely("STOPPING=1\nSTATUS=stopping")

    def keep(self, name: str, fd: int) -> bool:
        """Asks the manager to keep a file over a restart, under this name; False: it did not
        take the message, or there is no manager. A file that it has already is kept once.

        name: printable ASCII without ":", 255 characters at most. The fd stays the caller's.
        """
        # Not to be watched: a file of a device that dies would leave the store unasked.
        return self._surely(f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}", fd)

    def drop(self, name: str) -> bool:
        """Asks the manager to close every file that it keeps under this name."""
        if not name.isprintable():  # no name of a file that is kept, and perhaps two lines
            return False
        return self._surely(f"FDSTOREREMOVE=1\nFDNAME={name}")

    @property
    def there(self) -> bool:
        """Whether there is a manager to speak to."""
        return self._socket is not None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _surely(self, text: str, fd: int | None = None) -> bool:
        """Other than a status, this must arrive: waits a little for a manager that is busy, or
        has not taken yet what was said just before."""
        with_it = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _rights(fd))]
        end = time.monotonic() + PATIENCE
        while self._socket is not None:
            try:
                self._socket.sendmsg([text.encode()], with_it, 0, self._address)
                return True
            except BlockingIOError:
                if time.monotonic() >= end:
                    return False
                # A socket that is not connected always counts as writable to select().
                time.sleep(TURN)
            except OSError:
                return False
        return False

    def _send(self, text: str) -> None:
        """What will be said again, or is of no weight."""
        if self._socket is not None:
            with suppress(OSError):  # nobody to tell it to
                self._socket.sendto(text.encode(), self._address)


def _line(text: str) -> str:
    return text.replace("\n", " ")


def _rights(fd: int) -> array.array[int]:
    return array.array("i", [fd])


@dataclass(slots=True)
class Handed:
    """What the service manager passed to this process.

    Attributes:
        listening: the listening Unix socket that it made, or None.
        stored: all else, by name: files that an earlier daemon asked it to keep, if they are.
            Whoever takes one out closes it.
        odd: what was wrong with it, as a sentence; "" where nothing was.
    """

    listening: int | None = None
    stored: dict[str, list[int]] = field(default_factory=dict)
    odd: str = ""


def take_handed(env: MutableMapping[str, str] = os.environ) -> Handed:
    """Takes what the service manager passed, and its variables out of env.

    The first listening Unix stream socket is the one to listen at. Anything else may be a file
    that was kept; whose it is and whether it is the right one, FdStore finds out. Raises
    UsageError where there is no such socket, and nothing that came can be a kept file by its
    kind or its name: a socket unit made for something else.
    """
    pid, count = env.pop("LISTEN_PID", ""), env.pop("LISTEN_FDS", "")
    names = env.pop("LISTEN_FDNAMES", "").split(":")
    handed = Handed()
    if pid != str(os.getpid()):
        return handed  # another process's
    if not _is_number(count):
        handed.odd = f"LISTEN_FDS is {count[:40]!r}, which is no number: nothing is taken"
        return handed
    missing = 0
    kept = False
    for number in range(min(int(count), MOST_FDS)):
        fd = FIRST_FD + number
        name = names[number] if number < len(names) else ""
        kept = kept or name.startswith("pool.")
        try:
            kind = os.fstat(fd).st_mode
            os.set_inheritable(fd, False)
        except OSError:
            missing += 1
            continue
        if handed.listening is None and stat.S_ISSOCK(kind) and _is_listening(fd):
            handed.listening = fd
            continue
        kept = kept or stat.S_ISREG(kind) or stat.S_ISCHR(kind)
        handed.stored.setdefault(name, []).append(fd)
    if missing:
        handed.odd = f"LISTEN_FDS is {count}, and {missing} of them are not open"
    if handed.listening is None and not kept and int(count):
        raise UsageError(
            f"LISTEN_FDS is {count}, but none of them is a listening Unix stream socket",
            hint="the socket unit needs ListenStream= with a path",
        )
    return handed


def _is_listening(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as given:
        listening = given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        unix = given.family == socket.AF_UNIX and given.type == socket.SOCK_STREAM
        return unix and bool(listening)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def is_writable(fd: int) -> bool:
    """Whether the file was opened for reading and writing."""
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
