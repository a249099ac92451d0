# SPDX-License-Identifier: Apache-2.0
"""Where a new region would lie, and which ports it would share with those that are there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from sacctl.cxl.model import Memdev, Region, RootDecoder, Topology

__all__ = ["assume", "first_fit", "members", "takes", "used_decoders", "without"]


def members(topology: Topology, region: Region) -> list[Memdev]:
    """The devices of a region by position, without those that have gone."""
    found = (topology.owner_of(target) for target in region.targets if target)
    return [memdev for memdev in found if memdev is not None]


def first_fit(topology: Topology, root: RootDecoder, size: int) -> int | None:
    """The address that the kernel will choose: the first hole that is large enough.

    None where addresses are hidden (from all but root), or there is no hole.
    """
    if root.start is None:
        return None
    inside = [r for r in topology.regions if r.root == root.name and r.bytes]
    if any(r.start is None for r in inside):
        return None
    at = root.start
    for start, length in sorted((r.start or 0, r.bytes) for r in inside):
        if start - at >= size:
            return at
        at = max(at, start + length)
    return at if root.start + root.bytes - at >= size else None


def takes(topology: Topology, region: Region, memdevs: Sequence[Memdev]) -> str:
    """The first port or endpoint that the region and the devices share; "" for none."""
    theirs = members(topology, region)
    ports = {p for m in theirs for p in (*m.ports, m.endpoint)}
    ours = dict.fromkeys(p for m in memdevs for p in (*m.ports, m.endpoint))
    return next((p for p in ours if p in ports), "")


def used_decoders(topology: Topology, port: str) -> list[str]:
    """The regions that have a decoder of a port."""
    return [
        r.name for r in topology.regions if any(port in m.ports for m in members(topology, r))
    ]


def assume(
    topology: Topology,
    root: RootDecoder,
    memdevs: Sequence[Memdev],
    decoders: Sequence[str],
    granularity: int,
    size: int,
    *,
    placed: bool = True,
) -> Topology:
    """The topology as it will be when the region has been made, to plan the next one.

    placed: at its address; False while it is open in which order regions will be made.
    """
    start = first_fit(topology, root, size) if placed else None
    name = f"planned{len(topology.regions)}"
    region = Region(
        name=name,
        root=root.name,
        start=start,
        bytes=size,
        ways=len(memdevs),
        granularity=granularity,
        targets=tuple(decoders),
        committed=True,
        mode="ram",
        driver="cxl_region",
        dax=(),
    )
    each = size // len(memdevs)
    taken = set(decoders)
    return replace(
        topology,
        memdevs=tuple(_given(m, taken, name, each) for m in topology.memdevs),
        roots=tuple(
            replace(
                r, free_bytes=max(0, r.free_bytes - size), regions=(*r.regions, name)
            ) if r.name == root.name else r
            for r in topology.roots
        ),
        regions=(*topology.regions, region),
    )  # fmt: skip


def without(topology: Topology, names: Collection[str]) -> Topology:
    """The topology as it will be when these regions have been taken away, to plan what comes
    then. Windows count the bytes as free, in one piece."""
    gone = [region for region in topology.regions if region.name in names]
    back = {r.name: sum(g.bytes for g in gone if g.root == r.name) for r in topology.roots}
    return replace(
        topology,
        memdevs=tuple(_back(m, gone) for m in topology.memdevs),
        roots=tuple(
            replace(
                r,
                free_bytes=r.free_bytes + back[r.name],
                regions=tuple(name for name in r.regions if name not in names),
            )
            for r in topology.roots
        ),
        regions=tuple(region for region in topology.regions if region.name not in names),
        dax=tuple(dax for dax in topology.dax if dax.region not in names),
    )


def _back(memdev: Memdev, gone: Sequence[Region]) -> Memdev:
    names = {region.name for region in gone}
    committed = {region.name for region in gone if region.committed}
    decoders = tuple(
        replace(d, dpa_bytes=0, region="") if d.region in names else d for d in memdev.decoders
    )
    fewer = sum(d.region in committed for d in memdev.decoders)
    return replace(memdev, decoders=decoders, committed=max(0, memdev.committed - fewer))


def _given(memdev: Memdev, taken: set[str], region: str, each: int) -> Memdev:
    decoders = tuple(
        replace(d, mode="ram", dpa_bytes=each, region=region) if d.name in taken else d
        for d in memdev.decoders
    )
    more = sum(d.name in taken for d in memdev.decoders)
    return replace(memdev, decoders=decoders, committed=memdev.committed + more)
