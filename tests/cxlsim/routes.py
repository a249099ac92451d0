# SPDX-License-Identifier: Apache-2.0
"""Host bridges and switches on the way of a region: which of their decoders it takes."""

from __future__ import annotations

import errno
from itertools import pairwise

from cxlsim.answers import Refused
from cxlsim.parts import Memdev, Port, Region, Shown, SwitchDecoder

__all__ = ["Routes", "interleave"]


class Routes:
    """The ports of a machine. A port gives a region one decoder, whatever is below it."""

    def __init__(self, ports: list[Port]) -> None:
        self.ports = ports

    def take(self, region: Region, memdev: Memdev) -> None:
        """The ports above the device each give the region a decoder, if they have not."""
        for port in above(memdev):
            decoder = held(port, region) or free(port)
            way = way_down(port, memdev)
            if all(way_down(port, m) != way for m in decoder.below):
                decoder.ways += 1
            decoder.region = region
            decoder.below.append(memdev)

    def give(self, region: Region, memdev: Memdev) -> None:
        """Ports that lead to no other device of the region get their decoder back."""
        for port in above(memdev):
            decoder = held(port, region)
            if decoder is not None:
                decoder.below.remove(memdev)
                if not decoder.below:
                    decoder.region, decoder.committed, decoder.ways = None, False, 0

    def commit(self, region: Region, on: bool) -> None:
        for port in self.ports:
            decoder = held(port, region)
            if decoder is not None and not port.passes:
                decoder.committed = on

    def set_up(self, region: Region) -> None:
        """The region is complete: decoders show how they route it."""
        for port in self.ports:
            decoder = held(port, region)
            if decoder is not None:
                ways, granularity, ids = interleave(port, region)
                decoder.shown = Shown(ways, granularity, tuple(ids), region.start, region.bytes)

    def take_down(self, region: Region) -> None:
        """It is not any more. What has been given back already stays as it was."""
        for port in self.ports:
            decoder = held(port, region)
            if decoder is not None:
                decoder.shown.start = decoder.shown.size = 0

    def look_at_order(self, region: Region, memdev: Memdev) -> None:
        for port in above(memdev):
            if held(port, region) is not None:
                continue
            for decoder in port.decoders:
                if decoder.region is not None and decoder.region.start > region.start:
                    raise Refused(errno.EBUSY, "HPA order violation")
            free(port)

    def look(self, region: Region) -> None:
        """All targets are there: raises Refused where the ports cannot route them so."""
        for port in self.ports:
            below = [t for t in region.members if port in above(t.memdev)]
            if not below:
                continue
            positions: dict[str, list[int]] = {}
            for target in below:
                at = region.targets.index(target)
                positions.setdefault(way_down(port, target.memdev), []).append(at)
            decoder = held(port, region)
            counted = decoder.ways if decoder else len(positions)
            if counted & (counted - 1):
                raise Refused(errno.EINVAL, f"{port.name}: invalid target count {counted}")
            distance = region.ways // len(next(iter(positions.values())))
            for found in positions.values():
                steps = {b - a for a, b in pairwise(found)}
                if len(found) * distance != region.ways or steps - {distance}:
                    raise Refused(errno.ENXIO, f"unbalanced at {port.name}")


def above(memdev: Memdev) -> list[Port]:
    """From the device's own port up."""
    found: list[Port] = []
    port: Port | None = memdev.port
    while port is not None:
        found.append(port)
        port = port.parent
    return found


def way_down(port: Port, memdev: Memdev) -> str:
    """The downstream port taken at a port to get to the device."""
    return next(p for p in port.dports.values() if memdev.path.startswith(f"{p}/"))


def held(port: Port, region: Region) -> SwitchDecoder | None:
    return next((d for d in port.decoders if d.region is region), None)


def free(port: Port) -> SwitchDecoder:
    """The decoder behind the last committed one: the only one that is given out, so that a
    port's regions are committed one after the other. Raises Refused(EBUSY) without."""
    last = max((d.number for d in port.decoders if d.committed), default=-1)
    if all(d.committed for d in port.decoders[: last + 1]) and last + 1 < len(port.decoders):
        decoder = port.decoders[last + 1]
        if decoder.region is None:
            return decoder
    raise Refused(errno.EBUSY, f"no decoder is free at {port.name}")


def interleave(port: Port, region: Region) -> tuple[int, int, list[int]]:
    """ways, granularity and targets of the port's decoder for a complete region."""
    ids: list[int] = []
    for target in region.members:
        if port not in above(target.memdev):
            continue
        way = way_down(port, target.memdev)
        number = next(n for n, path in port.dports.items() if path == way)
        if number not in ids:
            ids.append(number)
    ways = max(1, len(ids))
    if port.parent is None:
        up_ways, up_granularity = region.window.ways, region.window.granularity
    else:
        up_ways, up_granularity, _ = interleave(port.parent, region)
    if port.parent is None and up_ways == 1:
        up_granularity = region.granularity
    return ways, up_granularity * up_ways, ids
