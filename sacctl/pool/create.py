# SPDX-License-Identifier: Apache-2.0
"""Makes an emulated pool: looks, plans, carries out, checks; or takes all of it back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacctl import paths
from sacctl.errors import CtlError, RefusedError
from sacctl.pool import limits
from sacctl.pool.acl import share
from sacctl.pool.destroy import removal
from sacctl.pool.extend import present, settle
from sacctl.pool.filesteps import (
    CheckPool,
    FormatPool,
    MakeFile,
    MakeFolder,
    OpenFiles,
    Rename,
    new_name,
)
from sacctl.pool.found import is_there, remains
from sacctl.pool.mounts import huge_mount, mount_of
from sacctl.pool.names import check_new_name
from sacctl.pool.places import Places, folder_of
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import Daemon, HandOver, TakeRecords, WriteRecord, records_taken
from sacctl.pool.spec import Spec
from sacctl.pool.steps import Say, Step, carry_out

__all__ = ["Created", "create"]


@dataclass(frozen=True, slots=True)
class Created:
    """What came of it. record: as it is now (with dry_run: as it would be, uuid "").

    created: False where the same pool was there already. served: a daemon has it.
    steps: what was done, or would be. pool: the daemon's record of it, {} without a daemon.
    """

    record: Record
    created: bool
    served: bool
    steps: list[str]
    pool: dict[str, Any]


def create(
    spec: Spec,
    records: Records,
    *,
    daemon: Daemon | None = None,
    owner: int | None = None,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> Created:
    """Makes the pool, or finds that it is there already.

    Args:
        daemon: the running daemon's Link; it gets the pool's files at once. None: none runs.
        owner: user id that the files are to belong to; None: this process's user.
        dry_run: changes nothing.
        say: is told each step as it begins.

    Raises CtlError: another pool has the name (differences are named), no room; RefusedError,
    DeniedError, BusyError; PartlyError where a failure could not be undone. After any other
    error all is as before.
    """
    uid = os.geteuid() if owner is None else owner
    seen = records.find(spec.name)
    if seen is None:
        check_new_name(spec.name)
    elif seen.cxl is not None:
        raise CtlError(
            f"there is a pool '{spec.name}' already, of CXL devices",
            object=spec.name,
            hint=f"another name, or sacctl pool destroy {spec.name} first",
        )
    take = TakeRecords(records, spec.name, seen)
    with (
        records_taken(take, say, dry_run=dry_run),
        Places(uid) as places,
        Places(uid) as old,
    ):
        if seen is not None and seen.state in ("ready", "extending"):
            there = is_there(seen)
            _same(spec, present(seen) if there else seen)
            if there:
                return _hand_over(seen, records, take, places, daemon, dry_run, say)
        clean = [] if seen is None else removal(old, seen)
        record = _record(spec, uid, seen)
        clean += remains(old, record, seen)
        limits.check(spec.name, needs(spec, record))
        steps, hand = _plan(spec, record, records, places, seen, daemon)
        if not dry_run:
            again = f"sacctl pool create {spec.name}, with the same options again"
            carry_out(clean, say, again=again)
            carry_out(steps, say, again=f"sacctl pool destroy {spec.name}")
        now = records.find(spec.name) if not dry_run else None
        return Created(
            record=now or record,
            created=True,
            served=hand is not None,
            steps=[step.what for step in (take, *clean, *steps)],
            pool=hand.pool if hand else {},
        )


def needs(spec: Spec, record: Record, sizes: Sequence[int] | None = None) -> list[limits.Need]:
    """What the data files of these sizes (None: the spec's, with its metadata) take."""
    data = tuple(spec.file_bytes() if sizes is None else sizes)
    folder = folder_of(record.data[0])
    found = [limits.Need(folder, data, sum(data), spec.huge)]
    if sizes is None:
        # Tables for the slabs, and a namespace or two; the rest fills as pages come.
        room = sum(data) // 4096 + (8 << 20)
        meta = limits.Need(folder_of(record.meta), (spec.meta_bytes(),), room)
        found.append(meta)
    return found


def _record(spec: Spec, uid: int, seen: Record | None) -> Record:
    """The record of a pool that is to be made, with the places of its files."""
    if spec.path:
        mount = mount_of(Path(spec.path).parent)
        if mount is not None and mount.type == "hugetlbfs":
            raise RefusedError(
                f"{spec.path} lies on a hugetlbfs, which cannot hold a pool's metadata",
                object=spec.path,
                hint="--huge 2M (or 1G) instead of --path: data goes there, metadata elsewhere",
            )
        folders, meta, data = [spec.path], Path(spec.path), Path(spec.path)
        if not Path(spec.path).parent.is_dir():
            raise CtlError(
                f"the folder {Path(spec.path).parent} is not there",
                object=spec.path,
                hint=f"mkdir -p {Path(spec.path).parent}",
            )
        if Path(spec.path).exists() and not (seen and spec.path in seen.folders):
            folders = []  # the user's: it stays when the pool goes
    else:
        meta = data = paths.emulated_dir(spec.name, uid)
        folders = [str(meta.parent), str(meta)]
        if spec.huge:
            data = paths.hugetlb_dir(Path(huge_mount(spec.huge)), spec.name, uid)
            folders += [str(data.parent), str(data)]
    return Record(
        name=spec.name,
        uuid="",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        meta=str(meta / "meta"),
        data=tuple(str(data / f"data.{i}") for i in range(len(spec.sizes))),
        sizes=spec.sizes,
        huge=spec.huge,
        uid=uid,
        state="creating",
        folders=tuple(folders),
        path=spec.path,
    )


def _plan(
    spec: Spec,
    record: Record,
    records: Records,
    places: Places,
    seen: Record | None,
    daemon: Daemon | None,
) -> tuple[list[Step], HandOver | None]:
    """The steps from nothing to a pool, in the order of docs/format.md: meta.new first, which
    becomes meta when all the rest is there."""
    new = new_name(record.meta)
    # A pool that has lost its files is made anew: its folders may be the user's.
    parents = (folder_of(path) for path in (record.meta, *record.data))
    folders = dict.fromkeys([*record.folders, *parents])
    form = FormatPool(places, record)

    def made() -> Record:
        return record.with_(uuid=form.opened.uuid if form.opened else "", state="ready")

    before = seen if seen and seen.state == "ready" else None
    steps: list[Step] = [
        WriteRecord(records, before, lambda: record, "creating"),
        *(MakeFolder(places, folder) for folder in folders),
        MakeFile(places, new, spec.meta_bytes()),
        *(
            MakeFile(places, path, size)
            for path, size in zip(record.data, spec.file_bytes(), strict=True)
        ),
        form,
        Rename(places, new, record.meta),
        CheckPool(places, record, form),
        WriteRecord(records, record, made, "ready"),
    ]
    hand = None
    if daemon is not None:
        hand = HandOver(daemon, places, made)
        steps += [*share(daemon, places, spec.name, (record.meta, *record.data)), hand]
    return steps, hand


def _same(spec: Spec, seen: Record) -> None:
    differences = spec.differences(seen)
    if differences:
        raise CtlError(
            f"there is a pool '{spec.name}' already, and it differs: {'; '.join(differences)}",
            object=spec.name,
            hint=f"another name, or sacctl pool destroy {spec.name} first",
        )


def _hand_over(
    seen: Record,
    records: Records,
    take: TakeRecords,
    places: Places,
    daemon: Daemon | None,
    dry_run: bool,
    say: Say,
) -> Created:
    """The same pool is there: settles its record and gives it to the daemon, if one runs."""
    places.uid = seen.uid
    steps: list[Step] = []
    record = seen
    if seen.state == "extending":
        record, more = settle(seen, records, places)
        steps += more
    hand = None
    if daemon is not None:
        hand = HandOver(daemon, places, lambda: record)
        steps += [
            OpenFiles(places, record, lock=False),
            *share(daemon, places, record.name, (record.meta, *record.data)),
            hand,
        ]
    if not dry_run:
        carry_out(steps, say, again=f"sacctl pool show {seen.name}")
    return Created(
        record=record,
        created=False,
        served=hand is not None,
        steps=[step.what for step in (take, *steps)] if steps else [],
        pool=hand.pool if hand else {},
    )
