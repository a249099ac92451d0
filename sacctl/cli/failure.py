# SPDX-License-Identifier: Apache-2.0
"""The one place that turns an exception into a sentence on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from contextlib import suppress

import click

from sacctl.errors import CtlError, from_libsac, from_os

__all__ = ["EXIT_CODES", "INTERRUPTED", "PIPE_CLOSED", "from_write", "handle"]

EXIT_CODES = (
    (0, "done"),
    (1, "failed"),
    (2, "usage"),
    (3, "not found or not running"),
    (4, "refused by a safety rule"),
    (5, "permission"),
    (6, "busy"),
    (7, "partly done"),
    (130, "interrupted"),
)
INTERRUPTED = 130
# Only writing gives these, and what is written without a name is stdout.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PIPE_CLOSED = 141  # what a shell shows for a process that SIGPIPE ended


def handle(error: BaseException, verbose: bool = False) -> int:
    """Says on stderr what happened; returns the exit code. Nothing is raised.

    A closed pipe is said to nobody: who reads the output has seen enough. With verbose an
    error that nobody expected comes with its traceback.
    """
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):  # a signal that a command turned into one
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        _say("")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        drop_stdout()
        return PIPE_CLOSED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        _say(error.format_message())
        return 2
    if isinstance(error, click.ClickException):
        _say(_usage(error))
        return error.exit_code
    known = _known(error)
    if known is not None:
        if verbose:
            _trace(error)
        _say(f"error: {known.sentence()}")
        return known.exit_code
    if verbose:
        _trace(error)
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    where = "report it" if verbose else "run it again with -v to see where, and report it"
    _say(f"error: a fault of sacctl itself: {what}. next: {where}")
    return 1


def _known(error: BaseException) -> CtlError | None:
    """error as one of sacctl's, None where it is a fault of the program."""
    if isinstance(error, CtlError):
        return error
    # libsac is not imported for this: its errors exist only where it has been.
    errors = sys.modules.get("libsac.errors")
    if errors is not None and isinstance(error, errors.SacError):
        return from_libsac(error)
    if isinstance(error, ImportError) and "libsac" in str(error):
        return CtlError(str(error))
    if isinstance(error, MemoryError):
        return CtlError("this process is out of memory", errno=errno.ENOMEM)
    if isinstance(error, OSError) and error.errno:
        if error.filename is None and error.errno in _FULL:
            drop_stdout()
            return from_os(error, "cannot write to stdout")
        return from_os(error, "a system call failed")
    return None


def _usage(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split()).rstrip(".")  # click lists choices in lines
    context = getattr(error, "ctx", None)
    if context is None:
        return f"error: {text}"
    end = "" if text.endswith("?") else "."
    return f"error: {text}{end} next: {context.command_path} --help"


def _say(text: str) -> None:
    # One line, whatever is in the message: names that others chose may be in it.
    from sacctl.render.quantities import clean

    with suppress(OSError, ValueError):
        lines = [clean(line) for line in text.split("\n")]
        print("\n".join(lines), file=sys.stderr, flush=True)


def _trace(error: BaseException) -> None:
    with suppress(OSError, ValueError):
        traceback.print_exception(error, file=sys.stderr)


def from_write(error: OSError) -> BaseException:
    """What a failed write to stdout is: a closed pipe stays one."""
    drop_stdout()
    if isinstance(error, BrokenPipeError):
        return error
    return from_os(error, "cannot write to stdout")


def drop_stdout() -> None:
    """What is still buffered goes nowhere, so that the interpreter's own last flush is
    quiet too."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
