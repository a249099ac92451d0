# SPDX-License-Identifier: Apache-2.0
"""Adds extents to a pool, also while a daemon serves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sacctl.errors import CtlError, NotFoundError, RefusedError, from_os
from sacctl.pool import limits, native, superblock
from sacctl.pool.acl import share
from sacctl.pool.filesteps import MakeFile, OpenFiles, RemoveFile
from sacctl.pool.places import Places, folder_of
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import Daemon, TakeRecords, WriteRecord, records_taken
from sacctl.pool.spec import MOST_EXTENTS, file_bytes
from sacctl.pool.steps import Say, Step, carry_out

__all__ = ["Extended", "extend", "present", "settle"]


@dataclass(frozen=True, slots=True)
class Extended:
    """record: as it is now (with dry_run: as it would be). served: a daemon has the pool.

    steps: what was done, or would be. pool: the daemon's record of it, {} without a daemon.
    """

    record: Record
    served: bool
    steps: list[str]
    pool: dict[str, Any]


def present(record: Record) -> Record:
    """The record with those data extents only that its superblock counts: of a record in
    state "extending" the last ones may not be part of the pool yet. Raises CtlError."""
    if record.state != "extending":
        return record
    try:
        found = superblock.read_file(record.meta)
    except OSError as error:
        raise from_os(error, f"cannot read {record.meta}") from error
    if found is None or found.uuid != record.uuid or len(found.extents) > len(record.data):
        raise CtlError(
            f"{record.meta} is missing, damaged or of another pool",
            object=record.name,
            hint=f"sacctl pool show {record.name}",
        )
    count = len(found.extents)
    return record.with_(data=record.data[:count], sizes=record.sizes[:count], state="ready")


def settle(record: Record, records: Records, places: Places) -> tuple[Record, list[Step]]:
    """Ends an extension that was cut off: the record that holds, and the steps to it."""
    held = present(record)
    if held == record:
        return record, []
    rest = record.data[len(held.data) :]
    return held, [
        OpenFiles(places, record, lock=False),
        *(RemoveFile(places, path) for path in rest),
        WriteRecord(records, record, lambda: held, "ready"),
    ]


def extend(
    name: str,
    sizes: tuple[int, ...],
    records: Records,
    *,
    daemon: Daemon | None = None,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> Extended:
    """Adds data extents of these sizes (bytes, whole slabs) at the pool's end.

    A daemon that serves the pool takes them at once; without one the pool is opened here.
    Raises NotFoundError, CtlError (no room, too many extents, a pool that is not whole),
    BusyError; PartlyError where a failure could not be undone. After any other error all is as
    before.
    """
    seen = records.get(name)
    if seen.cxl is not None:
        raise RefusedError(
            f"pool '{name}' is made of CXL devices, and does not grow by ordinary memory",
            object=name,
            hint="a second pool of devices that are free: sacctl pool plan",
        )
    if seen.state in ("creating", "destroying"):
        raise CtlError(
            f"pool '{name}' is not whole: its {seen.state[:-3]}ion was cut off"
            if seen.state == "creating"
            else f"pool '{name}' is half destroyed",
            object=name,
            hint=f"sacctl pool destroy {name}, then create it",
        )
    if daemon is not None:
        # An extension whose asker was killed may still be going on there: it comes first.
        try:
            shown = daemon.call("pool.show", name=name)["pool"]
            daemon = daemon if shown["state"] == "serving" else None
        except NotFoundError:
            daemon = None
    take = TakeRecords(records, name, seen)
    with records_taken(take, say, dry_run=dry_run), Places(seen.uid) as places:
        held, more = settle(seen, records, places)
        new = _longer(held, sizes)
        paths = new.data[len(held.data) :]
        grown = [file_bytes(size, new.huge) for size in sizes]
        folder = folder_of(paths[0])
        limits.check(name, [limits.Need(folder, tuple(grown), sum(grown), new.huge)])
        grow = Grow(daemon, places, held, new)
        change: list[Step] = [
            OpenFiles(places, held, lock=False),
            WriteRecord(records, held, lambda: new, "extending"),
            *(MakeFile(places, p, size) for p, size in zip(paths, grown, strict=True)),
            *(share(daemon, places, name, paths) if daemon is not None else ()),
            grow,
            WriteRecord(records, new, lambda: new, "ready"),
        ]
        if not dry_run:
            carry_out(more, say, again=f"sacctl pool extend {name}, again")
            carry_out(change, say, again=f"sacctl pool show {name}")
    steps = [step.what for step in (take, *more, *change)]
    return Extended(new, daemon is not None, steps, grow.pool)


def _longer(record: Record, sizes: tuple[int, ...]) -> Record:
    count = len(record.data) + len(sizes)
    if count > MOST_EXTENTS:
        raise CtlError(
            f"pool '{record.name}' has {len(record.data)} extents; {len(sizes)} more are over "
            f"the limit of {MOST_EXTENTS}",
            object=record.name,
            hint="fewer and larger extents",
        )
    folder = folder_of(record.data[0])
    more = tuple(f"{folder}/data.{i}" for i in range(len(record.data), count))
    return record.with_(data=record.data + more, sizes=record.sizes + sizes)


class Grow(Step):
    """Makes the new files part of the pool, which cannot be taken back. An answer that was
    lost is looked for in the superblock."""

    final = True

    def __init__(
        self, daemon: Daemon | None, places: Places, before: Record, after: Record
    ) -> None:
        self._daemon, self._places, self._before, self._after = daemon, places, before, after
        self.pool: dict[str, Any] = {}

    @property
    def what(self) -> str:
        count = len(self._after.data) - len(self._before.data)
        extents = f"{count} new extent{'s' * (count != 1)}"
        return f"make {extents} part of pool '{self._after.name}'"

    def apply(self) -> None:
        try:
            self._grow()
        except BaseException:
            if self._count() == len(self._before.data):
                raise
            if self._count() != len(self._after.data):
                self.cut = True  # some of several: the record, "extending", is right
                raise

    def _grow(self) -> None:
        old, new, files = self._before, self._after, self._places.files
        more = [(files[path], path) for path in new.data[len(old.data) :]]
        if self._daemon is None:
            data = [(files[path], path) for path in old.data]
            native.extend_pool((files[old.meta], old.meta), data, more)
            return
        answer = self._daemon.call(
            "pool.extend", [fd for fd, _ in more], name=new.name, record=new.to_dict()
        )
        self.pool = answer.get("pool", {})

    def _count(self) -> int:
        found = superblock.read(self._places.files[self._before.meta])
        return len(found.extents) if found else len(self._before.data)
