# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: A002 -- `object` and `errno` are the words of the protocol and of libsac.
"""Errors of sacctl: each has a kind, which decides the exit code.

The daemon sends them as the ``error`` of an ADMIN reply (docs/protocol.md), the command
line prints them as one sentence. Importing this module imports neither libsac nor click.
"""

from __future__ import annotations

import errno as _errno
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from libsac.errors import SacError

__all__ = [
    "BusyError",
    "CtlError",
    "DeniedError",
    "NotFoundError",
    "PartlyError",
    "RefusedError",
    "UsageError",
    "from_libsac",
    "from_os",
    "from_reply",
]


class CtlError(Exception):
    """Something failed: what, on which object, why, and what to do next.

    Attributes:
        message: what failed and why, a sentence without its full stop.
        object: what it failed on (a pool, a namespace, a path), or "".
        errno: of the system call that failed, or 0 where none did.
        hint: the next command or step, or "".
        kind: the word for it in a reply of the daemon (class attribute).
        exit_code: of the command line (class attribute).

    Base of all errors of sacctl; raised itself for the kind "failed".
    """

    kind: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1

    def __init__(
        self, message: str, *, object: str = "", errno: int = 0, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.object = object
        self.errno = errno
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def sentence(self) -> str:
        """All of it on one line: ``pool kv: cannot ... : No such file or directory``."""
        text = self.message.strip().rstrip(".")
        if self.object and self.object not in text:
            text = f"{self.object}: {text}"
        why = os.strerror(self.errno) if self.errno else ""
        if why and why.lower() not in text.lower():
            text = f"{text}: {why}"
        return f"{text}. next: {self.hint}" if self.hint else text

    def to_reply(self) -> dict[str, Any]:
        """The ``error`` object of an ADMIN reply; :func:`from_reply` is the way back."""
        return {
            "kind": self.kind,
            "message": self.message,
            "object": self.object,
            "errno": self.errno,
            "hint": self.hint,
        }


class UsageError(CtlError):
    """An argument is malformed, or arguments do not go together. Nothing was changed."""

    kind = "usage"
    exit_code = 2


class NotFoundError(CtlError):
    """It is not there, or the daemon is not running."""

    kind = "not_found"
    exit_code = 3


class RefusedError(CtlError):
    """A safety rule forbids it now, such as destroying what is in use."""

    kind = "refused"
    exit_code = 4


class DeniedError(CtlError):
    """The user may not do it."""

    kind = "permission"
    exit_code = 5


class BusyError(CtlError):
    """In use by another process; may work later."""

    kind = "busy"
    exit_code = 6


class PartlyError(CtlError):
    """Done in part; the message says what was done and what was not."""

    kind = "partly"
    exit_code = 7


_ALL: list[type[CtlError]] = [CtlError, *CtlError.__subclasses__()]
_KINDS: dict[str, type[CtlError]] = {cls.kind: cls for cls in _ALL}

# By sac_status of include/sac.h: names of the classes would need libsac imported.
_STATUS: dict[int, type[CtlError]] = {
    1: UsageError,
    2: UsageError,
    3: NotFoundError,
    7: BusyError,
    18: NotFoundError,  # no daemon
    19: DeniedError,
}

_ERRNO: dict[int, type[CtlError]] = {
    _errno.ENOENT: NotFoundError,
    _errno.ENODEV: NotFoundError,
    _errno.ENXIO: NotFoundError,
    _errno.ECONNREFUSED: NotFoundError,
    _errno.EACCES: DeniedError,
    _errno.EPERM: DeniedError,
    _errno.EROFS: DeniedError,
    _errno.EBUSY: BusyError,
    _errno.EAGAIN: BusyError,
    _errno.ETXTBSY: BusyError,
}


def from_libsac(error: SacError, *, hint: str = "") -> CtlError:
    """The same failure as an error of sacctl; the caller raises it."""
    cls = _STATUS.get(error.status) or _ERRNO.get(error.errno, CtlError)
    return cls(error.message, object=error.object, errno=error.errno, hint=hint)


def from_os(error: OSError, what: str, *, hint: str = "") -> CtlError:
    """``what`` is what failed ("cannot write the settings"); path and reason are added."""
    code = error.errno or 0
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    why = error.strerror or str(error) or type(error).__name__
    where = f" {path}" if path and path not in what else ""
    message = f"{what}{where}: {why}"
    return _ERRNO.get(code, CtlError)(message, object=path, errno=code, hint=hint)


def from_reply(error: Mapping[str, Any]) -> CtlError:
    """The error in an ADMIN reply. A kind this version does not know is "failed"."""
    cls = _KINDS.get(str(error.get("kind", "")), CtlError)
    code = error.get("errno", 0)
    return cls(
        str(error.get("message", "")) or "the daemon gave no reason",
        object=str(error.get("object", "") or ""),
        errno=code if isinstance(code, int) else 0,
        hint=str(error.get("hint", "") or ""),
    )
