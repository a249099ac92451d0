# SPDX-License-Identifier: Apache-2.0
"""The CXL machines that QEMU can make: host bridges, switches, devices and windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

__all__ = ["TOPOLOGIES", "Topology", "Window", "find"]

_MIB = 1 << 20


@dataclass(frozen=True)
class Window:
    """Physical addresses that lead to these host bridges, in this order."""

    bridges: tuple[int, ...]
    size: str = "4G"
    granularity: int = 256  # bytes; counts where there is more than one bridge


@dataclass(frozen=True)
class Topology:
    """Attributes:
    ports: root ports below each host bridge.
    devices: the port that each device sits in: "rp00" is port 0 of bridge 0, "down2" the
        switch's port 2.
    switch: downstream ports of a switch in rp00; 0 for no switch.
    sizes: of the devices in MiB, multiples of 256; the last one counts for the rest.
    serials: 0x100, 0x101 ... where True; else all devices have serial 0.
    """

    name: str
    ports: tuple[int, ...]
    devices: tuple[str, ...]
    windows: tuple[Window, ...]
    switch: int = 0
    sizes: tuple[int, ...] = (256,)
    serials: bool = True

    def size(self, device: int) -> int:
        """In bytes."""
        return self.sizes[min(device, len(self.sizes) - 1)] * _MIB

    def serial(self, device: int) -> int:
        return 0x100 + device if self.serials else 0

    def arguments(self, folder: Path) -> list[str]:
        """For QEMU. The devices' contents are the files mem0, mem1 ... in the folder."""
        words = ["-M", ",".join(self._windows())] if self.windows else []
        slot = 2
        for bridge, count in enumerate(self.ports):
            bus = 12 + 40 * bridge
            words += _device("pxb-cxl", f"bridge{bridge}", bus="pcie.0", bus_nr=bus)
            for port in range(count):
                slot += 1
                name = f"rp{bridge}{port}"
                on = f"bridge{bridge}"
                words += _device("cxl-rp", name, bus=on, port=port, chassis=bridge, slot=slot)
        if self.switch:
            words += _device(
                "cxl-upstream", "switch", bus="rp00", addr="0.0", multifunction="on"
            )
            for port in range(self.switch):
                words += _device(
                    *("cxl-downstream", f"down{port}"),
                    bus="switch",
                    port=port,
                    chassis=8,
                    slot=40 + port,
                )
        for device, place in enumerate(self.devices):
            words += self._memory(device, place, folder / f"mem{device}")
        return words

    def _windows(self) -> list[str]:
        parts = []
        for number, window in enumerate(self.windows):
            for position, bridge in enumerate(window.bridges):
                parts.append(f"cxl-fmw.{number}.targets.{position}=bridge{bridge}")
            parts.append(f"cxl-fmw.{number}.size={window.size}")
            if len(window.bridges) > 1:
                parts.append(f"cxl-fmw.{number}.interleave-granularity={window.granularity}")
        return parts

    def _memory(self, device: int, place: str, file: Path) -> list[str]:
        back = f"memory-backend-file,id=back{device},share=on,mem-path={file}"
        return [
            *("-object", f"{back},size={self.size(device)}"),
            *("-object", f"memory-backend-ram,id=label{device},size=1M"),
            *_device(
                *("cxl-type3", f"mem{device}"),
                **{"bus": place, "volatile-memdev": f"back{device}", "lsa": f"label{device}"},
                sn=hex(self.serial(device)),
            ),
        ]


def _device(driver: str, name: str, **properties: object) -> list[str]:
    given = "".join(f",{key}={value}" for key, value in properties.items())
    return ["-device", f"{driver},id={name}{given}"]


def _ports(bridges: int, each: int) -> tuple[str, ...]:
    return tuple(f"rp{b}{p}" for b in range(bridges) for p in range(each))


def _one(count: int) -> Topology:
    """Devices below one host bridge."""
    return Topology(f"1hb{count}", (count,), _ports(1, count), (Window((0,)),))


def _two(devices: int, granularity: int = 256) -> Topology:
    """Two bridges; a window to each, and one over both."""
    each = devices // 2
    suffix = {256: "", 4096: "g4k"}[granularity]
    windows = (Window((0,), "2G"), Window((1,), "2G"), Window((0, 1), "4G", granularity))
    return Topology(f"2hb{devices}{suffix}", (each, each), _ports(2, each), windows)


def _switch(devices: int) -> Topology:
    ports = tuple(f"down{n}" for n in range(devices))
    return Topology(f"sw{devices}", (2,), ports, (Window((0,)),), switch=devices)


_FOUR = Topology(
    "4hb4",
    (1, 1, 1, 1),
    _ports(4, 1),
    (Window((0, 1, 2, 3)), *(Window((b,), "1G") for b in range(4))),
)

# No window leads to both bridges: hardware cannot interleave all three devices.
_APART = Topology(
    "2hb3apart", (2, 1), ("rp00", "rp01", "rp10"), (Window((0,), "2G"), Window((1,), "2G"))
)

TOPOLOGIES = {
    t.name: t
    for t in (
        Topology("none", (), (), ()),
        _one(1),
        _one(2),
        _one(4),
        _two(2),
        _two(4),
        _two(2, 4096),
        _two(4, 4096),
        _FOUR,
        _APART,
        _switch(2),
        _switch(4),
        replace(_one(2), name="1hb2mixed", sizes=(256, 512)),
        replace(_one(2), name="1hb2nameless", serials=False),
    )
}


def find(name: str) -> Topology:
    """Raises SystemExit naming what there is."""
    if name not in TOPOLOGIES:
        raise SystemExit(f"no topology {name}; there are {', '.join(TOPOLOGIES)}")
    return TOPOLOGIES[name]
