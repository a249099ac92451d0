# SPDX-License-Identifier: Apache-2.0
"""Removes a pool: the steps of its creation backwards, so that what a kill leaves is what a
kill of a creation leaves, and can be destroyed again."""

from __future__ import annotations

from dataclasses import dataclass

from sacctl.pool.filesteps import OpenFiles, RemoveFile, RemoveFolder, Rename, new_name
from sacctl.pool.places import Places
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import Daemon, RemoveRecord, TakeRecords, Withdraw, WriteRecord
from sacctl.pool.steps import Say, Step, carry_out

__all__ = ["Destroyed", "destroy", "removal"]


@dataclass(frozen=True, slots=True)
class Destroyed:
    """record: of the pool that has gone. steps: what was done, or would be."""

    record: Record
    steps: list[str]


def destroy(
    name: str,
    records: Records,
    *,
    daemon: Daemon | None = None,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> Destroyed:
    """Removes the pool with all that is in it. Asks nobody.

    Raises NotFoundError; RefusedError while clients are attached, BusyError while another
    process has the files open: nothing was changed. PartlyError once files have gone and the
    rest could not be removed; the same call finishes it.
    """
    record = records.get(name)
    with Places(record.uid) as places:
        take = TakeRecords(records, name, record)
        steps: list[Step] = [take]
        if daemon is not None:
            steps += [
                OpenFiles(places, record, lock=False),
                Withdraw(daemon, places, record),
            ]
        steps += [
            OpenFiles(places, record, lock=True),
            WriteRecord(records, record, lambda: record, "destroying"),
            *removal(places, record)[1:],
            RemoveRecord(records, name),
        ]
        try:
            if not dry_run:
                carry_out(steps, say, again=f"sacctl pool destroy {name}")
        finally:
            take.release()
    return Destroyed(record, [step.what for step in steps])


def removal(places: Places, record: Record, *, folders: bool = True) -> list[Step]:
    """Steps that remove what there is of a pool's files (and folders), locked first."""
    new = new_name(record.meta)
    steps: list[Step] = [
        OpenFiles(places, record, lock=True),
        # From here on there is no pool, and all that lies there is nobody's.
        Rename(places, record.meta, new),
        *(RemoveFile(places, path) for path in reversed(record.data)),
        RemoveFile(places, new),
    ]
    if folders:
        steps += [RemoveFolder(places, path) for path in reversed(record.folders)]
    return steps
