# SPDX-License-Identifier: Apache-2.0
"""The bandwidth to expect of regions, and how it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sacctl.cxl.model import Link, Topology
from sacctl.cxl.sysfs import Sysfs

__all__ = ["Bandwidth", "estimate", "link_bytes", "reported"]

# Bytes of memory that a link carries, of its raw bits: PCIe's line code, then CXL's flits of
# 64 bytes in 68 (up to 32 GT/s) or 256-byte flits with 236 bytes of slots (64 GT/s).
_LINE_CODE = {2.5: 0.8, 5.0: 0.8}
_CODE_128 = 128 / 130
_FLIT_68 = 64 / 68
_FLIT_256 = 236 / 256


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """bytes_per_second: of reads, 0 where it is not known; how: where it is from."""

    bytes_per_second: int
    how: str


class Interleaved(Protocol):
    """What is needed of a RegionPlan."""

    @property
    def order(self) -> tuple[str, ...]: ...


def link_bytes(link: Link) -> int:
    """Bytes of memory a second that a link can carry one way, as it runs now."""
    raw = link.speed * 1e9 * link.width / 8
    if link.speed >= 64:
        return int(raw * _FLIT_256)
    return int(raw * _LINE_CODE.get(link.speed, _CODE_128) * _FLIT_68)


def estimate(topology: Topology, regions: Sequence[Interleaved]) -> Bandwidth:
    """Of regions that are yet to be made, from the links of their devices.

    An interleaved region is as fast as its slowest device times its ways. It is an upper
    bound: the memory behind a link may be slower, and devices of one switch share its link
    upwards, which is not counted.
    """
    total, unknown = 0, []
    for region in regions:
        speeds = []
        for name in region.order:
            memdev = topology.memdev(name)
            if memdev is None or memdev.link is None:
                unknown.append(name)
            else:
                speeds.append(link_bytes(memdev.link))
        if len(speeds) == len(region.order):
            total += min(speeds) * len(speeds)
    if unknown:
        return Bandwidth(0, f"not known: no link speed for {', '.join(unknown)}")
    shared = any(
        (m := topology.memdev(name)) is not None and len(m.ports) > 1
        for region in regions
        for name in region.order
    )
    how = "at most, from the speed of the links (slowest device of a region times its ways)"
    return Bandwidth(total, how + ("; a switch's own link may be less" if shared else ""))


def reported(sysfs: Sysfs, region: str) -> Bandwidth | None:
    """Of a region that is there, as firmware (HMAT) and devices (CDAT) report it; None where
    the kernel does not say (before 6.9, or without those tables)."""
    for access in ("access0", "access1"):
        at = f"/sys/bus/cxl/devices/{region}/{access}/read_bandwidth"
        megabytes = sysfs.number(at)
        if megabytes > 0:
            near = "the nearest initiator" if access == "access0" else "the nearest CPU"
            how = f"reported by firmware and devices for {near} ({access} of {region})"
            return Bandwidth(megabytes * 1_000_000, how)
    return None
