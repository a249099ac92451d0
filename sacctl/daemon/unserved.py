# SPDX-License-Identifier: Apache-2.0
"""A pool that the daemon knows, and why it is not served where it is not."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path

from libsac.errors import CorruptError, SacError, VersionError
from libsac.server import SharedPool
from sacctl.daemon.extents import Mark
from sacctl.daemon.log import log
from sacctl.errors import (
    BusyError,
    CtlError,
    DeniedError,
    NotFoundError,
    RefusedError,
    from_libsac,
    from_os,
)
from sacctl.pool.record import Record

__all__ = ["Served", "extends", "gone", "half_made", "in_use", "not_served", "unserved"]


@dataclass(slots=True)
class Served:
    """A pool that the daemon knows. pool None: not served; then reason says why.

    Attributes:
        record: None where its file is not whole. state: "serving", "absent", "damaged", or
            "lost": its memory has gone with its devices; it stays open for its clients, who
            get errors.
        hint: what the administrator can do. again: it may be otherwise in a moment.
        marks: its dax devices as they were when it was opened.
        lost: data extents that have gone, and why. poisoned: (extent, block) out of use.
    """

    name: str
    record: Record | None
    pool: SharedPool | None = None
    state: str = "absent"
    reason: str = ""
    hint: str = ""
    again: bool = False
    marks: tuple[Mark, ...] = ()
    lost: dict[int, str] = field(default_factory=dict)
    poisoned: set[tuple[int, int]] = field(default_factory=set)


def not_served(served: Served) -> CtlError:
    return NotFoundError(
        f"pool '{served.name}' is {served.state}: {served.reason}",
        object=served.name,
        hint=served.hint,
    )


def in_use(name: str, error: SacError) -> CtlError:
    """Why a pool cannot be let go: RefusedError while clients are attached."""
    wrong = from_libsac(error)
    if not isinstance(wrong, BusyError):
        return wrong
    return RefusedError(
        wrong.message, object=name, errno=wrong.errno, hint="sacctl client list"
    )


def half_made(record: Record) -> Served:
    """A pool that somebody is at work on, or was until he was killed."""
    hint = f"sacctl pool destroy {record.name}, or create it again"
    if record.state == "assembling":
        hint = f"sudo sacctl pool assemble {record.name}"
    return Served(
        record.name,
        record,
        reason="it is half made, by somebody at work or cut off: its record says "
        f"'{record.state}'",
        hint=hint,
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
    elif not hint and error.errno == errno.EROFS and record is not None:
        folder = Path(record.meta).parent
        hint = f"systemctl edit sacd, and there: [Service] ReadWritePaths={folder}"
    elif not hint and isinstance(error, NotFoundError) and record and record.cxl:
        hint = f"sudo sacctl pool assemble {name}"
    elif not hint and isinstance(error, NotFoundError):
        hint = f"its files are gone: sacctl pool destroy {name}, then create it again"
    elif not hint and state == "damaged":
        hint = f"sacctl pool destroy {name}, then create it again; its pages are lost"
    busy = isinstance(error, BusyError)
    return Served(name, record, None, state, error.message, hint, busy)


def gone(served: Served) -> bool:
    """Whether its files are certainly not there any more, and will not come back."""
    if served.record is None or served.record.kind != "emulated":
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
