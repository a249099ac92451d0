# SPDX-License-Identifier: Apache-2.0
"""One verdict a device: usable, in use by what, or why not and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sacctl.cxl import rules
from sacctl.cxl.adopt import Judgement
from sacctl.cxl.model import Block, DaxDevice, Memdev, Region, RootDecoder, Topology
from sacctl.cxl.tools import Reading

__all__ = ["PoolUse", "Verdict", "blocks_said", "health_word", "judge", "regions_of"]

_LEAST = 256 << 20  # bytes: the kernel makes no smaller region


@dataclass(frozen=True, slots=True)
class Verdict:
    """Attributes:
    word: "usable", "in use" or "unusable".
    text: why, a sentence without its full stop. hint: the next command or step, or "".
    """

    word: str
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class PoolUse:
    """A pool that has a device. state, mode: as in its record."""

    pool: str
    state: str
    mode: str = "devdax"


def judge(
    topology: Topology,
    memdev: Memdev,
    pools: Sequence[PoolUse] = (),
    blocks: dict[str, Sequence[Block]] | None = None,
    found: Judgement | None = None,
) -> Verdict:
    """What can be done with a device.

    pools: that have it by their records; blocks: memory blocks by dax device, where known;
    found: whether a pool can have the region that the device is part of (adopt.judge).
    """
    broken = _broken(memdev)
    if broken is not None:
        return _with_pools(broken, pools)
    unread = {d.region for d in memdev.decoders if d.region and not topology.region(d.region)}
    if pools or unread or regions_of(topology, memdev):
        held = _in_use(topology, memdev, pools, blocks or {}, sorted(unread), found)
        return _with_room(memdev, held)
    return _taken(memdev) or _unreached(topology, memdev) or _usable(topology, memdev)


def _usable(topology: Topology, memdev: Memdev) -> Verdict:
    """With what the kernel's order of addresses forbids while other regions are there."""
    roots = [r for r in topology.roots if r.ram and memdev.host_bridge in r.targets]
    stand = {r.name: rules.above(topology, r, [memdev], _LEAST)[1] for r in roots}
    alone = [r for r in roots if 1 in rules.ways_of(r)]
    if alone and all(stand[r.name] for r in alone):
        regions = stand[alone[0].name]
        names = ", ".join(r.name for r in regions)
        lie = "lies" if len(regions) == 1 else "lie"
        text = f"{names} {lie} above it: the kernel makes regions in the order of addresses"
        if all(stand.values()):
            return Verdict(
                "unusable",
                f"capacity unassigned, and {text}",
                f"destroy {names}, and make it again behind",
            )
        return Verdict(
            "usable", f"capacity unassigned; not alone, for {text}", "sacctl pool plan"
        )
    return Verdict(
        "usable", "capacity unassigned", f"sacctl pool create NAME --devices {memdev.name}"
    )


def _broken(memdev: Memdev) -> Verdict | None:
    """What is wrong with the device itself."""
    if memdev.problem:
        command = memdev.problem.rpartition("(")[2].removesuffix(")")
        hint = command if command.startswith("modprobe ") else "dmesg | grep -i cxl"
        return Verdict("unusable", memdev.problem, hint)
    if memdev.security in ("locked", "frozen"):
        return Verdict(
            "unusable",
            f"its security state is {memdev.security}: the media cannot be used",
            f"unlock it with its vendor's tool ({memdev.path}/security)",
        )
    if memdev.security == "sanitize":
        return Verdict("unusable", "it is being erased now", "wait until it has ended")
    if not memdev.ram_bytes:
        if memdev.pmem_bytes:
            return Verdict(
                "unusable",
                "all of its capacity is persistent memory, and pools are made of volatile",
                f"cxl set-partition {memdev.name} -t ram erases it and changes that",
            )
        return Verdict(
            "unusable", "it reports no capacity: its media is not ready", "dmesg | grep -i cxl"
        )
    return None


def _with_pools(broken: Verdict, pools: Sequence[PoolUse]) -> Verdict:
    if not pools:
        return broken
    return Verdict(broken.word, f"{broken.text}; it belongs to {_pools(pools)}", broken.hint)


# ---------------------------------------------------------------------------- in use


def regions_of(topology: Topology, memdev: Memdev) -> list[Region]:
    """Regions that a device has a part in, committed or not."""
    own = {d.name for d in memdev.decoders}
    held = {d.region for d in memdev.decoders if d.region}
    return [r for r in topology.regions if r.name in held or own & set(r.targets)]


def _in_use(
    topology: Topology,
    memdev: Memdev,
    pools: Sequence[PoolUse],
    blocks: dict[str, Sequence[Block]],
    unread: Sequence[str],
    found: Judgement | None,
) -> Verdict:
    regions = regions_of(topology, memdev)
    said = [_region_said(topology, region, blocks) for region in regions]
    said += [f"{name}, which cannot be read" for name in unread]
    if not pools:
        return _without_pool(regions, said, found)
    text = f"by {_pools(pools)}"
    if said:
        whole = all(region.committed for region in regions)
        hint = "" if whole else f"sacctl pool assemble {pools[0].pool}, with all devices there"
        if whole and len(pools) == 1 and _strayed(topology, regions, pools[0]):
            hint = "sacctl health"
        return Verdict("in use", f"{text}: {'; '.join(said)}", hint)
    unfinished = next((p for p in pools if p.state in ("creating", "destroying")), None)
    if unfinished is not None:
        return Verdict(
            "in use",
            f"{text}, which was being {_ED[unfinished.state]} when that was cut off",
            f"sacctl pool destroy {unfinished.pool}",
        )
    return Verdict(
        "in use",
        f"{text}, which has no region on it now",
        f"sacctl pool assemble {pools[0].pool}",
    )


def _strayed(topology: Topology, regions: Sequence[Region], pool: PoolUse) -> bool:
    """Whether a dax device of a pool's regions has a driver that the pool cannot use."""
    driver = "kmem" if pool.mode == "system-ram" else "device_dax"
    devices = [topology.dax_device(name) for region in regions for name in region.dax]
    return any(dax is not None and dax.driver != driver for dax in devices)


_ED = {"creating": "created", "destroying": "destroyed"}


def _with_room(memdev: Memdev, verdict: Verdict) -> Verdict:
    """Says what is left, where a region can be made of it."""
    free = any(not d.dpa_bytes and not d.locked for d in memdev.decoders)
    if memdev.free_bytes < _LEAST or not memdev.used_bytes or not free:
        return verdict
    left = f"{memdev.free_bytes >> 20} MiB of it are unassigned"
    return Verdict(verdict.word, f"{verdict.text}; {left}", verdict.hint)


def _without_pool(
    regions: Sequence[Region], said: Sequence[str], found: Judgement | None
) -> Verdict:
    if not regions or found is None:
        return Verdict("in use", f"by {'; '.join(said)}; no pool has it")
    region = regions[0]
    others = "".join(f"; {other}" for other in said[1:])
    # Who put the memory online comes behind a semicolon: adopting it says that too.
    text = f"by {region.name}{others}; no pool has it: {found.message.partition('; ')[0]}"
    if not found.usable:
        return Verdict("in use", text, found.hint)
    force = " --force-offline" if found.needs == "force-offline" else ""
    return Verdict("in use", text, f"sacctl pool adopt NAME {region.name}{force}")


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
    online = [block for block in blocks if block.state != "offline"]
    if not blocks:
        return ""
    zones = sorted({block.zones or "unknown" for block in online})
    where = f" in zone {' and '.join(zones)}" if zones else ""
    return f"{len(online)} of {len(blocks)} blocks online{where}"


# ----------------------------------------------------------------------------- free?


def _taken(memdev: Memdev) -> Verdict | None:
    """Capacity or decoders that are taken without a region."""
    held = [d for d in memdev.decoders if d.dpa_bytes]
    if memdev.committed:
        locked = ", locked" if any(d.locked for d in memdev.decoders) else ""
        one = memdev.committed == 1
        decoders = f"{memdev.committed} of its decoders {'is' if one else 'are'}"
        return Verdict(
            "unusable",
            f"{decoders} programmed{locked} and there is no "
            "region: firmware or the kernel before a kexec did it; left alone",
            "a reset of the machine without kexec; else the firmware's setup",
        )
    if held and memdev.free_bytes < _LEAST:
        return Verdict(
            "unusable",
            f"{', '.join(d.name for d in held)} hold {sum(d.dpa_bytes for d in held) >> 20} "
            "MiB without a region: what an interrupted creation leaves",
            f"cxl free-dpa {memdev.name}",
        )
    free = [d for d in memdev.decoders if not d.dpa_bytes and not d.locked]
    if not free:
        why = "locked by firmware" if any(d.locked for d in memdev.decoders) else "taken"
        return Verdict("unusable", f"all of its decoders are {why}", "the firmware's setup")
    return None


def _unreached(topology: Topology, memdev: Memdev) -> Verdict | None:
    """Whether a window with room leads to the device."""
    here = [root for root in topology.roots if memdev.host_bridge in root.targets]
    where = memdev.host_bridge or "an unknown host bridge"
    if not here:
        others = _some(f"{r.name} to {', '.join(r.targets)}" for r in topology.roots)
        return Verdict(
            "unusable",
            f"no window leads to its host bridge {where}"
            + (f" ({others})" if others else ": the firmware made none (CFMWS)"),
            "ask for a CXL window over this bridge in the firmware's setup",
        )
    volatile = [root for root in here if root.ram]
    if not volatile:
        return Verdict(
            "unusable",
            f"{_named(here)} leads to it, and is not for volatile memory",
            "the firmware's setup",
        )
    if max(root.free_bytes for root in volatile) < _LEAST:
        return Verdict(
            "unusable",
            f"{_named(volatile)} leads to it and has no room left",
            "sacctl device topology shows what the room went to",
        )
    return None


def _named(roots: Sequence[RootDecoder]) -> str:
    return ", ".join(root.name for root in roots)


def _some(texts: Iterable[str]) -> str:
    listed = list(texts)
    more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    return ", ".join(listed[:4]) + more


def _pools(pools: Sequence[PoolUse]) -> str:
    word = "pool" if len(pools) == 1 else "pools"
    return f"{word} {', '.join(p.pool for p in pools)}"


# ---------------------------------------------------------------------------- health


def health_word(memdev: Memdev, reading: Reading | None = None) -> str:
    """Health in a word or two: the worst that is seen. "ok": nothing bad is; "unknown":
    there is nothing to see."""
    if memdev.aer.get("fatal"):
        return "fatal errors"
    if reading is not None and reading.poison:
        return "poison"
    if memdev.aer.get("nonfatal"):
        return "errors"
    if reading is not None and reading.status:
        return "warning"
    if memdev.link is not None and memdev.link.degraded:
        return "link degraded"
    known = memdev.link is not None or bool(memdev.aer) or reading is not None
    return "ok" if known else "unknown"
