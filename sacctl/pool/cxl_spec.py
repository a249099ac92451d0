# SPDX-License-Identifier: Apache-2.0
"""What is asked for: a pool of CXL devices; and how its regions are divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libsac.sizes import format_size
from sacctl.errors import CtlError, UsageError
from sacctl.pool.cxl_record import MODES
from sacctl.pool.record import Record, check_name
from sacctl.pool.spec import META_SLAB, MOST_EXTENTS, SLAB, round_up

__all__ = ["CxlSpec", "divide", "meta_bytes"]

META_REST = 16 << 20  # namespaces' own blocks, and headers of pages smaller than 16 KiB
LEAST_DATA = 4 << 20  # an extent's superblock and one slab


@dataclass(frozen=True, slots=True)
class CxlSpec:
    """A pool as it is asked for. Raises UsageError where that cannot be.

    Attributes:
        devices: identities, in any order.
        bytes: of all regions together; None: all that is free.
        granularity: None leaves it to sacctl.
        room: bytes of the first region left for isolated namespaces.
    """

    name: str
    devices: tuple[str, ...]
    bytes: int | None = None
    granularity: int | None = None
    mode: str = "devdax"
    room: int = 0

    def __post_init__(self) -> None:
        check_name(self.name)
        if len(set(self.devices)) != len(self.devices):
            twice = next(d for d in self.devices if self.devices.count(d) > 1)
            raise UsageError(f"--devices names the device {twice} twice", object=twice)
        if self.mode not in MODES:
            raise UsageError(f"--mode {self.mode}: the modes are {' and '.join(MODES)}")
        if self.room and self.mode != "devdax":
            raise UsageError(
                "--isolated-room needs --mode devdax: isolated namespaces have DAX devices "
                "of their own"
            )
        if self.room:
            object.__setattr__(self, "room", round_up(self.room, SLAB))

    def differences(self, record: Record) -> list[str]:
        """Where the record's pool differs from this, in words."""
        there = record.cxl
        if there is None:
            return ["kind: it is an emulated pool, asked is one of CXL devices"]
        found = []
        have = {device for region in there.regions for device in region.devices}
        if have != set(self.devices):
            found.append(
                f"devices: it has {', '.join(sorted(have))}, asked are "
                f"{', '.join(sorted(self.devices))}"
            )
        size = sum(region.bytes for region in there.regions)
        if self.bytes is not None and self.bytes != size:
            found.append(
                f"size: it has {format_size(size)}, asked is {format_size(self.bytes)}"
            )
        grains = {region.granularity for region in there.regions if region.ways > 1}
        if self.granularity is not None and grains - {self.granularity}:
            found.append(
                f"granularity: it has {', '.join(map(str, sorted(grains)))}, asked is "
                f"{self.granularity}"
            )
        if self.mode != there.mode:
            found.append(f"mode: it has {there.mode}, asked is {self.mode}")
        if self.room != there.room:
            found.append(
                f"room for isolated namespaces: it has {format_size(there.room)}, asked is "
                f"{format_size(self.room)}"
            )
        return found


def meta_bytes(data: int) -> int:
    """Of the metadata extent for so many bytes of data: tables, a header of 128 bytes for
    each 16 KiB, and room for namespaces. A multiple of 2 MiB, as DAX devices are."""
    tables = round_up(data // SLAB * 8, META_SLAB) + MOST_EXTENTS * META_SLAB
    return round_up(tables + data // 128 + META_REST, SLAB)


def divide(name: str, regions: Sequence[int], room: int, split: bool) -> list[tuple[int, ...]]:
    """Bytes of the dax devices of each region: its data, then in the first the metadata.

    regions: their bytes. room: left over in the first one. split: False puts the metadata
    elsewhere. Raises CtlError where nothing would be left for data.
    """
    first, *others = regions
    meta = meta_bytes(max(0, sum(regions) - room)) if split else 0
    data = (first - meta - room) // SLAB * SLAB
    if data < LEAST_DATA:
        raise CtlError(
            f"pool '{name}': {format_size(first)} of the first region less "
            f"{format_size(meta)} of metadata and {format_size(room)} for isolated namespaces "
            "leave nothing for data",
            object=name,
            hint="a smaller --isolated-room, or more --size",
        )
    return [(data, meta) if split else (data,), *((size,) for size in others)]
