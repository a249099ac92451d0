# SPDX-License-Identifier: Apache-2.0
"""New trace files, and what is said where one cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any, BinaryIO

from libsac.errors import GpuError, SacError, SystemCallError
from libsac.trace_file import Writer

__all__ = ["begin", "told"]


def begin(path: Path, **options: Any) -> tuple[BinaryIO, Writer]:
    """A new file that is a trace already, whatever becomes of this process, and its writer.

    options: as Writer's. Raises ArgumentError, SystemCallError; no file stays then.
    """
    file = _create(path)
    try:
        writer = Writer(file, **options)
        file.flush()
    except BaseException as error:
        with contextlib.suppress(OSError):
            file.close()
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise told(path, error) from error
        raise
    return file, writer


def told(path: Path, failed: BaseException) -> BaseException:
    """What is raised where a trace could not be written because of failed."""
    if isinstance(failed, RuntimeError) and not isinstance(failed, SacError):
        found: SacError = GpuError(f"a selection did not come from the GPU: {failed}")
    elif isinstance(failed, OSError):
        found = SystemCallError(
            f"cannot write the trace {path}: {failed.strerror or failed}. "
            "What was written before can be read; make room and record anew",
            object=str(path),
            errno=failed.errno or 0,
        )
    else:
        return failed
    found.__cause__ = failed
    return found


def _create(path: Path) -> BinaryIO:
    """A new file of mode 0600; SystemCallError, also where it is there already."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.fdopen(os.open(path, flags, 0o600), "wb", buffering=1 << 20)
    except OSError as error:
        todo = {
            errno.EEXIST: "A trace is never written over: give another name, or remove it",
            errno.ENOENT: "Create its folder first",
        }
        what = todo.get(error.errno or 0, "Give a file in a folder that can be written to")
        raise SystemCallError(
            f"cannot create the trace {path}: {error.strerror}. {what}",
            object=str(path),
            errno=error.errno or 0,
        ) from error
