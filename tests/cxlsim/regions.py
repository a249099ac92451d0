# SPDX-License-Identifier: Apache-2.0
"""What the kernel does when a region's files are written, in the order it looks at things."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from cxlsim.answers import Oops, Refused, number
from cxlsim.parts import GRAIN, Decoder, Region, Shown, State, Window

if TYPE_CHECKING:
    from cxlsim.kernel import Kernel

__all__ = [
    "attach",
    "bind",
    "commit",
    "create",
    "delete",
    "detach",
    "set_granularity",
    "set_size",
    "set_target",
    "set_ways",
    "unbind",
    "uncommit",
]

_WAYS = (1, 2, 3, 4, 6, 8, 12, 16)


def create(kernel: Kernel, window: Window, value: str) -> Region:
    found = re.match(r"region(\d+)", value)
    if not found:
        raise Refused(errno.EINVAL)
    fresh = kernel.free_region_id()
    if int(found[1]) != window.next_id:
        raise Refused(errno.EBUSY, f"{window.next_id} is next")
    region = Region(window.next_id, window)
    window.next_id = fresh
    window.regions.append(region)
    return region


def delete(kernel: Kernel, window: Window, value: str) -> None:
    name = value.removesuffix("\n")
    region = next((r for r in window.regions if r.name == name), None)
    if region is None:
        raise Refused(errno.ENODEV)
    unbind(kernel, region)
    for position in range(region.ways):
        detach(kernel, region, position)
    window.regions.remove(region)


def set_granularity(region: Region, value: str) -> None:
    wanted = number(value, most=1 << 31)
    if wanted & (wanted - 1) or not 256 <= wanted <= 16384:
        raise Refused(errno.EINVAL, "not a power of two from 256 to 16384")
    if region.window.ways > 1 and wanted != region.window.granularity:
        raise Refused(errno.EINVAL, "not that of the window")
    if region.state >= State.INTERLEAVE:
        raise Refused(errno.EBUSY)
    region.granularity = wanted


def set_ways(region: Region, value: str) -> None:
    wanted = number(value, most=1 << 32)
    root = region.window.ways
    times = wanted // root
    if wanted not in _WAYS or wanted % root or times & (times - 1) or not times:
        raise Refused(errno.EINVAL, "not ways the window allows")
    if region.state >= State.INTERLEAVE:
        raise Refused(errno.EBUSY)
    region.ways = wanted
    region.targets = (region.targets + [None] * wanted)[:wanted]


def set_size(region: Region, value: str) -> None:
    wanted = number(value)
    if not wanted:
        if region.start >= 0 and region.state >= State.ACTIVE:
            raise Refused(errno.EBUSY)
        if region.start >= 0:
            region.start, region.bytes, region.state = -1, 0, State.IDLE
        return
    if region.start >= 0 and region.bytes == wanted:
        return
    if region.start >= 0 or region.state >= State.INTERLEAVE:
        raise Refused(errno.EBUSY)
    if not region.ways or not region.granularity:
        raise Refused(errno.ENXIO, "ways or granularity missing")
    if wanted % (GRAIN * region.ways):
        raise Refused(errno.EINVAL, "not a multiple of 256 MiB times ways")
    region.start = _hole(region.window, wanted)
    region.bytes, region.state = wanted, State.INTERLEAVE


def _hole(window: Window, size: int) -> int:
    """The first free range of the window."""
    at = window.start
    for region in sorted(window.regions, key=lambda r: r.start):
        if region.start < 0:
            continue
        if region.start - at >= size:
            return at
        at = region.start + region.bytes
    if window.start + window.bytes - at < size:
        raise Refused(errno.ERANGE, "no room in the window")
    return at


def set_target(kernel: Kernel, region: Region, position: int, value: str) -> None:
    name = value.removesuffix("\n")
    if not name:
        detach(kernel, region, position)
        return
    decoder = kernel.decoder(name)
    if decoder is None:
        known = kernel.on_cxl_bus(name)
        raise Refused(errno.EINVAL if known else errno.ENODEV)
    attach(kernel, region, position, decoder)


def attach(kernel: Kernel, region: Region, position: int, decoder: Decoder) -> None:
    """Raises Refused as the kernel does; Oops where it would have crashed."""
    memdev, window = decoder.memdev, region.window
    if decoder.mode == "none":
        raise Refused(kernel.no_part, "no mode")
    if region.state > State.INTERLEAVE:
        raise Refused(errno.EBUSY, "the region is complete")
    if region.state < State.INTERLEAVE:
        raise Refused(errno.ENXIO, "the region has no size")
    if len(region.members) >= region.ways:
        raise Refused(errno.EINVAL, "as many targets as ways")
    if memdev.bridge not in window.bridges:
        raise Refused(errno.ENXIO, "not below this window")
    if not decoder.dpa_bytes:
        raise Refused(errno.ENXIO, "no DPA")
    if decoder.dpa_bytes * region.ways != region.bytes:
        raise Refused(errno.EINVAL, "its DPA times ways is not the region's size")
    if region.targets[position] is decoder:
        region.damaged = True
        raise Refused(errno.ENXIO, "written twice")
    if region.targets[position] is not None:
        raise Refused(errno.EBUSY, "the position is taken")
    if any(t.memdev is memdev for t in region.members):
        raise Refused(errno.EBUSY, "the device has a position")
    if window.bridges[position % window.ways] is not memdev.bridge:
        raise Refused(errno.ENXIO, "not the bridge of this position")
    if decoder.region is not None:
        raise Refused(errno.EBUSY, "the decoder has a region")
    _look_at_order(kernel, region, decoder)
    if region.damaged and region.targets.count(None) == 1:
        raise Oops(f"{region.name}: a target was written twice, then {decoder.name}")
    region.targets[position] = decoder
    decoder.region, decoder.position = region, position
    kernel.routes.take(region, memdev)
    decoder.shown = Shown(
        region.ways, region.granularity, start=region.start, size=region.bytes
    )
    if None not in region.targets:
        kernel.routes.look(region)  # the target stays where this refuses
        kernel.routes.set_up(region)
        region.state = State.ACTIVE


def _look_at_order(kernel: Kernel, region: Region, decoder: Decoder) -> None:
    """Decoders of a port are in the order of addresses: a later one lies higher."""
    for taken in decoder.memdev.decoders:
        if taken.region is not None and taken.region.start > region.start:
            raise Refused(errno.EBUSY, "HPA order violation")
    kernel.routes.look_at_order(region, decoder.memdev)


def detach(kernel: Kernel, region: Region, position: int) -> None:
    decoder = region.targets[position]
    if decoder is None:
        return
    if region.state > State.ACTIVE:
        _reset(kernel, region)
    complete = region.state == State.ACTIVE
    region.targets[position] = None
    decoder.region, decoder.position = None, -1
    decoder.shown.start = decoder.shown.size = 0
    kernel.routes.give(region, decoder.memdev)
    if complete:
        region.state = State.INTERLEAVE
        kernel.routes.take_down(region)
    unbind(kernel, region)


def commit(kernel: Kernel, region: Region, value: str) -> None:
    first = value[:1].lower()
    if first in ("y", "t", "1") or value[:2].lower() == "on":
        wanted = True
    elif first in ("n", "f", "0") or value[:2].lower() == "of":
        wanted = False
    else:
        raise Refused(errno.EINVAL)
    if not wanted:
        uncommit(kernel, region)
        return
    if region.state >= State.COMMITTED:
        return
    if region.state < State.ACTIVE:
        raise Refused(errno.ENXIO, "a target is missing")
    if not kernel.invalidates:
        kernel.say(f"cxl_region {region.name}: Failed to synchronize CPU cache state")
        raise Refused(errno.ENXIO)
    for decoder in region.members:
        if any(not d.committed for d in decoder.memdev.decoders[: decoder.number]):
            raise Refused(errno.EBUSY, "out of order commit")
    for decoder in region.members:
        decoder.committed = True
    kernel.routes.commit(region, True)
    region.state = State.COMMITTED


def uncommit(kernel: Kernel, region: Region) -> None:
    if region.state < State.COMMITTED:
        return
    unbind(kernel, region)
    _reset(kernel, region)
    region.state = State.ACTIVE


def _reset(kernel: Kernel, region: Region) -> None:
    for decoder in region.members:
        decoder.committed = False
    kernel.routes.commit(region, False)
    region.state = State.ACTIVE


def bind(kernel: Kernel, region: Region) -> None:
    """The driver cxl_region takes it: a dax region, unless it is System RAM already."""
    if region.bound:
        raise Refused(errno.EBUSY)
    if region.state < State.COMMITTED:
        raise Refused(errno.ENXIO, "not committed")
    region.bound = True
    if not kernel.memory.is_ram(region.start, region.bytes):
        kernel.dax.add_region(region)


def unbind(kernel: Kernel, region: Region) -> None:
    if not region.bound:
        return
    region.bound = False
    if region.dax is not None:
        kernel.dax.remove_region(region.dax)
        region.dax = None
