# SPDX-License-Identifier: Apache-2.0
"""The socket at which a simulated machine takes writes: one JSON object a line."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from sacctl.cxl.sysfs import SIMULATOR

__all__ = ["Server"]

Write = Callable[[str, str], int]
Event = Callable[[int], None]  # of a device's serial; raises KeyError


class Server:
    """Answers {"write": path, "value": text} with {"errno": n}; {"unplug": serial} and
    {"plug": serial}, too (ENODEV: no such device). One thread a connection.

    Root, and the user whose machine it is, may write; others get EACCES, as from the modes of
    the files.
    """

    def __init__(self, root: Path, write: Write, events: Mapping[str, Event]) -> None:
        self.path = root / SIMULATOR
        self.path.unlink(missing_ok=True)
        self.write = write
        self.events = events
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        here = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.bind(f"/proc/self/fd/{here}/{SIMULATOR}")
        finally:
            os.close(here)
        self.path.chmod(0o666)
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._accept, name="cxlsim", daemon=True)
        self._thread.start()

    def close(self) -> None:
        # Closing alone does not wake accept().
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        size = struct.calcsize("3i")
        # Outermost: what a client that was killed did not read fails again at close.
        with suppress(OSError), client, client.makefile("rwb") as lines:
            credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            _, user, _ = struct.unpack("3i", credentials)
            for line in lines:
                code = self._one(line) if user in (0, os.getuid()) else errno.EACCES
                lines.write(json.dumps({"errno": code}).encode() + b"\n")
                lines.flush()

    def _one(self, line: bytes) -> int:
        try:
            asked = json.loads(line)
            for word, happens in self.events.items():
                if word in asked:
                    return _happened(happens, asked[word])
            path, value = asked["write"], asked["value"]
        except (ValueError, KeyError, TypeError):
            return errno.EBADMSG
        if not isinstance(path, str) or not isinstance(value, str):
            return errno.EBADMSG
        return self.write(path, value)


def _happened(happens: Event, serial: object) -> int:
    if not isinstance(serial, int):
        return errno.EBADMSG
    try:
        happens(serial)
    except KeyError:
        return errno.ENODEV
    return 0
