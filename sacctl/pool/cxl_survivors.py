# SPDX-License-Identifier: Apache-2.0
"""Of a pool that lost devices: the regions that are whole, to be scrubbed before they go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sacctl.cxl.made import Made
from sacctl.cxl.model import Topology
from sacctl.cxl.read import read
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import RefusedError
from sacctl.pool.attached import Unused
from sacctl.pool.boot import boot_id
from sacctl.pool.cxl_content import Ours
from sacctl.pool.cxl_files import LockDevices, OpenDevices, devices_of
from sacctl.pool.cxl_find import missing
from sacctl.pool.cxl_job import Job, before
from sacctl.pool.cxl_present import clear_whole, located
from sacctl.pool.cxl_record import CxlPart
from sacctl.pool.cxl_regions import Named, NoteChange, making
from sacctl.pool.cxl_taken import names_of_others, refuse_order
from sacctl.pool.cxl_wanted import renamed, what_is_wanted
from sacctl.pool.cxl_wipe import CloseDevices
from sacctl.pool.places import Places
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import TakeRecords
from sacctl.pool.scrub import ScrubExtent
from sacctl.pool.steps import Say, Step, carry_out

__all__ = ["lost_notes", "make_survivors", "scrubbed", "survivors", "unscrubbed"]


def lost_notes(topology: Topology, part: CxlPart) -> list[str]:
    """What cannot be scrubbed because devices are missing: a sentence each."""
    notes: list[str] = []
    for region in part.regions:
        gone = missing(topology, region)
        notes += [
            f"{device} is not there: it keeps what it holds of the pool" for device in gone
        ]
        stay = [device for device in region.devices if device not in gone]
        if gone and stay:
            notes.append(f"{', '.join(stay)}: not scrubbed either, for the region is not whole")
    return notes


def unscrubbed(name: str, lost: Sequence[str]) -> RefusedError:
    """The error for a pool that is to go while devices with pages of it are missing."""
    return RefusedError(
        f"pool '{name}' cannot be scrubbed whole: {'; '.join(lost)}",
        object=name,
        hint=f"bring the devices back, then sacctl pool destroy {name}; or, with --allow-leak, "
        "the pool goes, and whoever gets these devices next can read what they hold",
    )


def survivors(topology: Topology, part: CxlPart, boot: str) -> dict[int, Made]:
    """The regions that are there as recorded, by their number in the record."""
    found = {}
    for number, region in enumerate(part.regions):
        there = located(topology, part.with_(regions=(region,)), boot)
        if there is not None:
            found[number] = there[0]
    return found


def make_survivors(record: Record, sysfs: Sysfs, records: Records, say: Say) -> None:
    """Makes the regions again that have all of their devices, as an assembly does, and notes
    their names in the record (state: assembling). Those that are there stay.

    Raises RefusedError, UsageError where they cannot be made as they were: nothing is changed
    then; CtlError, BusyError, PartlyError.
    """
    take = TakeRecords(records, record.name, record)
    again = f"sacctl pool destroy {record.name}"
    try:
        carry_out([take], say)
        carry_out(clear_whole(sysfs, read(sysfs), record, records), say, again=again)
        carry_out(_made(record, sysfs, records), say, again=again)
    finally:
        take.release()


def _made(record: Record, sysfs: Sysfs, records: Records) -> list[Step]:
    part, topology, boot = record.cxl, read(sysfs), boot_id(sysfs)
    assert part is not None
    refuse_order(record, topology, sysfs, records, destroy=False)
    numbers = [n for n, region in enumerate(part.regions) if not missing(topology, region)]
    others = names_of_others(records, record.name, boot)
    here = part.with_(before=before(topology), boot=boot)
    alive = record.with_(
        data=tuple(record.data[n] for n in numbers),
        sizes=tuple(record.sizes[n] for n in numbers),
        cxl=here.with_(regions=tuple(part.regions[n] for n in numbers)),
    )
    wanted = what_is_wanted(alive, topology, part.boot == boot, others)
    alive = renamed(alive, wanted)
    assert alive.cxl is not None
    new = dict(zip(numbers, alive.cxl.regions, strict=True))
    made = dict(zip(numbers, [Made(want.region) for want in wanted], strict=True))
    # Names of another boot say nothing in this one, and may be somebody else's.
    gone = {} if part.boot == boot else {"region": "", "dax": ()}
    regions = [new.get(n) or region.with_(**gone) for n, region in enumerate(part.regions)]
    whole = here.with_(regions=tuple(regions), decoders=alive.cxl.decoders)
    all_of_it = Job(
        sysfs, record.with_(cxl=whole), [made.get(n) or Made() for n in range(len(regions))]
    )
    job = Job(sysfs, alive, list(made.values()), noted=lambda: all_of_it.noted())
    note = NoteChange(all_of_it, records, record, "assembling")
    return [note, *making(job, wanted), Named(all_of_it)]


def scrubbed(
    sysfs: Sysfs,
    record: Record,
    records: Records,
    found: Mapping[int, Made],
    places: Places,
) -> tuple[list[Step], list[Step]]:
    """Steps that take these regions' dax devices for us alone, and see that no other pool is
    on them; and those that zero them."""
    part = record.cxl
    assert part is not None
    regions = tuple(part.regions[number] for number in found)
    job = Job(sysfs, record.with_(cxl=part.with_(regions=regions)), list(found.values()))
    held = job.now()
    sizes = {
        job.path(name): size
        for made, region in zip(found.values(), regions, strict=True)
        for name, size in zip(made.dax, region.parts, strict=True)
    }
    take: list[Step] = [
        OpenDevices(places, lambda: held, own=False, lock=False),
        LockDevices(places, lambda: held),
        Ours(places, lambda: held, records),
        Unused(record.name, lambda: devices_of(held)),
    ]
    wipe: list[Step] = [
        ScrubExtent(_fd(places, path), path, size, used=_all(size))
        for path, size in sizes.items()
    ]
    return take, [*wipe, CloseDevices(places)]


def _fd(places: Places, path: str) -> Callable[[], int]:
    return lambda: places.files[path]


def _all(size: int) -> Callable[[], int]:
    return lambda: size
