# SPDX-License-Identifier: Apache-2.0
"""Takes a pool of CXL devices apart: its memory is scrubbed, then its regions go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sacctl.cxl.made import Made
from sacctl.cxl.model import Topology
from sacctl.cxl.read import read
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, PartlyError
from sacctl.pool.attached import Unused
from sacctl.pool.boot import boot_id
from sacctl.pool.cxl_content import Ours
from sacctl.pool.cxl_files import (
    LockDevices,
    OpenDevices,
    OpenMeta,
    devices_of,
    has_meta_file,
)
from sacctl.pool.cxl_find import missing, rest
from sacctl.pool.cxl_hand import WithdrawLost
from sacctl.pool.cxl_job import Job, need_root
from sacctl.pool.cxl_leftover import last_steps, leftover
from sacctl.pool.cxl_present import located
from sacctl.pool.cxl_ramfree import released_memory
from sacctl.pool.cxl_record import CxlPart
from sacctl.pool.cxl_regions import clearing
from sacctl.pool.cxl_removal import Removal
from sacctl.pool.cxl_scrubbing import return_to_scrub
from sacctl.pool.cxl_survivors import lost_notes, scrubbed, survivors, unscrubbed
from sacctl.pool.cxl_taken import names_of_others, refuse_children, refuse_order, refuse_shared
from sacctl.pool.cxl_wipe import wiped
from sacctl.pool.later import planned
from sacctl.pool.places import Places
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import (
    Daemon,
    TakeRecords,
    Withdraw,
    records_taken,
)
from sacctl.pool.steps import Say, Step, carry_out

__all__ = ["CxlDestroyed", "destroy"]


@dataclass(slots=True)
class CxlDestroyed:
    """record: of the pool that has gone. steps: what was done, or would be. left: what could
    not be done, because its devices are not there."""

    record: Record
    steps: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def destroy(
    name: str,
    sysfs: Sysfs,
    records: Records,
    *,
    daemon: Daemon | None = None,
    dry_run: bool = False,
    force_offline: bool = False,
    allow_leak: bool = False,
    say: Say = lambda _: None,
) -> CxlDestroyed:
    """Removes the pool, and its regions where sacctl made them; asks nobody.

    Args:
        force_offline: memory blocks that somebody has put online are taken offline.
        allow_leak: memory that cannot go offline is lost until the next reboot; devices that
            are missing keep the pool's pages, and so does what is left of their regions.

    Raises NotFoundError; RefusedError while clients are attached, somebody has the memory
    mapped, blocks are online, devices are missing, or isolated namespaces have devices in its
    room; BusyError:
    nothing was changed. PartlyError once the memory was scrubbed and the rest failed; the
    same call finishes it, also after a kill.
    """
    if not dry_run:
        need_root(sysfs, f"sacctl pool destroy {name}")
    record = records.get(name)
    part = record.cxl
    assert part is not None, "emulated pools have a destroy of their own"
    change = _Change(sysfs, records, record, daemon, say, dry_run, force_offline, allow_leak)
    take = TakeRecords(records, name, record)
    with records_taken(take, say, dry_run=dry_run), Places(record.uid) as places:
        change.done.steps.append(take.what)
        refuse_children(records, name)
        change.run(part, places)
    return change.done


class _Change:
    """One destruction, while the records are locked."""

    def __init__(
        self,
        sysfs: Sysfs,
        records: Records,
        record: Record,
        daemon: Daemon | None,
        say: Say,
        dry_run: bool,
        force_offline: bool,
        allow_leak: bool,
    ) -> None:
        self.sysfs, self.records, self.record = sysfs, records, record
        self.daemon, self.say, self.dry_run = daemon, say, dry_run
        self.force_offline, self.allow_leak = force_offline, allow_leak
        self.done = CxlDestroyed(record)
        self.again = f"sacctl pool destroy {record.name}"

    def run(self, part: CxlPart, places: Places) -> None:
        boot = boot_id(self.sysfs)
        topology = read(self.sysfs)
        refuse_shared(self.record, topology, self.sysfs, self.records)
        there = located(topology, part, boot) if not part.mount else None
        state = self.record.state
        half = state == "creating" or (bool(part.mount) and state == "assembling")
        cut = state == "destroying" and part.boot == boot and there is None and not part.mount
        # A kill may have come before all of a pool was scrubbed that lost devices.
        alive = survivors(topology, part, boot) if cut else {}
        if not half and there is None:
            self._allowed(topology, part, cut)
        half = half or (cut and not alive)
        if not half and there is None:
            refuse_order(self.record, topology, self.sysfs, self.records, destroy=True)
        if not half and not cut and there is None and not part.mount:
            self._return_to_scrub(topology, part)
            self.record = self.records.get(self.record.name)
            assert self.record.cxl is not None
            part = self.record.cxl
            topology = read(self.sysfs)
            there = located(topology, part, boot)
            alive = survivors(topology, part, boot) if there is None else {}
            half = there is None and self.record.state == "assembling" and not alive
        if half:
            self._phase(self._rest(topology, places, part))
        elif cut:
            hold, wipe = scrubbed(self.sysfs, self.record, self.records, alive, places)
            self._phase([*hold, *wipe])
            topology = read(self.sysfs)
            self._phase(self._rest(topology, places, part), scrubbed=True)
        elif part.mount:
            self._memory(places, part)
        else:
            self._devices(places, topology, part, there, alive)
        self._files(places)

    def _allowed(self, topology: Topology, part: CxlPart, cut: bool) -> None:
        """Raises RefusedError where devices are missing that hold pages, unless it may be so.

        cut: memory is scrubbed before its region goes: only what is left of regions counts.
        """
        if cut and not self._removal(None).broken(topology, part):
            return
        lost = lost_notes(topology, part)
        if lost and not self.allow_leak:
            raise unscrubbed(self.record.name, lost)
        self.done.left += lost

    def _phase(self, steps: list[Step], scrubbed: bool = False) -> None:
        self.done.steps += planned(steps)
        if self.dry_run:
            return
        try:
            carry_out(steps, self.say, again=self.again)
        except PartlyError:
            raise
        except CtlError as error:
            if not scrubbed:
                raise
            wiped_too = "" if self.done.left else " and its memory scrubbed"
            raise PartlyError(
                f"pool '{self.record.name}' is gone{wiped_too}; the rest failed: "
                f"{error.message}",
                object=error.object,
                errno=error.errno,
                hint=f"{error.hint}; then {self.again}" if error.hint else self.again,
            ) from error

    # ---------------------------------------------------------------------- the ways

    def _return_to_scrub(self, topology: Topology, part: CxlPart) -> None:
        """Devices that are not as recorded (the machine was restarted) are made again first:
        the memory still holds the pool's pages. Raises RefusedError where that cannot be: the
        record stays then."""
        name = self.record.name
        self._removal(None).steps(topology, part)  # what forbids it, while nothing has changed
        lost = any(missing(topology, region) for region in part.regions)
        if self.daemon is not None and not self.dry_run:
            # It holds what is left of a pool that lost devices.
            self._phase([WithdrawLost(self.daemon, Places(self.record.uid), self.record)])
        if lost and all(missing(topology, region) for region in part.regions):
            return
        self.done.steps.append(
            f"make the whole regions of pool '{name}' again, to scrub their memory"
            if lost
            else f"assemble pool '{name}', to scrub its memory"
        )
        if not self.dry_run:
            self.done.left += return_to_scrub(
                self.record, self.sysfs, self.records, leak=self.allow_leak, say=self.say
            )

    def _rest(self, topology: Topology, places: Places, part: CxlPart) -> list[Step]:
        others, leak = self._others(), self.allow_leak
        return leftover(self.sysfs, topology, self.record, part, places, others, leak)

    def _devices(
        self,
        places: Places,
        topology: Topology,
        part: CxlPart,
        there: list[Made] | None,
        alive: Mapping[int, Made],
    ) -> None:
        record, sysfs = self.record, self.sysfs
        job = Job(sysfs, record, there or [Made() for _ in part.regions])
        now = job.now() if there else record
        steps: list[Step] = []
        if there:
            steps += [OpenDevices(places, lambda: now, own=False, lock=False)]
            if has_meta_file(now):
                steps += [OpenMeta(places, now)]
        if self.daemon is not None:
            kind = Withdraw if there else WithdrawLost
            steps.append(kind(self.daemon, places, now))
        removal = self._removal(there)
        # Planned before anything is done: what forbids it is said while nothing has changed.
        rest_of = removal.steps(topology, part)
        if there:
            steps += [
                LockDevices(places, lambda: now),
                Ours(places, lambda: now, self.records),
                Unused(record.name, lambda: devices_of(now)),
            ]
        else:
            broken = removal.broken(topology, part)
            self.done.left += [f"{name} had lost its devices: not scrubbed" for name in broken]
        hold, wipe = scrubbed(sysfs, record, self.records, alive, places) if alive else ([], [])
        steps += [*hold, removal.note(topology, record, now), *wipe]
        if there:
            steps += wiped(places, now)
        if not there and not alive:  # nothing is scrubbed that could not be undone
            self._phase([*steps, *rest_of])
            return
        self._phase(steps)
        if not self.dry_run:
            rest_of = removal.steps(read(sysfs), part)
        self._phase(rest_of, scrubbed=True)

    def _memory(self, places: Places, part: CxlPart) -> None:
        """A pool in system RAM."""
        topology = read(self.sysfs)
        removal = self._removal(None)
        phases = released_memory(
            self.sysfs,
            topology,
            self.record,
            places,
            self.daemon,
            removal.note(topology, self.record, self.record),
            leak=self.allow_leak,
        )
        self._phase(phases.unmount)
        if not self.dry_run:
            topology = read(self.sysfs)
        self._phase(phases.convert(topology), scrubbed=True)
        if self.dry_run:  # as if the blocks were offline by now
            removal = replace(removal, force_offline=True)
        else:
            topology = read(self.sysfs)
        last = removal.steps(topology, part)
        if self.record.state == "destroying" and part.boot == boot_id(self.sysfs):
            left = rest(topology, part, self._others())
            last = clearing(self.sysfs, topology, left, part, allow_leak=self.allow_leak)
        self._phase(last, scrubbed=True)

    def _removal(self, there: list[Made] | None) -> Removal:
        others = self._others()
        return Removal(
            self.sysfs, self.records, there, others, self.force_offline, self.allow_leak
        )

    def _others(self) -> frozenset[str]:
        return names_of_others(self.records, self.record.name, boot_id(self.sysfs))

    def _files(self, places: Places) -> None:
        steps = last_steps(self.sysfs, self.records, self.record, places, self.daemon)
        self._phase(steps, scrubbed=True)
