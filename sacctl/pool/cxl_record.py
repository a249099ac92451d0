# SPDX-License-Identifier: Apache-2.0
"""What a pool's record says of its CXL regions: the table [cxl].

Devices are named by what stays over a reboot (Memdev.identity); names of regions and dax
devices are those of the boot in ``boot``, and say nothing in another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from sacctl.pool.fields import Fields

__all__ = ["MODES", "CxlPart", "RegionPart", "describe", "is_identity"]

MODES = ("devdax", "system-ram")
_IDENTITY = re.compile(
    r"serial:0x[0-9a-f]{1,16}|pci:[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
    r"|hmem:0x[0-9a-f]{1,16}"
)
_REGION = re.compile(r"(?:region[0-9]{1,9})?")
_DAX = re.compile(r"dax[0-9]{1,9}\.[0-9]{1,9}")
_BEFORE = re.compile(
    r"(?:region[0-9]{1,9}|decoder[0-9]{1,9}\.[0-9]{1,9}|dax[0-9]{1,9}\.[0-9]{1,9})"
)
MOST_REGIONS = 64
MOST_WAYS = 16


def is_identity(text: str) -> bool:
    """Whether text names a device as records do: "serial:0x100"."""
    return _IDENTITY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class RegionPart:
    """A region of a pool, or the part of one that an isolated namespace has. Sizes in bytes.

    Attributes:
        devices: identities by position; of an hmem device "hmem:0x..", its address.
        made: by sacctl, so that it goes with the pool.
        region: its name; "" of an hmem device, and while it is not known.
        dax: names of the pool's dax devices in it: data first, then metadata where it is
            split from this region.
        parts: bytes of each of them. whole: of the dax device that an adopted region had.
        weight: pages it gets beside the other regions' ones.
    """

    devices: tuple[str, ...]
    ways: int
    granularity: int
    bytes: int
    made: bool = True
    region: str = ""
    dax: tuple[str, ...] = ()
    parts: tuple[int, ...] = ()
    whole: int = 0
    weight: int = 1

    def with_(self, **changes: Any) -> RegionPart:
        """A copy with other values."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "devices": list(self.devices),
            "ways": self.ways,
            "granularity": self.granularity,
            "bytes": self.bytes,
            "made": self.made,
            "region": self.region,
            "dax": list(self.dax),
            "parts": list(self.parts),
            "whole": self.whole,
            "weight": self.weight,
        }

    @classmethod
    def read(cls, table: Fields) -> RegionPart:
        """Raises CtlError."""
        part = cls(
            devices=table.texts("devices"),
            ways=table.number("ways"),
            granularity=table.number("granularity"),
            bytes=table.number("bytes"),
            made=table.flag("made", True),
            region=table.text("region", ""),
            dax=table.texts("dax", []),
            parts=table.numbers("parts", []),
            whole=table.number("whole", 0),
            weight=table.number("weight", 1),
        )
        for identity in part.devices:
            if not is_identity(identity):
                raise table.fail("devices", f"hold '{identity}', which names no device")
        if len(set(part.devices)) != len(part.devices):
            raise table.fail("devices", "hold a device twice")
        if not 1 <= part.ways <= MOST_WAYS or len(part.devices) != part.ways:
            raise table.fail(
                "ways", f"is {part.ways} for {len(part.devices)} devices; they must agree"
            )
        if part.granularity and (part.granularity & (part.granularity - 1)):
            raise table.fail("granularity", f"is {part.granularity}, no power of two")
        if not part.bytes:
            raise table.fail("bytes", "is 0")
        if not _REGION.fullmatch(part.region):
            raise table.fail("region", f"is '{part.region}', which no region is called")
        for name in part.dax:
            if not _DAX.fullmatch(name):
                raise table.fail("dax", f"hold '{name}', which no dax device is called")
        if len(part.dax) > len(part.parts):
            raise table.fail("dax", f"has {len(part.dax)} names for {len(part.parts)} parts")
        if not 1 <= len(part.parts) <= 2 or not all(part.parts):
            raise table.fail("parts", "must have one or two sizes")
        if sum(part.parts) > part.bytes or part.whole > part.bytes:
            raise table.fail("parts", f"are more than the region's {part.bytes} bytes")
        if not 1 <= part.weight <= 1 << 16:
            raise table.fail("weight", f"is {part.weight}; 1 to {1 << 16} is allowed")
        return part


@dataclass(frozen=True, slots=True)
class CxlPart:
    """The table [cxl].

    Attributes:
        mode: "devdax", or "system-ram": memory of a NUMA node, on a tmpfs at ``mount``.
        adopted: the regions were there before the pool, and stay.
        boot: id of the boot that names and paths are of.
        regions: one for each data extent, in their order.
        room: bytes left in the first region for isolated namespaces.
        parent: pool whose room this one's dax devices are split from, or "".
        mount, nodes: of a pool in system RAM; else "" and none.
        before: what was there when a creation began (regions, decoders in use, dax devices):
            what is there beyond it when the creation was cut off may belong to it.
        decoders: endpoint decoders whose memory a change was about to take or give back.
    """

    regions: tuple[RegionPart, ...]
    mode: str = "devdax"
    adopted: bool = False
    boot: str = ""
    room: int = 0
    parent: str = ""
    mount: str = ""
    nodes: tuple[int, ...] = ()
    before: tuple[str, ...] = ()
    decoders: tuple[str, ...] = ()

    def with_(self, **changes: Any) -> CxlPart:
        """A copy with other values."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "adopted": self.adopted,
            "boot": self.boot,
            "room": self.room,
            "parent": self.parent,
            "mount": self.mount,
            "nodes": list(self.nodes),
            "before": list(self.before),
            "decoders": list(self.decoders),
            "regions": [region.to_dict() for region in self.regions],
        }

    @classmethod
    def read(cls, table: Fields) -> CxlPart:
        """Raises CtlError."""
        part = cls(
            mode=table.text("mode"),
            adopted=table.flag("adopted", False),
            boot=table.text("boot", ""),
            room=table.number("room", 0),
            parent=table.text("parent", ""),
            mount=table.text("mount", ""),
            nodes=table.numbers("nodes", []),
            before=table.texts("before", []),
            decoders=table.texts("decoders", []),
            regions=tuple(map(RegionPart.read, table.tables("regions"))),
        )
        if part.mode not in MODES:
            raise table.fail("mode", f"is '{part.mode}'; it must be {' or '.join(MODES)}")
        if not 1 <= len(part.regions) <= MOST_REGIONS:
            raise table.fail("regions", f"are {len(part.regions)}; 1 to {MOST_REGIONS} may be")
        every = [device for region in part.regions for device in region.devices]
        if not part.parent and len(set(every)) != len(every):
            raise table.fail("regions", "hold a device twice")
        if any(not _BEFORE.fullmatch(name) for name in (*part.before, *part.decoders)):
            raise table.fail("before", "holds what is no region, decoder or dax device")
        if (part.mode == "system-ram") != bool(part.mount):
            raise table.fail("mount", "is for mode system-ram, which needs it")
        if part.mount and (not part.mount.startswith("/") or ".." in part.mount.split("/")):
            raise table.fail("mount", f"is '{part.mount}', which is no absolute path")
        return part


def describe(part: CxlPart) -> dict[str, Any]:
    """The key "cxl" of a pool's record in answers (docs/json.md): names as last known."""
    return {
        "mode": part.mode,
        "adopted": part.adopted,
        "parent": part.parent,
        "room_bytes": part.room,
        "mount": part.mount,
        "nodes": list(part.nodes),
        "regions": [
            {
                "region": region.region,
                "devices": list(region.devices),
                "ways": region.ways,
                "granularity": region.granularity,
                "bytes": region.bytes,
                "made": region.made,
                "dax": list(region.dax),
                "weight": region.weight,
            }
            for region in part.regions
        ],
    }
