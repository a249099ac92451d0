# SPDX-License-Identifier: Apache-2.0
"""Waiting for room in short turns, so that signals (Ctrl-C) are handled in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from libsac.errors import NoSpaceError

__all__ = ["wait_for_room"]

T = TypeVar("T")
TURN_MS = 50


def wait_for_room(timeout_ms: int, attempt: Callable[[int], T]) -> T:
    """The result of attempt(ms), tried until it has room or the time is over.

    attempt waits for at most so many milliseconds and raises NoSpaceError if there is no
    room by then; the last one is passed on.
    """
    end = time.monotonic() + timeout_ms / 1000
    while True:
        left = max(0, round((end - time.monotonic()) * 1000))
        try:
            return attempt(min(left, TURN_MS))
        except NoSpaceError:
            if left <= TURN_MS:
                raise
