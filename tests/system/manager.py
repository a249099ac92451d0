# SPDX-License-Identifier: Apache-2.0
"""A service manager for one daemon: takes its notifications, keeps its files, starts it anew
with them."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from system.daemon_kit import MAIN, PATIENCE, Place

__all__ = ["Manager"]

# The files of the list come first; then the daemon as it always runs.
STUB = """
import os, sys
moved = [os.dup(int(fd)) for fd in os.environ.pop("TEST_FDS", "").split(",") if fd]
for number, fd in enumerate(moved):
    os.dup2(fd, 3 + number)
os.closerange(3 + len(moved), 1024)
if moved:
    os.environ["LISTEN_PID"] = str(os.getpid())
    os.environ["LISTEN_FDS"] = str(len(moved))
"""


class Manager:
    """Keeps what the daemon of this place asks it to keep.

    Attributes:
        kept: (name, fd), in the order they came. removed: names it was told to forget.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.kept: list[tuple[str, int]] = []
        self.removed: list[str] = []
        self.states: list[str] = []

    def hear(self, until: str = "", seconds: float = 0.3) -> None:
        """Takes notifications until one has this field, or for some seconds."""
        end = time.monotonic() + (PATIENCE if until else seconds)
        while time.monotonic() < end:
            self.place.notify.settimeout(0.1)
            try:
                data, ancillary, _, _ = self.place.notify.recvmsg(65536, 4096)
            except TimeoutError:
                process = self.place.process
                if until and process is not None and process.poll() is not None:
                    break
                continue
            fields = data.decode().split("\n")
            self._take(fields, ancillary)
            if until and until in fields:
                return
        assert not until, f"no {until}; the log:\n{self.place.log.read_text()}"

    def _take(self, fields: list[str], ancillary: list[tuple[int, int, bytes]]) -> None:
        said = dict(field.split("=", 1) for field in fields)
        fds = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data)
        if "FDSTORE" in said:
            assert len(fds) == 1
            self.kept.append((said["FDNAME"], fds[0]))
        elif "FDSTOREREMOVE" in said:
            self.removed.append(said["FDNAME"])
            for name, fd in [k for k in self.kept if k[0] == said["FDNAME"]]:
                os.close(fd)
                self.kept.remove((name, fd))
        else:
            self.states += fields

    def start(self, *more: tuple[str, int]) -> None:
        """The daemon, with more files and then all that is kept; waits until it is ready."""
        files = [*more, *self.kept]
        env = self.place.env(
            TEST_FDS=",".join(str(fd) for _, fd in files),
            LISTEN_FDNAMES=":".join(name for name, _ in files),
        )
        with self.place.log.open("ab") as log:
            self.place.process = subprocess.Popen(
                [sys.executable, "-P", "-c", STUB + MAIN],
                env=env,
                stderr=log,
                stdout=log,
                pass_fds=[fd for _, fd in files],
            )
        self.hear("READY=1")

    def names(self) -> list[str]:
        return sorted(name for name, _ in self.kept)

    def close(self) -> None:
        for _, fd in self.kept:
            os.close(fd)


def open_paths(pid: int) -> set[str]:
    """What a process has open."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(str(link.readlink()))
        except OSError:
            continue
    return found
