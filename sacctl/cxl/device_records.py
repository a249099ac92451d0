# SPDX-License-Identifier: Apache-2.0
"""Records of devices, windows, regions and dax devices: plain dicts, as `-o json` has them.

docs/json.md is the same for users. Sizes and addresses are bytes; an address that this user
may not know is None. Keys are only ever added.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

__all__ = [
    "BlocksRecord",
    "DaxRecord",
    "DecoderRecord",
    "DeviceRecord",
    "LinkRecord",
    "PortRecord",
    "RegionRecord",
    "SkippedRecord",
    "WindowRecord",
]


class LinkRecord(TypedDict):
    """A PCIe link; speeds in GT/s."""

    speed: float
    width: int
    max_speed: float
    max_width: int
    degraded: bool


class DecoderRecord(TypedDict):
    """An endpoint decoder."""

    name: str
    mode: str
    dpa_start: int | None
    dpa_bytes: int
    region: str
    locked: bool


class DeviceRecord(TypedDict):
    """A memory device. The keys from decoders on only in `device show`; of those, what the
    device does not report is not there."""

    name: str
    serial: str
    identity: str
    pci: str
    vendor: str
    device: str
    vendor_name: str
    product_name: str
    ram_bytes: int
    pmem_bytes: int
    used_bytes: int
    free_bytes: int
    numa_node: int
    target_nodes: list[int]
    link: LinkRecord | None
    host_bridge: str
    ports: list[str]
    dports: list[str]
    switches: list[str]
    endpoint: str
    driver: str
    health: str
    pools: list[str]
    regions: list[str]
    dax: list[str]
    verdict: str
    why: str
    hint: str
    decoders: NotRequired[list[DecoderRecord]]
    decoders_committed: NotRequired[int]
    firmware: NotRequired[str]
    security: NotRequired[str]
    aer: NotRequired[dict[str, int]]
    path: NotRequired[str]
    temperature: NotRequired[int]
    life_used_percent: NotRequired[int]
    conditions: NotRequired[list[str]]
    errors: NotRequired[dict[str, int]]
    alerts: NotRequired[dict[str, int]]
    poison: NotRequired[list[dict[str, Any]]]


class BlocksRecord(TypedDict):
    """Memory blocks of the kernel."""

    total: int
    online: int
    zones: list[str]


class DaxRecord(TypedDict):
    """A dax device."""

    name: str
    kind: str
    bytes: int
    align: int
    start: int | None
    target_node: int
    driver: str
    region: str
    path: str
    region_bytes: int
    available_bytes: int
    blocks: BlocksRecord


class RegionRecord(TypedDict):
    """A region; targets and devices by position, "" where one is missing."""

    name: str
    window: str
    start: int | None
    bytes: int
    ways: int
    granularity: int
    targets: list[str]
    devices: list[str]
    committed: bool
    mode: str
    driver: str
    dax: list[str]


class WindowRecord(TypedDict):
    """A root decoder."""

    name: str
    start: int | None
    bytes: int
    free_bytes: int
    ways: int
    granularity: int
    targets: list[str]
    ram: bool
    locked: bool
    regions: list[str]


class PortRecord(TypedDict):
    """A host bridge's port or a switch's."""

    name: str
    kind: str
    parent: str
    at: str
    above: str
    driver: str
    decoders: int
    committed: int


class SkippedRecord(TypedDict):
    """What was seen and is no device."""

    name: str
    why: str
    hint: str
