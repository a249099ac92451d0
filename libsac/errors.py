# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: A002 -- `object` is the word of the C interface and of the attribute.
"""One tree of errors: every failure of libsac is a :class:`SacError`.

There is one subclass a status of ``include/sac.h``. Where Python has a built-in
exception of the same meaning the subclass is that too, so ``except IndexError`` and
``except OSError`` work as usual.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

__all__ = [
    "AccessError",
    "ArgumentError",
    "BusyError",
    "ClosedError",
    "CorruptError",
    "DaemonError",
    "ExistsError",
    "ForkedError",
    "GpuError",
    "IncompleteError",
    "LayoutError",
    "MediaError",
    "NoSpaceError",
    "NotFoundError",
    "OutOfMemoryError",
    "RangeError",
    "ReservationError",
    "SacError",
    "StaleError",
    "SystemCallError",
    "VersionError",
    "from_status",
]


class SacError(Exception):
    """Base of every error of libsac; catch this to catch them all.

    Attributes:
        status: number of the ``sac_status`` in ``include/sac.h``.
        object: what the operation failed on (a path, namespace, plane ...), or "".
        errno: of the system call that failed, or 0 where none did.
        offset: byte in the extent for MediaError and CorruptError, else None.

    ``str(error)`` is one or two sentences for a person. Errors can be pickled.
    """

    CODE: ClassVar[int] = -1

    status: int
    object: str
    errno: int
    offset: int | None

    def __init__(
        self,
        message: str = "",
        *,
        object: str = "",
        errno: int = 0,
        offset: int | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = self.CODE if status is None else status
        self.object = object
        self.errno = errno
        self.offset = offset

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError and Exception rebuild from args alone and would lose the rest.
        state = (self.message, self.object, self.errno, self.offset, self.status)
        return _rebuild, (type(self), *state)


class ArgumentError(SacError, ValueError):
    """An argument is malformed: wrong type, shape, size or combination.

    Nothing was changed. Correct the call; the message names the argument.
    """

    CODE = 1


class RangeError(SacError, IndexError):
    """A token, row, layer, head or page that is not there.

    Raised before a byte is read or written. Compare the index with ``prefix.tokens``,
    ``plane.layers`` and ``plane.heads``.
    """

    CODE = 2


class NotFoundError(SacError, LookupError):
    """No pool, namespace or plane has that name.

    ``pool.namespaces()`` and ``layout.planes`` list the names there are.
    """

    CODE = 3


class ExistsError(SacError):
    """It is there already, with another specification (model, key scheme, flags).

    The message names the difference. Open it with its own specification, choose another
    name, or drop it first.
    """

    CODE = 4


class LayoutError(SacError, ValueError):
    """A layout is invalid, or is not the layout of the namespace it is used with.

    The message names the plane and the rule, or every difference of the two layouts.
    """

    CODE = 5


class NoSpaceError(SacError):
    """Nothing is free and nothing may be evicted; the message says who holds the space.

    Close prefixes and puts that are done, give the call a time-out to wait with, raise
    the quota, or make the pool larger.
    """

    CODE = 6


class BusyError(SacError):
    """In use: a pool open in another process, or pages that are pinned or reserved.

    Try again when the user named in the message has finished.
    """

    CODE = 7


class StaleError(SacError):
    """A page has left since it was looked up, so its bytes cannot be vouched for.

    Discard what was read, look the keys up again, and pin before reading.
    """

    CODE = 8


class ReservationError(SacError):
    """A reservation expired or was ended before its commit; nothing became visible.

    Put the pages again, with a longer deadline if writing takes that long.
    """

    CODE = 9


class IncompleteError(SacError):
    """A commit with rows missing; nothing became visible.

    The message names a plane, layer and page not yet written. Write it and commit again.
    """

    CODE = 10


class CorruptError(SacError):
    """Memory does not hold what the format demands; ``offset`` is where.

    Nothing of it was used. ``ns.verify()`` drops the pages concerned; a pool whose
    superblocks are damaged must be made anew.
    """

    CODE = 11


class VersionError(SacError):
    """A format version that this library does not know; the message names both.

    Open the pool with the library that wrote it, or make it anew.
    """

    CODE = 12


class MediaError(SacError):
    """Memory is dead, out of use, or gone with its device; ``object`` is the extent (or the
    pool), ``offset`` the byte in it.

    Close the prefix or put, and compute the rows of the lost pages again.
    """

    CODE = 13


class ForkedError(SacError):
    """A handle of the parent process was used after ``fork()``.

    Open the pool anew in the child; the handle still works in the parent.
    """

    CODE = 14


class ClosedError(SacError):
    """The pool, namespace, prefix, put or sequence was closed before this call."""

    CODE = 15


# OSError types errno as int or None; here it is always a number.
class _FromSystemError(SacError, OSError):  # type: ignore[misc]
    """Has ``errno``, ``strerror`` and ``filename`` as any OSError."""

    def __init__(
        self,
        message: str = "",
        *,
        object: str = "",
        errno: int = 0,
        offset: int | None = None,
        status: int | None = None,
    ) -> None:
        SacError.__init__(
            self, message, object=object, errno=errno, offset=offset, status=status
        )
        # OSError keeps these outside the instance dictionary and would leave them None.
        self.strerror = os.strerror(errno) if errno else message
        self.filename = object or None


class SystemCallError(_FromSystemError):
    """A system call failed: ``errno``, ``strerror`` and ``filename`` as in any OSError.

    The message names the call, the object and the likely cause.
    """

    CODE = 16


class OutOfMemoryError(SacError, MemoryError):
    """This process is out of memory (the pool being full is NoSpaceError)."""

    CODE = 17


class DaemonError(_FromSystemError, ConnectionError):  # type: ignore[misc]
    """The daemon is not there, went away and did not come back in time, or does not answer.

    ``filename`` is its socket. Pages that are pinned can still be read. Start it (``sacctl
    daemon run`` or ``systemctl start sacd``); handles go on where they were when it is back.
    """

    CODE = 18


class AccessError(_FromSystemError, PermissionError):  # type: ignore[misc]
    """The access list of the namespace, or the daemon's settings, do not allow it.

    Nothing was changed. Its owner can give access by the namespace's group and mode.
    """

    CODE = 19


class GpuError(SacError):
    """CUDA: its driver or NVRTC is not there, or a call of theirs failed.

    ``errno`` is their result (a ``CUresult`` or ``nvrtcResult``; 0 where none was called). The
    message says what to install or change. Work on the CPU goes on without them.
    """

    CODE = 20


_BY_STATUS = {
    cls.CODE: cls for cls in (*SacError.__subclasses__(), *_FromSystemError.__subclasses__())
}

_WITH_OFFSET = (CorruptError.CODE, MediaError.CODE)


def from_status(
    status: int, message: str, object: str = "", errno: int = 0, offset: int = 0
) -> SacError:
    """The exception for a failed call of the C interface; the caller raises it.

    ``offset`` is kept for the statuses that have one and dropped otherwise. A status
    newer than this module gives a plain SacError that carries its number. Status 0 is
    no failure and raises ValueError.
    """
    if status == 0:
        raise ValueError("status 0 (SAC_OK) is not a failure")
    cls = _BY_STATUS.get(status, SacError)
    return cls(
        message,
        object=object,
        errno=errno,
        offset=offset if status in _WITH_OFFSET else None,
        status=status,
    )


def _rebuild(
    cls: type[SacError],
    message: str,
    object: str,
    errno: int,
    offset: int | None,
    status: int,
) -> SacError:
    return cls(message, object=object, errno=errno, offset=offset, status=status)
