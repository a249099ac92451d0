# SPDX-License-Identifier: Apache-2.0
"""A write of an attribute as a step, with its way back."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from sacctl.cxl.meanings import failed
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError
from sacctl.pool.steps import Step

__all__ = ["GONE", "Text", "Write", "echo", "wait_for"]

Text = str | Callable[[], str]  # a callable where it is known only while steps run
GONE = (errno.ENOENT, errno.ENODEV, errno.ENXIO)


def echo(path: str, value: str) -> str:
    """The write as a line for a shell."""
    shown = value if value != "\n" else "''"
    return f"echo {shown} > {path}"


def wait_for(found: Callable[[], bool], seconds: float) -> bool:
    """Looks until found() is true, at most so long; whether it was."""
    end = time.monotonic() + seconds
    while not found():
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)
    return True


class Write(Step):
    """Writes value to path; undo writes back, None: nothing needs to be undone.

    What has gone with its device (its path is not there any more) is undone by that.

    Attributes:
        done: the write has been made, and not been undone.
    """

    def __init__(
        self, sysfs: Sysfs, kind: str, path: Text, value: Text, back: Text | None = None
    ) -> None:
        self.sysfs, self._kind = sysfs, kind
        self._path, self._value, self._back = path, value, back
        self.done = False

    @property
    def path(self) -> str:
        return _text(self._path)

    @property
    def what(self) -> str:
        return echo(self.path, _text(self._value))

    def apply(self) -> None:
        # First: who interrupts this cannot know whether the kernel has done it.
        self.done = True
        try:
            self.write(self.path, _text(self._value))
        except CtlError:
            self.done = False
            raise

    def undo(self) -> None:
        if not self.done or self._back is None:
            return
        if self.sysfs.exists(self.path):
            self.write_back(_text(self._back))
        self.done = False

    def write_back(self, value: str) -> None:
        """Raises CtlError; not where the object went away in the very moment."""
        try:
            self.write(self.path, value)
        except CtlError as error:
            if error.errno not in GONE or self.sysfs.exists(self.path):
                raise

    def write(self, path: str, value: str) -> None:
        """Raises CtlError that says what the kernel's errno means here."""
        try:
            self.sysfs.write(path, value)
        except OSError as error:
            raise failed(self.sysfs, self._kind, echo(path, value), error) from error


def _text(text: Text) -> str:
    return text if isinstance(text, str) else text()
