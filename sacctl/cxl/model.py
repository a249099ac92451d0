# SPDX-License-Identifier: Apache-2.0
"""What CXL and DAX objects there are: one reading of the machine, which nothing changes.

Sizes and addresses in bytes. An address that only root may read is None for others. A name
that is missing (no driver, no region) is "".
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "Block",
    "DaxDevice",
    "EndpointDecoder",
    "Link",
    "Memdev",
    "Policy",
    "Port",
    "Region",
    "RootDecoder",
    "Skipped",
    "Topology",
]


@dataclass(frozen=True, slots=True)
class Link:
    """A PCIe link: now, and what device and slot could do. speed in GT/s."""

    speed: float
    width: int
    max_speed: float
    max_width: int

    @property
    def degraded(self) -> bool:
        return self.speed < self.max_speed or self.width < self.max_width


@dataclass(frozen=True, slots=True)
class EndpointDecoder:
    """Of a device. mode: "ram", "pmem", "mixed" or "none". dpa_bytes 0: it is free.

    The kernel takes the decoders of an endpoint in increasing order and frees them in
    decreasing order.
    """

    name: str  # "decoder3.0"
    mode: str
    dpa_start: int | None  # None also while dpa_bytes is 0
    dpa_bytes: int
    region: str
    locked: bool


@dataclass(frozen=True, slots=True)
class Memdev:
    """A CXL memory device.

    Attributes:
        name: "mem0", new at each boot. Its file is /dev/cxl/mem0.
        serial: 0 where the device has none. pci: "0000:0d:00.0".
        host_bridge: the root's dport that it is below, such as "pci0000:0c"; "" if unknown.
        ports: from the host bridge's port down to the endpoint's parent: ("port1",) without a
            switch, ("port1", "port4") below one.
        dports: the dport taken at each of ports: PCI addresses.
        endpoint: "endpoint3"; "" where the driver made none, with why in problem.
        numa_node: of the device's PCI slot, -1 where unknown.
        aer: AER counters: {"correctable": n, "nonfatal": n, "fatal": n}; empty if not there.
        committed: decoders of the endpoint that are committed; more than its regions where
            firmware or the kernel before a kexec programmed them.
        path: its folder in /sys/devices.
    """

    name: str
    serial: int
    pci: str
    vendor: int
    device: int
    firmware: str
    numa_node: int
    ram_bytes: int
    pmem_bytes: int
    driver: str
    host_bridge: str
    ports: tuple[str, ...]
    dports: tuple[str, ...]
    endpoint: str
    decoders: tuple[EndpointDecoder, ...]
    link: Link | None
    aer: dict[str, int] = field(default_factory=dict)
    security: str = ""
    problem: str = ""
    committed: int = 0
    path: str = ""

    @property
    def used_bytes(self) -> int:
        """RAM capacity that decoders have taken."""
        return sum(d.dpa_bytes for d in self.decoders if d.mode in ("ram", "mixed"))

    @property
    def free_bytes(self) -> int:
        return max(0, self.ram_bytes - self.used_bytes)

    @property
    def identity(self) -> str:
        """What names it over reboots: "serial:0x100", or "pci:0000:0d:00.0" without one."""
        return f"serial:{self.serial:#x}" if self.serial else f"pci:{self.pci}"


@dataclass(frozen=True, slots=True)
class Port:
    """A host bridge's port, or a switch's.

    Attributes:
        kind: "bridge" or "switch".
        parent: the port above: "root0", "port1".
        at: what it is of: "pci0000:0c" of a bridge, the PCI address of a switch's upstream
            port.
        above: the dport of the parent that leads here, as in Memdev.dports.
        driver: "cxl_port", or "".
        decoders, committed: how many it has, and how many of them are programmed.
    """

    name: str
    kind: str
    parent: str
    at: str
    above: str
    driver: str
    decoders: int
    committed: int


@dataclass(frozen=True, slots=True)
class RootDecoder:
    """A window of physical addresses that leads to CXL.

    Attributes:
        targets: host bridges by position, as Memdev.host_bridge; as many as ways.
        granularity: of the window; binding for regions only where ways > 1.
        free_bytes: of the window, less its regions; the largest hole where it is known.
        regions: names.
    """

    name: str  # "decoder0.2"
    start: int | None
    bytes: int
    ways: int
    granularity: int
    targets: tuple[str, ...]
    ram: bool  # volatile memory may be mapped here
    locked: bool
    free_bytes: int
    regions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """Attributes: targets: endpoint decoders by position, "" for none. dax: names."""

    name: str
    root: str
    start: int | None
    bytes: int
    ways: int
    granularity: int
    targets: tuple[str, ...]
    committed: bool
    mode: str
    driver: str  # "cxl_region" once bound
    dax: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DaxDevice:
    """Attributes:
    kind: "cxl" (of a region), "hmem" (from firmware's tables), "other".
    driver: "device_dax", "kmem", "fsdev_dax" or "".
    path: its folder in /sys/devices; folder: of its dax_region attributes ("" where none).
    region_bytes, available_bytes: of that dax_region.
    """

    name: str  # "dax2.0"
    kind: str
    bytes: int
    align: int
    start: int | None
    target_node: int
    driver: str
    region: str
    path: str
    folder: str
    region_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Block:
    """A memory block of the kernel that lies in CXL memory or a dax device."""

    number: int
    start: int
    state: str  # "online", "offline", "going-offline"
    zones: str  # of valid_zones: "Movable", "Normal", "Normal Movable", "none"
    removable: bool


@dataclass(frozen=True, slots=True)
class Policy:
    """Attributes: auto_online: of auto_online_blocks: "offline", "online", "online_kernel",
    "online_movable"; autoprobe: of the dax bus; None where the attribute is not there.
    drivers: of the dax bus that are loaded. block_bytes: of memory hotplug.
    """

    auto_online: str
    autoprobe: bool | None
    drivers: tuple[str, ...]
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was seen and cannot be used. why: a reason for a person."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Topology:
    """One reading. All tuples sorted by name's number.

    Attributes:
        skipped: what was seen and is in none of the others.
        bridges: the root's dports: names of host bridges, also of those without a window.
    """

    memdevs: tuple[Memdev, ...]
    roots: tuple[RootDecoder, ...]
    regions: tuple[Region, ...]
    dax: tuple[DaxDevice, ...]
    policy: Policy
    skipped: tuple[Skipped, ...]
    kernel: str  # release, such as "6.12.0"
    ports: tuple[Port, ...] = ()
    bridges: tuple[str, ...] = ()

    def memdev(self, name: str) -> Memdev | None:
        return next((m for m in self.memdevs if m.name == name), None)

    def region(self, name: str) -> Region | None:
        return next((r for r in self.regions if r.name == name), None)

    def root(self, name: str) -> RootDecoder | None:
        return next((r for r in self.roots if r.name == name), None)

    def dax_device(self, name: str) -> DaxDevice | None:
        return next((d for d in self.dax if d.name == name), None)

    def owner_of(self, decoder: str) -> Memdev | None:
        """The device that an endpoint decoder belongs to."""
        return next(
            (m for m in self.memdevs if any(d.name == decoder for d in m.decoders)), None
        )
