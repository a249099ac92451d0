# SPDX-License-Identifier: Apache-2.0
"""What pool is on the memory that a record's devices have, if any."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from sacctl.errors import CtlError, RefusedError
from sacctl.pool import superblock
from sacctl.pool.cxl_files import Now, devices_of
from sacctl.pool.cxl_swapped import Swapped, looked_at
from sacctl.pool.places import Places
from sacctl.pool.record import Record, Records
from sacctl.pool.scrub import zero
from sacctl.pool.spec import SLAB
from sacctl.pool.steps import Step

__all__ = ["Anew", "Content", "Distrust", "Ours", "refuse_foreign", "refuse_swapped"]

# Times a pool was opened when its record gets its uuid: written, and checked twice.
FRESH = 3


class Content(Step):
    """Looks at the superblocks on the open devices. empty says afterwards that none holds
    one, so that there is nothing to lose. Changes nothing.

    torn: superblocks that are not valid count as none, for the memory is to be scrubbed.
    anew: what is not this pool counts as none, for it is given up. forced: it was.
    """

    def __init__(
        self,
        places: Places,
        record: Now,
        records: Records,
        *,
        torn: bool = False,
        anew: bool = False,
    ) -> None:
        self._places, self._record, self._records = places, record, records
        self._torn, self._anew = torn, anew
        self.empty = self.forced = False

    @property
    def what(self) -> str:
        return "look which pool is on the devices"

    def apply(self) -> None:
        record, files = self._record(), self._places.files
        paths = [path for path in (record.meta, *record.data) if path in files]
        found = {path: superblock.identify(files[path]) for path in paths}
        try:
            refuse_foreign(record.name, record.uuid, found, _halfway(record))
            if _halfway(record):  # a new pool was being written, and nobody has used it
                self.empty = True
                return
            refuse_swapped(record, self._records, looked_at(record, files), own=not self._torn)
            meta = found.get(record.meta)
            if meta is not None and all(found.get(path) for path in record.data):
                return  # the core checks the rest
            lost = [path for path in devices_of(record) if found.get(path) is None]
            torn = [path for path in lost if superblock.marked(files[path])]
            if torn and not self._torn:
                raise RefusedError(
                    f"pool '{record.name}' is damaged: {', '.join(torn)} holds a superblock "
                    "that is not valid",
                    object=record.name,
                    hint="if a device was replaced or swapped, put the old one back; if nobody "
                    f"needs what it holds: {_give_up(record)}",
                )
        except RefusedError:
            if not self._anew:
                raise
            self.forced = True
        self.empty = True


class Distrust(Step):
    """Has the pool opened as after a reboot, for its memory was away: a device may have lost
    its power, and with it a part of each stripe. Behind Content."""

    def __init__(self, places: Places, record: Now) -> None:
        self._places, self._record = places, record

    @property
    def what(self) -> str:
        return "have pages dropped that no checksum vouches for: the memory was away"

    def apply(self) -> None:
        record, files = self._record(), self._places.files
        for path in (record.meta, *record.data):
            if path in files:
                superblock.forget_boot(files[path])


class Ours(Step):
    """Fails where another pool is on the open devices, or a part of one, whatever the record
    says. Memory that holds none, or cannot be read, is ours."""

    def __init__(self, places: Places, record: Now, records: Records) -> None:
        self._places, self._record, self._records = places, record, records

    @property
    def what(self) -> str:
        return "look that no other pool is on the devices"

    def apply(self) -> None:
        record, found = self._record(), {}
        for path in (record.meta, *record.data):
            if path in self._places.files:
                with suppress(OSError):
                    found[path] = superblock.identify(self._places.files[path])
        if record.uuid or _halfway(record):
            refuse_foreign(record.name, record.uuid, found, _halfway(record))
        if not record.uuid:
            return  # it cannot be told what is its own
        with suppress(OSError):
            swapped = looked_at(record, self._places.files)
            refuse_swapped(record, self._records, swapped, own=False)


def _halfway(record: Record) -> bool:
    """Whether a new pool may have been written that the record does not know yet."""
    return not record.uuid and record.state in ("assembling", "destroying")


class Anew(Step):
    """Says in the record that a new pool is being written, before it is: a kill must not leave
    one that no record knows. The old heads go first, so that what is found then is new.
    Behind Content."""

    def __init__(self, places: Places, record: Now, records: Records) -> None:
        self._places, self._record, self._records = places, record, records
        self._before: Record | None = None

    @property
    def what(self) -> str:
        name = self._record().name
        return f"note that a new pool is written ({self._records.path(name)}: no uuid)"

    def apply(self) -> None:
        record, files = self._record(), self._places.files
        for path in (record.meta, *record.data):
            if path in files:
                zero(files[path], path, SLAB)
        self._before = self._records.get(record.name)
        self._records.write(record.with_(uuid="", state="assembling"))

    def undo(self) -> None:
        if self._before is not None:
            self._records.write(self._before)
            self._before = None


def _give_up(record: Record) -> str:
    return f"sacctl pool assemble {record.name} --format, which makes a new, empty pool"


def refuse_swapped(
    record: Record, records: Records, found: Sequence[Swapped], *, own: bool
) -> None:
    """Raises RefusedError where pieces of superblocks are out of their places: what the
    devices hold may be whole when they are back in theirs. own: also where all are of this
    pool."""
    wrong = [piece for piece in found if own or piece.uuid != record.uuid]
    if not wrong:
        return
    what = wrong[0].what.format(pool=_pool(records, wrong[0]))
    raise RefusedError(
        f"devices of pool '{record.name}', or what they hold, were swapped: {what}, as it "
        "seems; nothing was written",
        object=wrong[0].device,
        hint="put the devices, or what they hold, back in their places, then again; if nobody "
        f"needs what they hold: {_give_up(record)}",
    )


def _pool(records: Records, piece: Swapped) -> str:
    """Whose it is, by name where a record has it."""
    if not piece.uuid:
        return "the pool"
    for name in records.names():
        with suppress(CtlError):
            record = records.find(name)
            if record is not None and record.uuid == piece.uuid:
                return f"pool '{name}'"
    return f"pool {piece.uuid}"


def refuse_foreign(
    name: str,
    uuid: str,
    found: dict[str, superblock.Superblock | None],
    fresh: bool = False,
) -> None:
    """Raises RefusedError where a device holds a pool of another uuid; with fresh, one that
    was used."""

    def foreign(block: superblock.Superblock) -> bool:
        return block.incarnation > FRESH if fresh else block.uuid != uuid

    other = {path: block.uuid for path, block in found.items() if block and foreign(block)}
    if other:
        path, theirs = next(iter(other.items()))
        raise RefusedError(
            f"{path} holds pool {theirs}, and pool '{name}' is {uuid or 'yet to be made'}: it "
            "is left alone",
            object=path,
            hint="if devices were swapped, put them back in their places; if nobody needs that "
            "pool, adopt or assemble it under its own name and destroy it there",
        )
