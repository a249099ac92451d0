# SPDX-License-Identifier: Apache-2.0
"""What the simulated machine is made of, and in which state each part is. Bytes throughout."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

__all__ = [
    "ALIGN",
    "GRAIN",
    "Bridge",
    "DaxDevice",
    "DaxRegion",
    "Decoder",
    "Memdev",
    "Port",
    "Region",
    "Shown",
    "State",
    "SwitchDecoder",
    "Window",
]

GRAIN = 256 << 20  # of HPA and DPA, as the kernel gives them out
ALIGN = 2 << 20  # of dax devices


class State(IntEnum):
    """Of a region, as the kernel's enum cxl_config_state."""

    IDLE = 0
    INTERLEAVE = 1  # ways, granularity and size are set
    ACTIVE = 2  # every target is there
    COMMITTED = 3


@dataclass(eq=False)
class Bridge:
    """A host bridge. uid: of ACPI, which is its bus number; path: of its PCI root."""

    uid: int
    path: str

    @property
    def name(self) -> str:
        return f"pci0000:{self.uid:02x}"


@dataclass
class Shown:
    """What a decoder's files say. The kernel takes little of it back: a decoder without a
    region goes on showing the ways of the last one."""

    ways: int = 1
    granularity: int = 256
    targets: tuple[int, ...] = (0,)
    start: int = 0
    size: int = 0


@dataclass(eq=False)
class SwitchDecoder:
    """below: devices of its region. ways: downstream ports that they were counted for; a
    device that leaves is not taken off, which the kernel does not do either."""

    port: Port
    number: int
    region: Region | None = None
    committed: bool = False
    below: list[Memdev] = field(default_factory=list)
    ways: int = 0
    shown: Shown = field(default_factory=Shown)

    @property
    def name(self) -> str:
        return f"decoder{self.port.number}.{self.number}"


@dataclass(eq=False)
class Port:
    """A host bridge's port, or a switch's. path: its folder. dports: PCI paths by id."""

    number: int
    path: str
    uport: str
    parent_dport: str
    parent: Port | None
    dports: dict[int, str]
    decoders: list[SwitchDecoder] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"port{self.number}"

    @property
    def passes(self) -> bool:
        """A bridge with one slot passes all on: its one decoder is none in the hardware, is
        for one region at a time, and never counts as committed."""
        return self.parent is None and len(self.dports) == 1


@dataclass(eq=False)
class Decoder:
    """Of an endpoint."""

    memdev: Memdev
    number: int
    mode: str = "none"
    dpa_start: int = 0
    dpa_bytes: int = 0
    region: Region | None = None
    position: int = -1
    committed: bool = False
    shown: Shown = field(default_factory=Shown)

    @property
    def name(self) -> str:
        return f"decoder{self.memdev.endpoint}.{self.number}"


@dataclass(eq=False)
class Memdev:
    """A device and its endpoint. pci: its address; path: its PCI folder; dport: its slot's.

    bound: cxl_pci has it. plugged: it is in its slot. probed: cxl_mem has made the endpoint.
    """

    number: int
    endpoint: int
    serial: int
    bytes: int
    pci: str
    path: str
    dport: str
    bridge: Bridge
    port: Port
    index: int  # position in the topology: the host's file of it is memINDEX
    decoders: list[Decoder] = field(default_factory=list)
    bound: bool = True
    plugged: bool = True
    probed: bool = True
    speed: str = "32.0"
    width: int = 16
    aer: dict[str, dict[str, int]] = field(default_factory=dict)
    poison: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        return f"mem{self.number}"

    @property
    def present(self) -> bool:
        return self.plugged and self.bound

    @property
    def folder(self) -> str:
        """Of the endpoint."""
        return f"{self.port.path}/endpoint{self.endpoint}"

    @property
    def taken(self) -> int:
        """How many decoders have capacity."""
        return sum(1 for d in self.decoders if d.dpa_bytes)


@dataclass(eq=False)
class Window:
    """A root decoder. next_id: what create_ram_region shows."""

    number: int
    start: int
    bytes: int
    bridges: list[Bridge]
    granularity: int
    next_id: int = 0
    regions: list[Region] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"decoder0.{self.number}"

    @property
    def ways(self) -> int:
        return len(self.bridges)

    @property
    def node(self) -> int:
        """The NUMA node that memory of the window gets: node 0 is the machine's own."""
        return self.number + 1


@dataclass(eq=False)
class Region:
    """targets: by position, as many as ways. start: -1 without a size.

    damaged: a target was written twice, so the next good write of one crashes the kernel.
    """

    id: int
    window: Window
    ways: int = 0
    granularity: int = 0
    start: int = -1
    bytes: int = 0
    targets: list[Decoder | None] = field(default_factory=list)
    state: State = State.IDLE
    bound: bool = False
    damaged: bool = False
    auto: bool = False  # made by firmware
    dax: DaxRegion | None = None

    @property
    def name(self) -> str:
        return f"region{self.id}"

    @property
    def members(self) -> list[Decoder]:
        return [t for t in self.targets if t is not None]


@dataclass(eq=False)
class DaxRegion:
    """folder: of the device that has it. region: None for hmem."""

    id: int
    start: int
    bytes: int
    node: int
    folder: str
    region: Region | None
    devices: list[DaxDevice] = field(default_factory=list)
    seed: DaxDevice | None = None
    youngest: DaxDevice | None = None

    @property
    def available(self) -> int:
        return self.bytes - sum(d.bytes for d in self.devices)

    @property
    def end(self) -> int:
        return self.start + self.bytes


@dataclass(eq=False)
class DaxDevice:
    """ranges: (start, bytes) in the order they were given. minor: of its device node.

    failed: device_dax could not take it once, so it says something else the next time.
    damaged: somebody had its file open from before when device_dax took it again; the kernel
    counts wrong then, and crashes when the device goes.
    """

    home: DaxRegion
    id: int
    minor: int
    ranges: list[tuple[int, int]] = field(default_factory=list)
    driver: str = ""
    align: int = ALIGN
    memmap: bool = True
    failed: bool = False
    damaged: bool = False

    @property
    def name(self) -> str:
        return f"dax{self.home.id}.{self.id}"

    @property
    def folder(self) -> str:
        return f"{self.home.folder}/{self.name}"

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.ranges)
