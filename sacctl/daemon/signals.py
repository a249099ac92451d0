# SPDX-License-Identifier: Apache-2.0
"""Signals as something to wait for."""

from __future__ import annotations

import select
import signal
import socket
import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

__all__ = ["Signals"]


class Signals:
    """Collects these signals while the context is entered; main thread only.

    Handlers, not a mask: libraries start threads as they are imported, and those would take
    a signal that is blocked in the main thread alone.
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._numbers = tuple(numbers)
        self._before: dict[signal.Signals, Any] = {}
        self._waiting: deque[int] = deque()
        self._reading, self._writing = socket.socketpair()
        self._wakeup = -1

    def __enter__(self) -> Self:
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            self._before[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reading.close()
        self._writing.close()

    def wait(self, timeout: float) -> signal.Signals | None:
        """The next signal, or None after timeout seconds; 0 takes one that has come. None is
        lost but one that comes again before it was taken."""
        end = time.monotonic() + timeout
        while not self._waiting:
            left = max(end - time.monotonic(), 0.0)
            if not select.select([self._reading], [], [], left)[0]:
                return None
            # The bytes are signal numbers; of others than ours there may be some, too.
            self._waiting.extend(n for n in self._reading.recv(4096) if n in self._numbers)
        return signal.Signals(self._waiting.popleft())
