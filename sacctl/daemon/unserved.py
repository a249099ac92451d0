# SPDX-License-Identifier: Apache-2.0
"""A pool that the daemon knows, and why it is not served where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from libsac.errors import CorruptError, SacError, VersionError
from libsac.server import SharedPool
from sacctl.daemon.log import log
from sacctl.errors import (
    BusyError,
    CtlError,
    DeniedError,
    NotFoundError,
    from_libsac,
    from_os,
)
from sacctl.pool.record import Record

__all__ = ["Served", "extends", "gone", "not_served", "unserved"]


@dataclass(slots=True)
class Served:
    """A pool that the daemon knows. pool None: not served; then reason says why.

    Attributes:
        record: None where its file is not whole. state: "serving", "absent" or "damaged".
        hint: what the administrator can do. again: it may be otherwise in a moment.
    """

    name: str
    record: Record | None
    pool: SharedPool | None = None
    state: str = "absent"
    reason: str = ""
    hint: str = ""
    again: bool = False


def not_served(served: Served) -> CtlError:
    return NotFoundError(
        f"pool '{served.name}' is {served.state}: {served.reason}",
        object=served.name,
        hint=served.hint,
    )


def unserved(name: str, record: Record | None, error: Exception) -> Served:
    """What a failed opening makes of a pool."""
    state = "damaged" if isinstance(error, CorruptError | VersionError) else "absent"
    if isinstance(error, SacError):
        error = from_libsac(error)
    elif isinstance(error, OSError):
        error = from_os(error, "cannot open its files")
    elif not isinstance(error, CtlError):
        # One pool's trouble, whatever it is, must not be the others'.
        log.exception(f"pool {name} cannot be opened", pool=name)
        error = CtlError(f"{type(error).__name__}: {error}", hint="see the daemon's log")
    hint = error.hint
    if isinstance(error, DeniedError):
        hint = (
            f"as the owner of its files, run sacctl pool create {name} with the same spec "
            "again: it hands the files over"
        )
    elif not hint and isinstance(error, NotFoundError):
        hint = f"its files are gone: sacctl pool destroy {name}, then create it again"
    elif not hint and state == "damaged":
        hint = f"sacctl pool destroy {name}, then create it again; its pages are lost"
    busy = isinstance(error, BusyError)
    return Served(name, record, None, state, error.message, hint, busy)


def gone(served: Served) -> bool:
    """Whether its files are certainly not there any more."""
    if served.record is None:
        return False
    try:
        Path(served.record.meta).lstat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def extends(record: Record, old: Record) -> bool:
    """Whether record is old with data extents added at its end."""
    known = len(old.data)
    same = (record.name, record.uuid, record.meta) == (old.name, old.uuid, old.meta)
    return same and record.data[:known] == old.data and len(record.data) > known
