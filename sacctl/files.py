# SPDX-License-Identifier: Apache-2.0
"""Small files of our own, read and written where something else may lie in their place."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

__all__ = ["forget_new", "read_regular", "write_whole"]


def read_regular(path: Path, most: int) -> bytes:
    """All of a regular file of at most this many bytes. Neither waits at a pipe nor reads a
    device without an end. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(fd, "rb", closefd=False) as file:
            text = file.read(most + 1)
    finally:
        os.close(fd)
    if len(text) > most:
        raise OSError(errno.EFBIG, "too long", str(path))
    return text


def write_whole(path: Path, data: bytes, mode: int, *, sync: bool = False) -> None:
    """Puts a file of this mode in place, whole or not at all. One writer at a time.

    Written beside it first, under one name, so that what a killed writer left goes with the
    next; whatever has that name, a link or a pipe, is not written to. sync: the bytes have
    reached the disk when it has its name. Raises OSError.
    """
    new = _new(path)
    with suppress(FileNotFoundError):
        new.unlink()
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)  # what the umask took
            file.flush()
            if sync:
                os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        forget_new(path)
        raise


def forget_new(path: Path) -> None:
    """Removes what a killed writer of this file left beside it. Raises nothing."""
    with suppress(OSError):
        _new(path).unlink()


def _new(path: Path) -> Path:
    """No file's of another name: it begins with a dot, and ends in no ending that is read."""
    return path.with_name(f".{path.name}.new")
