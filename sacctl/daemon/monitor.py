# SPDX-License-Identifier: Apache-2.0
"""Hears what CXL devices tell the kernel and has the daemon take bad memory out of use.

Runs as root beside the daemon, which has no rights to traces and addresses. What could not be
told, because no daemon answers, is told when one is there again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacctl.cxl.alerts import members
from sacctl.cxl.condition import uses
from sacctl.cxl.events import Event, sentence
from sacctl.cxl.model import Topology
from sacctl.cxl.poison import META, Spot, locate, places
from sacctl.cxl.read import read
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.tracefs import Trace, read_poison
from sacctl.daemon.extents import pages_gone
from sacctl.daemon.link import Link
from sacctl.daemon.log import log
from sacctl.daemon.notify import Notifier
from sacctl.daemon.signals import Signals
from sacctl.errors import CtlError, NotFoundError

__all__ = ["NAME", "Monitor", "Told", "watch"]

NAME = "sac"  # of the instance of tracefs
PROBE = 10.0  # seconds between looks whether the daemon or a pool is another one
TURN = 1.0
MOST = 4096  # bad places that are remembered; a device with more is not to be used at all

Connect = Callable[[], Link]


@dataclass(frozen=True, slots=True)
class Told:
    """Memory that the daemon took out of use. pages: that left."""

    spot: Spot
    pages: int


@dataclass(frozen=True, slots=True)
class _Bad:
    """A bad place, and the region it was told for: another one makes the address stale."""

    event: Event
    region: tuple[str, int | None, tuple[str, ...]]


class Monitor:
    """What is known of bad memory, and who was told. For one thread.

    connect: makes a connection to the daemon; raises CtlError where there is none.

    Attributes:
        events: how many came. notes: what could not be done at the last look, as sentences.
    """

    def __init__(self, sysfs: Sysfs, trace: Trace, connect: Connect) -> None:
        self._sysfs = sysfs
        self._trace = trace
        self._connect = connect
        self._bad: dict[tuple[str, int | None, int | None], _Bad] = {}
        self._told: set[tuple[str, int, Spot]] = set()
        self._unclear: set[tuple[str, int | None]] = set()
        self._pools: set[tuple[str, str, int]] = set()
        self._lost = 0
        self.events = 0
        self.notes: list[str] = []

    @property
    def bad(self) -> list[Event]:
        """The events whose memory is bad, in the order of their addresses."""
        found = [known.event for known in self._bad.values()]
        return sorted(found, key=lambda e: (e.memdev, e.dpa or 0, e.hpa or 0))

    def hear(self) -> bool:
        """Takes and logs the events that have come; whether the daemon is to be told.

        Raises CtlError where the trace cannot be read any more.
        """
        events = self._trace.read()
        if events:
            self._note(events, read(self._sysfs))
        if self._trace.lost > self._lost:
            log.warning(f"{self._trace.lost - self._lost} events of devices were lost")
            self._lost = self._trace.lost
            self._pools.clear()  # the poison lists know what the events said
            return True
        return any(event.damaged for event in events)

    def _note(self, events: Sequence[Event], topology: Topology) -> None:
        for event in events:
            self.events += 1
            key = (event.pci, event.dpa, event.hpa)
            if not (event.damaged and key in self._bad):  # a list repeats what is known
                _say(event)
            if event.damaged and len(self._bad) < MOST:
                self._bad[key] = _Bad(event, _region(topology, event))

    def read_lists(self, pools: Sequence[Mapping[str, Any]]) -> None:
        """Reads the poison lists of these pools' devices."""
        topology = read(self._sysfs)
        names = [device.name for device in members(topology, uses(pools))]
        events, failed = read_poison(self._sysfs, self._trace, names)
        self._note(events, topology)
        for why in failed:
            if why not in self.notes:
                log.warning(why)
        self.notes = failed

    def tell(self, *, lists: bool = False) -> list[Told]:
        """Has the daemon take out of use what it does not know yet; what it did.

        lists: read the poison lists first; done in any case for pools that are new. Raises
        CtlError where no daemon answers.
        """
        with self._connect() as link:
            pools = link.call("pool.list")["pools"]
            now = {(p["name"], p["uuid"], p["incarnation"]) for p in pools}
            if lists or now - self._pools:
                self.read_lists(pools)
            self._pools = now
            return self._tell(link, pools) if self._bad else []

    def _tell(self, link: Link, pools: Sequence[Mapping[str, Any]]) -> list[Told]:
        topology = read(self._sysfs)
        known = places(self._sysfs, pools)
        runs = {p["name"]: (p["uuid"], p["incarnation"]) for p in pools}
        done: list[Told] = []
        for key, bad in list(self._bad.items()):
            if bad.region != _region(topology, bad.event):
                del self._bad[key]  # its region was taken apart: the address says nothing now
                continue
            found = locate(bad.event, topology, known)
            if found.why and found.pools and key[:2] not in self._unclear:
                self._unclear.add(key[:2])
                device, hit = bad.event.memdev, ", ".join(found.pools)
                log.error(f"{device}: bad memory in pool {hit} stays in use: {found.why}")
                self.notes.append(f"{device}: {found.why}")
            for spot in found.spots:
                mark = (*runs[spot.pool], spot)
                if mark not in self._told:
                    told = self._quarantine(link, spot)
                    if told is not None:
                        self._told.add(mark)
                        done.append(told)
        return done

    def _quarantine(self, link: Link, spot: Spot) -> Told | None:
        where = "the metadata" if spot.extent == META else f"extent {spot.extent}"
        try:
            answer = link.call(
                "pool.quarantine",
                pool=spot.pool,
                extent=spot.extent,
                offset=spot.offset,
                bytes=spot.bytes,
            )
        except NotFoundError as error:  # it went meanwhile, or is not served
            self.notes.append(error.sentence())
            return None
        log.warning(
            f"{where} of pool {spot.pool} is out of use around byte {spot.offset}: "
            f"{pages_gone(int(answer['pages']))}",
            pool=spot.pool,
        )
        return Told(spot, int(answer["pages"]))


def _region(topology: Topology, event: Event) -> tuple[str, int | None, tuple[str, ...]]:
    region = topology.region(event.region) if event.region else None
    return ("", None, ()) if region is None else (region.name, region.start, region.targets)


def _say(event: Event) -> None:
    {"info": log.info, "warning": log.warning}.get(event.severity, log.error)(sentence(event))


def watch(
    sysfs: Sysfs, connect: Connect, notifier: Notifier, signals: Signals, every: float
) -> None:
    """Runs until a signal comes. every: seconds between readings of the poison lists, which
    not every device announces. Raises CtlError where there is no trace to hear."""
    with Trace(sysfs, NAME) as trace:
        monitor = Monitor(sysfs, trace, connect)
        notifier.ready("hears the events of CXL devices")
        probed = listed = -PROBE
        there = True
        while True:
            trace.wait(TURN)
            caught = signals.wait(0)
            if caught is not None:
                log.info(f"{caught.name}: stopping")
                notifier.stopping()
                return
            now = time.monotonic()
            due = monitor.hear()
            if due or now - probed >= PROBE or probed < 0:
                probed = now
                lists = listed < 0 or now - listed >= every
                try:
                    monitor.tell(lists=lists)
                    listed = now if lists else listed
                    if not there:
                        log.info("the daemon answers again")
                    there = True
                except CtlError as error:
                    if there:
                        log.warning(f"the daemon will be told later: {error.sentence()}")
                    there = False
                bad, state = len(monitor.bad), "" if there else "; no daemon to tell"
                notifier.status(f"{monitor.events} events, {bad} bad places{state}")
            notifier.alive()
