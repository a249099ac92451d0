# SPDX-License-Identifier: Apache-2.0
"""The one way to the kernel's files: /sys, /proc and /dev, or a simulated tree of them.

A simulated tree (``--sysroot``, docs/simulator.md) is a folder with ``sys``, ``proc`` and
``dev`` in it. Reading is the same. Writing goes to the simulator behind the tree, which
listens at its socket ``.kernel`` and answers with an errno as the kernel would.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

__all__ = ["SIMULATOR", "Sysfs"]

SIMULATOR = ".kernel"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOST = 1 << 20  # bytes that are read of a file of /proc
_ATTRIBUTE = 1 << 16  # of an attribute: a page, which has no more on any machine


class Sysfs:
    """Files below a root, named by their paths on a real machine: "/sys/bus/cxl/devices".

    Holds no state but the root; every call looks anew.
    """

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self.root = Path(root).absolute()

    @property
    def simulated(self) -> bool:
        return self.root != Path("/")

    def at(self, path: str) -> Path:
        """Where the file of that name lies."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """An attribute without the line's end. Raises OSError, also where reading fails or
        there is more than an attribute can hold; never waits at what is no file."""
        fd = os.open(self.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            text = os.read(fd, _MOST)
        finally:
            os.close(fd)
        if path.startswith("/sys/") and len(text) > _ATTRIBUTE:
            raise OSError(errno.EFBIG, "too long for an attribute", path)
        return text.decode("utf-8", "replace").rstrip("\n")

    def get(self, path: str, default: str = "") -> str:
        """As read(); the default where the attribute is not there or cannot be read."""
        try:
            return self.read(path)
        except OSError:
            return default

    def number(self, path: str, default: int = 0) -> int:
        """A decimal or 0x number; the default where there is none."""
        with suppress(ValueError):
            return int(self.get(path), 0)
        return default

    def write(self, path: str, value: str) -> None:
        """Writes an attribute with one write(2). Raises OSError with the kernel's errno."""
        if self.simulated:
            # A write to sysfs is done before a signal's handler runs; so is this.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
            try:
                return self._ask(path, value)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            fd = os.open(self.at(path), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, value.encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
        return None

    def exists(self, path: str) -> bool:
        return self.at(path).exists()

    def names(self, path: str) -> list[str]:
        """What is in a folder, sorted; nothing where there is no folder."""
        try:
            return sorted(found.name for found in self.at(path).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def target(self, path: str) -> str:
        """The last name of what a link leads to ("kmem" of .../driver); "" without a link."""
        real = self.real(path)
        return Path(real).name if real else ""

    def real(self, path: str) -> str:
        """The path that links lead to, as on a real machine; "" where there is nothing."""
        try:
            found = self.at(path).resolve(strict=True)
            return "/" + str(found.relative_to(self.root.resolve()))
        except (OSError, RuntimeError, ValueError):  # ValueError: it leads out of the root
            return ""

    def _ask(self, path: str, value: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
            to.settimeout(60)
            try:
                to.connect(str(self.root / SIMULATOR))
            except OSError as error:
                raise OSError(
                    errno.EROFS, f"no simulator answers behind {self.root}", path
                ) from error
            to.sendall(json.dumps({"write": path, "value": value}).encode() + b"\n")
            with to.makefile("rb") as answers:
                answer = json.loads(answers.readline() or b'{"errno": 5}')
        if answer["errno"]:
            raise OSError(answer["errno"], os.strerror(answer["errno"]), path)
