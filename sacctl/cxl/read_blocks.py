# SPDX-License-Identifier: Apache-2.0
"""Memory blocks, and what the kernel does with new memory."""

from __future__ import annotations

import re

from sacctl.cxl.model import Block, Policy, Topology
from sacctl.cxl.read_attrs import DAX, Attributes, names, number_of
from sacctl.cxl.sysfs import Sysfs

__all__ = ["blocks_of", "blocks_within", "policy"]

_MEMORY = "/sys/devices/system/memory"


def policy(sysfs: Sysfs) -> Policy:
    """What happens with new memory and new dax devices. Nothing is raised."""
    probe = sysfs.get(f"{DAX}/drivers_autoprobe")
    return Policy(
        auto_online=sysfs.get(f"{_MEMORY}/auto_online_blocks"),
        autoprobe=None if probe not in ("0", "1") else probe == "1",
        drivers=tuple(names(sysfs, f"{DAX}/drivers")),
        block_bytes=number_of(sysfs.get(f"{_MEMORY}/block_size_bytes"), 16) or 0,
    )


def blocks_of(sysfs: Sysfs, topology: Topology, name: str) -> tuple[Block, ...]:
    """Memory blocks, online or not, in a dax device or a region's memory; by address.

    Where an ordinary user may not know the address of a dax device, the blocks are those of
    its target node, as long as no CPU is there. None where there is no such name.
    """
    region = topology.region(name)
    dax = topology.dax_device(name)
    if region is not None and region.start is not None:
        return blocks_within(sysfs, region.start, region.bytes, topology.policy.block_bytes)
    if dax is None:
        return ()
    if dax.start is not None:
        return blocks_within(sysfs, dax.start, dax.bytes, topology.policy.block_bytes)
    if dax.driver == "kmem" and dax.target_node >= 0:
        return _on_node(sysfs, dax.target_node, topology.policy.block_bytes)
    return ()


def blocks_within(sysfs: Sysfs, start: int, size: int, block: int) -> tuple[Block, ...]:
    """Blocks of the size `block` that overlap the bytes from start; they need not exist."""
    if not block or not size:
        return ()
    # Listed and compared: a range of nonsense must not be walked block by block.
    there = _numbers(names(sysfs, _MEMORY))
    wanted = [n for n in there if start < (n + 1) * block and n * block < start + size]
    return tuple(found for n in wanted if (found := _block(sysfs, n, block)))


def _on_node(sysfs: Sysfs, node: int, block: int) -> tuple[Block, ...]:
    folder = f"/sys/devices/system/node/node{node}"
    if sysfs.get(f"{folder}/cpulist").strip():
        return ()
    found = (_block(sysfs, n, block) for n in _numbers(names(sysfs, folder)))
    return tuple(one for one in found if one)


def _numbers(listed: list[str]) -> list[int]:
    return sorted(int(n[6:]) for n in listed if re.fullmatch(r"memory\d{1,18}", n))


def _block(sysfs: Sysfs, number: int, size: int) -> Block | None:
    at = Attributes(sysfs, f"{_MEMORY}/memory{number}")
    state = at.optional("state")
    if not state:
        return None  # it left meanwhile
    return Block(
        number=number,
        start=number * size,
        state=state,
        zones=at.optional("valid_zones"),
        removable=at.optional("removable") == "1",
    )
