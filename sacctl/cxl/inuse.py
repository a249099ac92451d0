# SPDX-License-Identifier: Apache-2.0
"""By what a device is in use: pools, regions, dax devices, memory blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sacctl.cxl.adopt import Judgement
from sacctl.cxl.model import Block, DaxDevice, Memdev, Region, Topology
from sacctl.cxl.offline import online, zones_of

__all__ = ["PoolUse", "blocks_said", "in_use", "pools_said", "regions_of"]

_ED = {"creating": "created", "destroying": "destroyed"}


@dataclass(frozen=True, slots=True)
class PoolUse:
    """A pool that has a device. state, mode: as in its record."""

    pool: str
    state: str
    mode: str = "devdax"


def regions_of(topology: Topology, memdev: Memdev) -> list[Region]:
    """Regions that a device has a part in, committed or not."""
    own = {d.name for d in memdev.decoders}
    held = {d.region for d in memdev.decoders if d.region}
    return [r for r in topology.regions if r.name in held or own & set(r.targets)]


def in_use(
    topology: Topology,
    memdev: Memdev,
    pools: Sequence[PoolUse],
    blocks: dict[str, Sequence[Block]],
    found: Judgement | None,
) -> tuple[str, str] | None:
    """By what a device is in use, and the next command or step, or ""; None: by nothing.
    The arguments as of verdict.judge()."""
    regions = regions_of(topology, memdev)
    said = [_region_said(topology, region, blocks) for region in regions]
    unread = {d.region for d in memdev.decoders if d.region and not topology.region(d.region)}
    said += [f"{name}, which cannot be read" for name in sorted(unread)]
    if not pools:
        return _without_pool(regions, said, found) if said else None
    text = f"by {pools_said(pools)}"
    if said:
        whole = all(region.committed for region in regions)
        hint = "" if whole else f"sacctl pool assemble {pools[0].pool}, with all devices there"
        if whole and len(pools) == 1 and _strayed(topology, regions, pools[0]):
            hint = "sacctl health"
        return f"{text}: {'; '.join(said)}", hint
    unfinished = next((p for p in pools if p.state in ("creating", "destroying")), None)
    if unfinished is not None:
        return (
            f"{text}, which was being {_ED[unfinished.state]} when that was cut off",
            f"sacctl pool destroy {unfinished.pool}",
        )
    return f"{text}, which has no region on it now", f"sacctl pool assemble {pools[0].pool}"


def _strayed(topology: Topology, regions: Sequence[Region], pool: PoolUse) -> bool:
    """Whether a dax device of a pool's regions has a driver that the pool cannot use."""
    driver = "kmem" if pool.mode == "system-ram" else "device_dax"
    devices = [topology.dax_device(name) for region in regions for name in region.dax]
    return any(dax is not None and dax.driver != driver for dax in devices)


def _without_pool(
    regions: Sequence[Region], said: Sequence[str], found: Judgement | None
) -> tuple[str, str]:
    if not regions or found is None:
        return f"by {'; '.join(said)}; no pool has it", ""
    region = regions[0]
    others = "".join(f"; {other}" for other in said[1:])
    # Who put the memory online comes behind a semicolon: adopting it says that too.
    text = f"by {region.name}{others}; no pool has it: {found.message.partition('; ')[0]}"
    if not found.usable:
        return text, found.hint
    force = " --force-offline" if found.needs == "force-offline" else ""
    return text, f"sacctl pool adopt NAME {region.name}{force}"


def _region_said(topology: Topology, region: Region, blocks: dict[str, Sequence[Block]]) -> str:
    ways = f"x{region.ways}" if region.ways else "without ways yet"
    if not region.committed:
        missing = [str(n) for n, target in enumerate(region.targets) if not target]
        lost = f", position {', '.join(missing)} has no device" if missing else ""
        return f"{region.name} ({ways}, not committed{lost})"
    if not region.dax:
        return (
            f"{region.name} ({ways}), which has no dax device: its range is System RAM from "
            "boot, or no driver made one"
        )
    devices = [d for name in region.dax if (d := topology.dax_device(name)) is not None]
    shown = ", ".join(_dax_said(device, blocks.get(device.name, ())) for device in devices)
    return f"{region.name} ({ways}; {shown or ', '.join(region.dax)})"


def _dax_said(device: DaxDevice, blocks: Sequence[Block]) -> str:
    if device.driver == "kmem":
        return f"{device.name} is system RAM{': ' if blocks else ''}{blocks_said(blocks)}"
    return f"{device.name} on {device.driver}" if device.driver else f"{device.name} unbound"


def blocks_said(blocks: Sequence[Block]) -> str:
    """ "4 of 4 blocks online in zone Normal"; "" for no blocks."""
    if not blocks:
        return ""
    zones = sorted(zones_of(blocks))
    where = f" in zone {' and '.join(zones)}" if zones else ""
    return f"{len(online(blocks))} of {len(blocks)} blocks online{where}"


def pools_said(pools: Sequence[PoolUse]) -> str:
    word = "pool" if len(pools) == 1 else "pools"
    return f"{word} {', '.join(p.pool for p in pools)}"
