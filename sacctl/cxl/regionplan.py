# SPDX-License-Identifier: Apache-2.0
"""Which region, or which regions, are to be made of devices.

Granularity, where the window leaves the choice, is 256 bytes, the smallest. A gather copies
rows of about 1 KiB: at 256 every row lies on up to four devices, so whatever rows are picked,
no device gets more of the load than another. At 1 KiB or more a row lies on one device or
two, and rows picked at a stride may all be of the same one. Nothing is lost by it: a device's
pieces of neighbouring granules lie side by side in its memory, and the CPU's prefetchers
follow addresses, not devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sacctl.cxl import positions, rules
from sacctl.cxl.model import Memdev, RootDecoder, Topology
from sacctl.cxl.sizes import UNIT, size_text
from sacctl.errors import RefusedError, UsageError

__all__ = ["GRANULARITY", "RegionPlan", "plan_region"]

GRANULARITY = 256


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """One region to be made.

    Attributes:
        root: the window: "decoder0.2".
        order: memdevs by position; identities: the same, as Memdev.identity.
        decoders: endpoint decoders by position.
        granularity: bytes. bytes: of the region; bytes_each: of each device.
        why: how it came to this, for a person.
    """

    root: str
    order: tuple[str, ...]
    decoders: tuple[str, ...]
    ways: int
    granularity: int
    bytes: int
    bytes_each: int
    identities: tuple[str, ...] = ()
    why: tuple[str, ...] = ()


def plan_region(
    topology: Topology,
    memdevs: Sequence[Memdev],
    *,
    bytes: int | None = None,  # noqa: A002 -- the word of the record and of the plan
    granularity: int | None = None,
    as_given: bool = False,
) -> RegionPlan:
    """One region over all the devices.

    Args:
        bytes: of the region; None: as much as the devices, all the same, and the window have.
        granularity: None: the window's where it interleaves, else 256.
        as_given: the devices are by position already, as a record says; a position that the
            window does not allow is an error.

    Raises UsageError with the kernel's rule that forbids it and what would be valid;
    RefusedError where other regions are in the way now.
    """
    if not memdevs:
        raise UsageError("a region needs at least one device", hint="sacctl device list")
    for memdev in memdevs:
        rules.check_device(topology, memdev)
    refused: list[tuple[RootDecoder, UsageError | RefusedError]] = []
    for root in _by_preference(topology, memdevs):
        try:
            return _in_window(topology, root, memdevs, bytes, granularity, as_given)
        except (UsageError, RefusedError) as error:
            refused.append((root, error))
    raise _no_window(topology, memdevs, refused)


def _in_window(
    topology: Topology,
    root: RootDecoder,
    memdevs: Sequence[Memdev],
    size: int | None,
    granularity: int | None,
    as_given: bool,
) -> RegionPlan:
    ways = len(memdevs)
    chosen = granularity
    if chosen is None:
        chosen = root.granularity if root.ways > 1 else GRANULARITY
    ordered = tuple(memdevs)
    if not as_given and positions.fits(root, memdevs):
        ordered = positions.in_order(root, memdevs)
    total = size
    if total is None:
        least = min(m.free_bytes for m in memdevs) // UNIT
        total = max(1, min(least, root.free_bytes // (UNIT * ways))) * UNIT * ways
    rules.check(topology, root, ordered, chosen, total)
    decoders = [rules.next_decoder(m) for m in ordered]
    return RegionPlan(
        root=root.name,
        order=tuple(m.name for m in ordered),
        decoders=tuple(d.name for d in decoders if d is not None),
        ways=ways,
        granularity=chosen,
        bytes=total,
        bytes_each=total // ways,
        identities=tuple(m.identity for m in ordered),
        why=tuple(_why(root, memdevs, ordered, granularity, chosen, size, total)),
    )


def _why(
    root: RootDecoder,
    given: Sequence[Memdev],
    ordered: Sequence[Memdev],
    asked: int | None,
    granularity: int,
    size: int | None,
    total: int,
) -> list[str]:
    ways, each = len(ordered), total // len(ordered)
    bridges = "host bridge " if root.ways == 1 else f"{root.ways} host bridges "
    said = [f"window {root.name}: it leads to {bridges}{', '.join(root.targets)}"]
    if tuple(given) != tuple(ordered):
        said.append(f"order {positions.names_of(ordered)}: bridges and switches decode in turn")
    if asked is None and ways > 1:
        said.append(
            f"granularity {granularity}: the window's, which a region must have"
            if root.ways > 1
            else f"granularity {granularity}: rows spread evenly over the devices"
        )
    if size is None and each < min(m.free_bytes for m in ordered) // UNIT * UNIT:
        said.append(
            f"{size_text(each)} of each device: the window has no more than "
            f"{size_text(root.free_bytes)} free in one piece"
        )
    return said


def _by_preference(topology: Topology, memdevs: Sequence[Memdev]) -> list[RootDecoder]:
    """Windows for volatile memory: those that interleave over the devices' bridges first,
    then those with the most room; those that cannot hold the devices last."""
    bridges = {m.host_bridge for m in memdevs}

    def key(root: RootDecoder) -> tuple[bool, int, int]:
        reached = bridges <= set(root.targets) and len(memdevs) in rules.ways_of(root)
        return (not reached, -root.ways, -root.free_bytes)

    return sorted((r for r in topology.roots if r.ram), key=key)


def _no_window(
    topology: Topology,
    memdevs: Sequence[Memdev],
    refused: list[tuple[RootDecoder, UsageError | RefusedError]],
) -> UsageError | RefusedError:
    names = positions.names_of(memdevs)
    if not refused:
        return UsageError(
            "there is no window for volatile CXL memory: firmware gave none (CFMWS), or "
            "cxl_acpi is not loaded",
            object=names,
            hint="modprobe cxl_acpi; look for CXL in the firmware's settings",
        )
    reached = [
        one for one in refused if {m.host_bridge for m in memdevs} <= set(one[0].targets)
    ]
    # A window that reaches all is the nearest; what is wrong with others is beside the point.
    best = (reached or refused)[:3]
    if len(best) == 1 or len({str(error) for _, error in best}) == 1:
        root, error = best[0]
        return type(error)(
            f"{names}: {error.message}", object=error.object or root.name, hint=error.hint
        )
    kinds = {type(error) for _, error in best}
    return (kinds.pop() if len(kinds) == 1 else UsageError)(
        f"no window takes a region of {names}: "
        + "; ".join(error.message for _, error in best),
        object=names,
        hint=next((error.hint for _, error in best if error.hint), ""),
    )
