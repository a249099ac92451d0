# SPDX-License-Identifier: Apache-2.0
"""How the command takes its numbers, and how it ends when something is wrong. No torch."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from typing import TextIO


def count(word: str) -> int:
    """An option's value, for argparse. Raises ArgumentTypeError unless it is 1 or more."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word} is not a whole number of 1 or more")
    return int(word)


def fail(message: str, code: int) -> int:
    """Writes `error: message`, one line, on stderr; returns code, the exit status.

    Where stdout or stderr cannot be written to, its file descriptor is led to /dev/null.
    """
    with suppress(OSError):
        print("error:", " ".join(message.split()), file=sys.stderr, flush=True)
    for stream in (sys.stdout, sys.stderr):
        _silence_if_broken(stream)
    return code


def _silence_if_broken(stream: TextIO) -> None:
    """What a broken stream still buffers goes nowhere: Python would complain at its end."""
    try:
        stream.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
