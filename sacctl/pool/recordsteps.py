# SPDX-License-Identifier: Apache-2.0
"""Steps on pool records, and towards a running daemon."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from sacctl.errors import BusyError, CtlError, DeniedError, NotFoundError, RefusedError
from sacctl.pool.places import LOCK_WAIT, Places, patiently
from sacctl.pool.record import Record, Records
from sacctl.pool.steps import Say, Step, carry_out

__all__ = [
    "Daemon",
    "HandOver",
    "RemoveRecord",
    "TakeRecords",
    "Withdraw",
    "WriteRecord",
    "records_taken",
    "take_back",
]


class Peer(Protocol):
    @property
    def uid(self) -> int: ...


class Daemon(Protocol):
    """What is needed of ``sacctl.daemon.link.Link``."""

    @property
    def peer(self) -> Peer: ...

    def call(
        self, op: str, fds: Sequence[int] = (), *, timeout: float | None = None, **args: Any
    ) -> dict[str, Any]: ...

    def again(self) -> Daemon: ...


class TakeRecords(Step):
    """Locks the folder of records against other sacctl processes, making it where it is not.

    What is planned behind it holds until release(), for all that change devices or files of
    pools take it first. The record must still be as it was seen before. One within another
    change through the same Records (a destruction may assemble the pool) has that one's lock.
    """

    def __init__(self, records: Records, name: str, seen: Record | None) -> None:
        self._records, self._name, self._seen = records, name, seen
        self._own = False
        self._made: list[Path] = []

    @property
    def what(self) -> str:
        return f"lock the folder of pool records {self._records.folder}"

    def apply(self) -> None:
        if self._records.lock < 0:
            self._lock(self._records.folder)
        if self._records.find(self._name) != self._seen:
            raise BusyError(
                f"pool '{self._name}' was changed by another command meanwhile",
                object=self._name,
                hint="sacctl pool list, then try again",
            )

    def _lock(self, folder: Path) -> None:
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        for path in reversed(missing):
            with suppress(FileExistsError):
                path.mkdir(0o755)
                self._made.append(path)
        fd = self._records.lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._own = True
        lock = fcntl.LOCK_EX | fcntl.LOCK_NB
        patiently(lambda: fcntl.flock(fd, lock), str(folder), LOCK_WAIT)

    def undo(self) -> None:
        self.release()
        for path in reversed(self._made):
            try:
                path.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
        self._made.clear()

    def release(self) -> None:
        """Others may go on. Nothing where it is another change's lock."""
        if self._own:
            os.close(self._records.lock)
            self._records.lock = -1
            self._own = False


@contextmanager
def records_taken(
    take: TakeRecords, say: Say, *, dry_run: bool = False
) -> Iterator[TakeRecords]:
    """Holds the lock for what is done within, planning included; an error takes the folder
    back that was made for it. dry_run: nothing is locked. Raises BusyError, CtlError."""
    try:
        if not dry_run:
            carry_out([take], say)
        yield take
    except BaseException:
        take.undo()
        raise
    finally:
        take.release()


class WriteRecord(Step):
    """record gives it when the step is done; before is the one there now, or None."""

    def __init__(
        self, records: Records, before: Record | None, record: Callable[[], Record], state: str
    ) -> None:
        self._records, self._before, self._record, self._state = records, before, record, state
        self._name, self._written = record().name, False

    @property
    def what(self) -> str:
        return f"write the record {self._records.path(self._name)} (state: {self._state})"

    def apply(self) -> None:
        self._written = True  # first: what fails may have replaced it already
        self._records.write(self._record().with_(state=self._state))

    def undo(self) -> None:
        if not self._written:
            return
        if self._before is None:
            self._records.remove(self._name)
        else:
            self._records.write(self._before)
        self._written = False


class RemoveRecord(Step):
    final = True

    def __init__(self, records: Records, name: str) -> None:
        self._records, self._name = records, name

    @property
    def what(self) -> str:
        return f"remove the record {self._records.path(self._name)}"

    def apply(self) -> None:
        self._records.remove(self._name)


class HandOver(Step):
    """Gives the pool's files to the daemon, which serves it from then on. pool: its answer."""

    def __init__(self, daemon: Daemon, places: Places, record: Callable[[], Record]) -> None:
        self._daemon, self._places, self._record = daemon, places, record
        self._name, self._begun = record().name, False
        self.pool: dict[str, Any] = {}
        self.added = False

    @property
    def what(self) -> str:
        return f"hand the files of pool '{self._name}' to the daemon"

    def apply(self) -> None:
        record = self._record()
        self._begun = True  # the answer may get lost behind the deed
        answer = add(self._daemon, self._places, record)
        self.pool, self.added = answer.get("pool", {}), bool(answer.get("added"))
        if self.pool.get("uuid", record.uuid) != record.uuid:
            raise CtlError(
                f"the daemon serves another pool '{record.name}' (uuid {self.pool['uuid']})",
                object=record.name,
                hint="sacctl pool show, and another name for this one",
            )

    def undo(self) -> None:
        if self._begun and (self.added or not self.pool):
            # Who may not take a pool away may not have given one either.
            with suppress(NotFoundError, DeniedError):
                take_back(self._daemon, "pool.remove", name=self._name)
        self._begun = False


class Withdraw(Step):
    """Makes the daemon let go of a pool; one that it does not know is fine."""

    def __init__(self, daemon: Daemon, places: Places, record: Record) -> None:
        self._daemon, self._places, self._record = daemon, places, record
        self._done = False

    @property
    def what(self) -> str:
        return f"take pool '{self._record.name}' from the daemon"

    def apply(self) -> None:
        try:
            self._daemon.call("pool.remove", name=self._record.name)
            self._done = True
        except NotFoundError:
            pass
        except BusyError as error:
            raise RefusedError(
                error.message,
                object=error.object,
                errno=error.errno,
                hint="sacctl client list shows who uses it; end them, or sacctl client evict",
            ) from error

    def undo(self) -> None:
        if not self._done:
            return
        self._done = False
        try:
            add(self._daemon.again(), self._places, self._record)
        except NotFoundError:
            return  # it has ended meanwhile; the next one takes the pool by its record


def take_back(daemon: Daemon, op: str, **args: Any) -> None:
    """Undoes what a daemon did. One that ends has let go of everything: where the connection
    broke, who listens now is asked, and where nobody does, there is nothing to undo.

    Raises NotFoundError, which says the same; else CtlError: it may have it still.
    """
    try:
        daemon.call(op, **args)
    except (NotFoundError, DeniedError):
        raise
    except CtlError:
        other = daemon.again()
        if other is daemon:  # it has answered, and that is its answer
            raise
        other.call(op, **args)


def add(daemon: Daemon, places: Places, record: Record) -> dict[str, Any]:
    """The daemon's answer to pool.add. The record's files must be open. Raises CtlError."""
    fds = [places.files[path] for path in (record.meta, *record.data)]
    return daemon.call("pool.add", fds, record=record.to_dict())
