# SPDX-License-Identifier: Apache-2.0
"""One verdict a device: usable, in use by what, or why not and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sacctl.cxl import rules
from sacctl.cxl.adopt import Judgement
from sacctl.cxl.inuse import PoolUse, blocks_said, in_use, pools_said, regions_of
from sacctl.cxl.model import Block, Memdev, RootDecoder, Topology
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
    held = in_use(topology, memdev, pools, blocks or {}, found)
    if held is not None:
        return _with_room(memdev, Verdict("in use", *held))
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
    return Verdict(
        broken.word, f"{broken.text}; it belongs to {pools_said(pools)}", broken.hint
    )


def _with_room(memdev: Memdev, verdict: Verdict) -> Verdict:
    """Says what is left, where a region can be made of it."""
    free = any(not d.dpa_bytes and not d.locked for d in memdev.decoders)
    if memdev.free_bytes < _LEAST or not memdev.used_bytes or not free:
        return verdict
    left = f"{memdev.free_bytes >> 20} MiB of it are unassigned"
    return Verdict(verdict.word, f"{verdict.text}; {left}", verdict.hint)


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
