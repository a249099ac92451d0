# SPDX-License-Identifier: Apache-2.0
"""The kernel's rules for a region, checked before anything is written.

A refusal by the kernel is one errno; these say which rule it was, and what would be valid.
Rules that no attribute shows (which ways and granularities a device or a port can do) are
left to the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from sacctl.cxl import positions
from sacctl.cxl.model import EndpointDecoder, Memdev, Region, RootDecoder, Topology
from sacctl.cxl.room import first_fit, takes, used_decoders
from sacctl.cxl.sizes import UNIT, size_option, size_text
from sacctl.errors import RefusedError, UsageError

__all__ = [
    "GRANULARITIES",
    "WAYS",
    "above",
    "check",
    "check_device",
    "check_granularity",
    "check_once",
    "next_decoder",
    "ways_of",
]

WAYS = (1, 2, 3, 4, 6, 8, 12, 16)
GRANULARITIES = tuple(256 << n for n in range(7))  # 256 bytes to 16 KiB


def check(
    topology: Topology,
    root: RootDecoder,
    memdevs: Sequence[Memdev],
    granularity: int,
    size: int,
) -> None:
    """Whether the kernel will make the region: these devices, by position, in that window.

    size: bytes of the region. Raises UsageError with the rule and the valid alternatives;
    RefusedError where regions that are there now stand in its way.
    """
    if not memdevs:
        raise UsageError("a region needs at least one device")
    for memdev in memdevs:
        check_device(topology, memdev)
    check_once(memdevs)
    if not root.ram:
        raise UsageError(
            f"{root.name} is not for volatile memory",
            object=root.name,
            hint=_windows(topology, memdevs),
        )
    _check_reach(topology, root, memdevs)
    _check_ways(topology, root, memdevs)
    check_granularity(root, granularity)
    _check_order(root, memdevs)
    _check_size(root, memdevs, size)
    _check_ports(topology, memdevs)
    _check_addresses(topology, root, memdevs, size)


def check_device(topology: Topology, memdev: Memdev) -> None:
    """Whether a device can give memory to a new region. Raises UsageError."""
    name = memdev.name
    if not memdev.endpoint:
        why = memdev.problem or "its driver is missing or failed"
        raise UsageError(f"{name} has no endpoint: {why}", object=name, hint="dmesg | grep cxl")
    if memdev.problem:
        raise UsageError(f"{name} cannot be used: {memdev.problem}", object=name)
    if not memdev.ram_bytes:
        what = "only persistent memory" if memdev.pmem_bytes else "no memory"
        raise UsageError(f"{name} has {what}; a pool needs volatile memory", object=name)
    if memdev.committed > sum(bool(d.region) for d in memdev.decoders):
        raise UsageError(
            f"{name} decodes memory without a region: firmware, or the kernel before a kexec, "
            "set it up; it is left alone",
            object=name,
            hint=f"sacctl device show {name}",
        )
    if memdev.free_bytes < UNIT:
        holders = ", ".join(sorted({d.region for d in memdev.decoders if d.region}))
        if holders:
            hint = f"sacctl pool adopt {holders.split(', ')[0]}, or destroy what uses it"
        else:
            taken = next((d.name for d in memdev.decoders if d.dpa_bytes), "")
            hint = f"echo 0 > /sys/bus/cxl/devices/{taken}/dpa_size gives it back" * bool(taken)
        raise UsageError(
            f"{name} has {size_text(memdev.free_bytes)} free of {size_text(memdev.ram_bytes)}"
            f"; a region takes pieces of {size_text(UNIT)}"
            + (f" ({holders} has the rest)" if holders else ""),
            object=name,
            hint=hint,
        )
    if next_decoder(memdev) is None:
        locked = [d.name for d in memdev.decoders if d.locked and not d.dpa_bytes]
        why = f"{locked[0]} is locked by firmware" if locked else "all are in use"
        raise UsageError(
            f"{name} has no decoder to give: decoders are taken in increasing order, and {why}",
            object=name,
        )


def next_decoder(memdev: Memdev) -> EndpointDecoder | None:
    """The endpoint decoder that the kernel takes next: the one behind the last in use."""
    used = [i for i, d in enumerate(memdev.decoders) if d.dpa_bytes or d.region]
    index = max(used, default=-1) + 1
    if index >= len(memdev.decoders) or memdev.decoders[index].locked:
        return None
    return memdev.decoders[index]


def ways_of(root: RootDecoder) -> tuple[int, ...]:
    """How many devices a region in this window may have."""
    return tuple(
        ways for ways in WAYS if ways % root.ways == 0 and (ways // root.ways).bit_count() == 1
    )


def check_granularity(root: RootDecoder, granularity: int) -> None:
    """Raises UsageError."""
    if granularity not in GRANULARITIES:
        raise UsageError(
            f"granularity {granularity} is not allowed: powers of two from 256 to 16384",
            object=str(granularity),
            hint=f"one of {', '.join(map(str, GRANULARITIES))}",
        )
    if root.ways > 1 and granularity != root.granularity:
        raise UsageError(
            f"granularity {granularity} is not allowed: {root.name} interleaves over "
            f"{root.ways} host bridges at {root.granularity}, and a region in it does the same",
            object=root.name,
            hint=f"--granularity {root.granularity}, or leave it out",
        )


def check_once(memdevs: Sequence[Memdev]) -> None:
    """Whether no device is given twice. Raises UsageError."""
    names = [m.name for m in memdevs]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise UsageError(
            f"{', '.join(twice)} is given twice: a device has one position in a region",
            object=twice[0],
        )


def _check_reach(topology: Topology, root: RootDecoder, memdevs: Sequence[Memdev]) -> None:
    outside = [m for m in memdevs if m.host_bridge not in root.targets]
    if outside:
        below = ", ".join(sorted({m.host_bridge or "an unknown bridge" for m in outside}))
        raise UsageError(
            f"{root.name} does not reach {positions.names_of(outside)} (below {below}): it "
            f"leads to {', '.join(root.targets)}",
            object=positions.names_of(outside),
            hint=_windows(topology, memdevs),
        )


def _windows(topology: Topology, memdevs: Sequence[Memdev]) -> str:
    """Which windows reach the devices."""
    reach = [
        f"{r.name} (x{r.ways})"
        for r in topology.roots
        if r.ram and all(m.host_bridge in r.targets for m in memdevs)
    ]
    names = positions.names_of(memdevs)
    if reach:
        return f"{', '.join(reach)} can reach {names}"
    return f"no window for volatile memory reaches all of {names}: a pool of several regions"


def _check_ways(topology: Topology, root: RootDecoder, memdevs: Sequence[Memdev]) -> None:
    ways = len(memdevs)
    if ways in ways_of(root):
        return
    valid = ", ".join(map(str, ways_of(root)))
    over = f" interleaves over {root.ways} host bridges and" if root.ways > 1 else ""
    raise UsageError(
        f"{ways} device{'s' * (ways != 1)} cannot be interleaved in {root.name}: it{over} "
        f"takes regions of {valid} devices",
        object=root.name,
        hint=f"{valid} devices",
    )


def _check_order(root: RootDecoder, memdevs: Sequence[Memdev]) -> None:
    valid = positions.in_order(root, memdevs)
    why = positions.mistake(root, memdevs)
    if why:
        raise UsageError(
            f"{positions.names_of(memdevs)} is no valid order: {why}",
            object=root.name,
            hint=f"the order {positions.names_of(valid)}",
        )


def _check_size(root: RootDecoder, memdevs: Sequence[Memdev], size: int) -> None:
    ways = len(memdevs)
    step = UNIT * ways
    if size <= 0 or size % step:
        below = size // step * step
        near = [size_option(n) for n in (below, below + step) if n > 0]
        raise UsageError(
            f"{size_text(size)} cannot be the size of a region of {ways} devices: it must be a "
            f"multiple of {size_text(UNIT)} x {ways} = {size_text(step)}",
            hint=" or ".join(near),
        )
    each = size // ways
    short = [m for m in memdevs if m.free_bytes < each]
    if short:
        least = min(m.free_bytes for m in memdevs) // UNIT * UNIT
        raise UsageError(
            f"every device must give {size_text(each)}, and "
            + ", ".join(f"{m.name} has {size_text(m.free_bytes)} free" for m in short),
            object=short[0].name,
            hint=f"{size_option(least * ways)} or less" if least else "",
        )
    if size > root.free_bytes:
        most = root.free_bytes // step * step
        raise UsageError(
            f"{root.name} has {size_text(root.free_bytes)} of addresses free in one piece, and "
            f"{size_text(size)} are asked for",
            object=root.name,
            hint=f"{size_option(most)} or less" if most else "destroy a region that lies in it",
        )


def _check_ports(topology: Topology, memdevs: Sequence[Memdev]) -> None:
    """Each bridge and switch on the way needs a decoder of its own for each region."""
    for name in dict.fromkeys(p for m in memdevs for p in m.ports):
        port = next((p for p in topology.ports if p.name == name), None)
        used = used_decoders(topology, name)
        if port is not None and port.decoders and len(used) >= port.decoders:
            its = "its only one is" if port.decoders == 1 else f"its {port.decoders} are"
            raise RefusedError(
                f"{port.kind} {name} ({port.at}) has no decoder free: {its} used by "
                f"{', '.join(used)}",
                object=name,
                hint=f"destroy {used[0]}, or use devices that are not below {name}",
            )


def above(
    topology: Topology, root: RootDecoder, memdevs: Sequence[Memdev], size: int
) -> tuple[int, list[Region]]:
    """Where a region of so many bytes of the window would lie, and the regions above it that
    share a port with the devices: while there are any, the kernel refuses it. 0 and none
    where addresses are hidden."""
    start = first_fit(topology, root, size)
    if start is None:
        return 0, []
    later = [
        r
        for r in topology.regions
        if r.start is not None and r.start > start and takes(topology, r, memdevs)
    ]
    return start, later


def _check_addresses(
    topology: Topology, root: RootDecoder, memdevs: Sequence[Memdev], size: int
) -> None:
    """Regions on one port must be made in the order of their addresses ("HPA order")."""
    start, later = above(topology, root, memdevs, size)
    if later:
        first = later[0]
        shared = takes(topology, first, memdevs)
        raise RefusedError(
            f"{root.name} would place the region at {start:#x}, below {first.name} at "
            f"{first.start:#x}, and both need {shared}: decoders are programmed in the order "
            'of addresses ("HPA order")',
            object=first.name,
            hint=f"destroy {', '.join(r.name for r in later)} first and make it again behind, "
            "or use another window or other devices",
        )
