# SPDX-License-Identifier: Apache-2.0
"""A pool over devices: one region where hardware can interleave all, else a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from sacctl.cxl import positions, rules
from sacctl.cxl.bandwidth import Bandwidth, estimate
from sacctl.cxl.model import Memdev, RootDecoder, Topology
from sacctl.cxl.read_attrs import by_number
from sacctl.cxl.regionplan import RegionPlan, plan_region
from sacctl.cxl.room import assume
from sacctl.cxl.sizes import UNIT, size_option, size_text
from sacctl.errors import RefusedError, UsageError

__all__ = ["PoolPlan", "RegionPlan", "plan_pool", "plan_region"]

_MOST_TRIED = 20_000  # sets of devices looked at for one region


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Attributes:
    regions: in the order in which they are to be made (of their addresses); to be
        destroyed from the last to the first.
    stranded: bytes a device has free that no region takes, for devices that have some.
    why: for a person. bandwidth: of all regions together, expected.
    """

    regions: tuple[RegionPlan, ...]
    stranded: dict[str, int]
    why: tuple[str, ...]
    bandwidth: Bandwidth

    @property
    def bytes(self) -> int:
        return sum(region.bytes for region in self.regions)


def plan_pool(
    topology: Topology,
    memdevs: Sequence[Memdev],
    *,
    bytes: int | None = None,  # noqa: A002 -- the word of the record and of the plan
    granularity: int | None = None,
) -> PoolPlan:
    """How a pool over all the devices is best made.

    Args:
        bytes: of all regions together; None: all there is.
        granularity: of regions; None: as plan_region chooses.

    Raises UsageError as plan_region does, also where no set of regions has that many bytes.
    """
    rules.check_once(memdevs)
    try:
        one = plan_region(topology, memdevs, bytes=bytes, granularity=granularity)
        return _pool(topology, memdevs, [one], [])
    except (UsageError, RefusedError) as error:
        one_error = error
    # What was asked for is the fault where one region would do without it: say so, rather
    # than make something else of it.
    asked = bytes is not None or granularity is not None
    if asked and _is_possible(topology, memdevs):
        raise one_error
    sets = _sets(topology, memdevs, granularity)
    if len(sets) < 2:
        raise one_error
    try:
        regions = _sized(topology, sets, bytes, granularity)
    except (UsageError, RefusedError) as error:
        raise type(error)(
            f"{one_error.message}; and as {len(sets)} regions: {error.message}",
            object=error.object or one_error.object,
            hint=error.hint or one_error.hint,
        ) from error
    parts = "; ".join(", ".join(region.order) for region in regions)
    why = [
        f"{len(regions)} regions ({parts}): {one_error.message}",
        "pages are placed over the regions by weight: interleaving in software",
    ]
    return _pool(topology, memdevs, regions, why)


def _is_possible(topology: Topology, memdevs: Sequence[Memdev]) -> bool:
    """Whether all the devices can be one region."""
    try:
        plan_region(topology, memdevs)
    except (UsageError, RefusedError):
        return False
    return True


def _pool(
    topology: Topology, memdevs: Sequence[Memdev], regions: list[RegionPlan], why: list[str]
) -> PoolPlan:
    each = {name: region.bytes_each for region in regions for name in region.order}
    left = {m.name: m.free_bytes - each.get(m.name, 0) for m in memdevs}
    stranded = {name: size for name, size in left.items() if size > 0}
    for region in regions:
        why = [*why, *region.why]
    if stranded:
        what = ", ".join(f"{size_text(size)} of {name}" for name, size in stranded.items())
        why = [*why, f"not used: {what} (devices of a region give the same number of bytes)"]
    said = tuple(dict.fromkeys(why))  # two regions may share a window
    return PoolPlan(tuple(regions), stranded, said, estimate(topology, regions))


def _sets(
    topology: Topology, memdevs: Sequence[Memdev], granularity: int | None
) -> list[list[Memdev]]:
    """The devices in sets that can each be a region, the largest set first.

    Raises UsageError where a device cannot be in any.
    """
    left, found = list(memdevs), []
    now = topology
    while left:
        chosen, plan = _largest(now, left, granularity)
        found.append(chosen)
        root = now.root(plan.root)
        if root is not None:
            now = assume(
                now,
                root,
                [m for name in plan.order if (m := now.memdev(name))],
                plan.decoders,
                plan.granularity,
                UNIT * plan.ways,
                placed=False,
            )
        left = [m for m in left if m not in chosen]
    return found


def _largest(
    topology: Topology, memdevs: Sequence[Memdev], granularity: int | None
) -> tuple[list[Memdev], RegionPlan]:
    """The largest set of the devices that can be one region; of several, the one in the
    window with the most ways, whose devices are nearest in size."""
    bridges = len({m.host_bridge for m in memdevs})
    tried = 0
    for count in sorted((w for w in rules.WAYS if w <= len(memdevs)), reverse=True):
        best: tuple[tuple[int, int], list[Memdev], RegionPlan] | None = None
        for chosen in combinations(memdevs, count):
            tried += 1
            if tried > _MOST_TRIED and count > 1:
                break
            roots = [r for r in topology.roots if r.ram and positions.fits(r, chosen)]
            if not any(count in rules.ways_of(r) for r in roots):
                continue
            plan = _least(topology, chosen, granularity)
            if plan is None:
                continue
            sizes = [m.free_bytes for m in chosen]
            ways = _ways(roots, plan)
            key = (-ways, sum(sizes) - min(sizes) * count)
            if best is None or key < best[0]:
                best = (key, list(chosen), plan)
            if key == (-bridges, 0):
                break
        if best is not None:
            return best[1], best[2]
    plan_region(topology, memdevs[:1], bytes=UNIT, granularity=granularity)
    raise UsageError(f"no region can be made of {positions.names_of(memdevs)}")


def _ways(roots: Sequence[RootDecoder], plan: RegionPlan) -> int:
    return next((r.ways for r in roots if r.name == plan.root), 0)


def _least(
    topology: Topology, memdevs: Sequence[Memdev], granularity: int | None
) -> RegionPlan | None:
    try:
        return plan_region(
            topology, memdevs, bytes=UNIT * len(memdevs), granularity=granularity
        )
    except (UsageError, RefusedError):
        return None


def _sized(
    topology: Topology,
    sets: Sequence[Sequence[Memdev]],
    size: int | None,
    granularity: int | None,
) -> list[RegionPlan]:
    """A region of each set, in the order of addresses, that are of size bytes together."""
    drafts = [plan_region(topology, s, granularity=granularity) for s in sets]
    pairs = sorted(zip(drafts, sets, strict=True), key=lambda p: _address(topology, p[0]))
    shares = [None] * len(pairs) if size is None else _shares([p[0] for p in pairs], size)
    regions: list[RegionPlan] = []
    now = topology
    for (draft, chosen), share in zip(pairs, shares, strict=True):
        if share == 0:
            continue
        current = [m for one in chosen if (m := now.memdev(one.name))]
        plan = plan_region(now, current, bytes=share, granularity=granularity)
        root = now.root(plan.root)
        if root is None or plan.root != draft.root:
            raise UsageError(
                f"{draft.root} has no room for regions of "
                + " and of ".join(positions.names_of(s) for s in sets),
                object=draft.root,
            )
        ordered = [m for name in plan.order if (m := now.memdev(name))]
        now = assume(now, root, ordered, plan.decoders, plan.granularity, plan.bytes)
        regions.append(replace(plan, identities=tuple(m.identity for m in ordered)))
    return regions


def _address(topology: Topology, plan: RegionPlan) -> tuple[int, object]:
    root = topology.root(plan.root)
    start = root.start if root is not None and root.start is not None else 0
    return (start, by_number(plan.root))


def _shares(drafts: Sequence[RegionPlan], size: int) -> list[int]:
    """How many bytes of each region, so that all devices give about the same.

    Raises UsageError where the regions cannot be of size bytes together.
    """
    total = sum(d.bytes for d in drafts)
    each = [0] * len(drafts)
    left = size
    while left >= UNIT:
        open_ = [
            i for i, d in enumerate(drafts) if each[i] < d.bytes_each and d.ways * UNIT <= left
        ]
        if not open_:
            break
        least = min(open_, key=lambda i: (each[i], -drafts[i].ways))
        each[least] += UNIT
        left -= UNIT * drafts[least].ways
    if left:
        got = size - left
        raise UsageError(
            f"{size_text(size)} cannot be made of these devices: regions of "
            f"{' and '.join(str(d.ways) for d in drafts)} devices take multiples of "
            f"{size_text(UNIT)} each, at most {size_text(total)} together",
            hint=size_option(got or UNIT),
        )
    return [e * d.ways for e, d in zip(each, drafts, strict=True)]
