# SPDX-License-Identifier: Apache-2.0
"""Topologies by name: which bridges, slots, devices and windows a machine has."""

from __future__ import annotations

import random
from dataclasses import dataclass

from cxlsim.parts import Bridge, Decoder, Memdev, Port, SwitchDecoder, Window

__all__ = ["SHAPES", "Parts", "Shape", "build"]

_ROOT = "/sys/devices/platform/ACPI0017:00/root0"
_FIRST = 0x3D0000000  # where QEMU places the first window
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Shape:
    """bridges: devices below each. switch: all of the devices are below one, at the first
    root port. windows: (bridges by position, bytes, granularity)."""

    bridges: tuple[int, ...]
    windows: tuple[tuple[tuple[int, ...], int, int], ...]
    switch: bool = False


def _two(each: int, granularity: int) -> Shape:
    return Shape(
        (each, each),
        (
            ((0,), 2 * _GIB, 256),
            ((1,), 2 * _GIB, 256),
            ((0, 1), 4 * _GIB, granularity),
        ),
    )


SHAPES = {
    **{f"1hb{n}": Shape((n,), (((0,), 4 * _GIB, 256),)) for n in (1, 2, 4, 8)},
    "2hb2": _two(1, 256),
    "2hb4": _two(2, 256),
    "2hb2g4k": _two(1, 4096),
    "2hb4g4k": _two(2, 4096),
    "4hb4": Shape(
        (1, 1, 1, 1),
        (((0, 1, 2, 3), 4 * _GIB, 256), *(((h,), _GIB, 256) for h in range(4))),
    ),
    **{f"sw{n}": Shape((n,), (((0,), 4 * _GIB, 256),), switch=True) for n in (2, 4)},
}


@dataclass(slots=True)
class Parts:
    bridges: list[Bridge]
    ports: list[Port]
    memdevs: list[Memdev]
    windows: list[Window]


def build(shape: Shape, sizes: list[int], serials: list[int], chance: random.Random) -> Parts:
    """The machine's parts, with names as a kernel gives them: in no order to rely on."""
    bridges = [
        Bridge(12 + 40 * h, f"/sys/devices/pci0000:{12 + 40 * h:02x}")
        for h in range(len(shape.bridges))
    ]
    scale = max(1, max(sizes) // (256 << 20))
    windows, start = [], _FIRST
    for number, (targets, size, granularity) in enumerate(shape.windows):
        by = [bridges[t] for t in targets]
        windows.append(Window(number, start, size * scale, by, granularity, number))
        start += size * scale
    count = sum(shape.bridges)
    bridge_numbers = list(range(1, len(bridges) + 1))
    chance.shuffle(bridge_numbers)
    first = len(bridges) + 1 + shape.switch
    endpoints = list(range(first, first + count))
    names = list(range(count))
    chance.shuffle(endpoints)
    chance.shuffle(names)
    ports: list[Port] = []
    memdevs: list[Memdev] = []
    for bridge, below, port_number in zip(bridges, shape.bridges, bridge_numbers, strict=True):
        slots = 2 if shape.switch else below
        dports = {n: f"{bridge.path}/0000:{bridge.uid:02x}:{n:02x}.0" for n in range(slots)}
        path = f"{_ROOT}/port{port_number}"
        port = _port(port_number, path, bridge.path, bridge.path, None, dports)
        ports.append(port)
        bus = bridge.uid + 1
        if shape.switch:
            up = f"{dports[0]}/0000:{bus:02x}:00.0"
            down = {n: f"{up}/0000:{bus + 1:02x}:{n:02x}.0" for n in range(below)}
            number = len(bridges) + 1
            port = _port(number, f"{path}/port{number}", up, dports[0], port, down)
            ports.append(port)
            bus += 2
        for slot in range(below):
            index = len(memdevs)
            address = f"0000:{bus + slot:02x}:00.0"
            at = port.dports[slot]
            memdev = Memdev(
                names[index],
                endpoints[index],
                serials[index],
                sizes[index],
                address,
                f"{at}/{address}",
                at,
                bridge,
                port,
                index,
            )
            memdev.decoders = [Decoder(memdev, n) for n in range(4)]
            memdevs.append(memdev)
    return Parts(bridges, ports, memdevs, windows)


def _port(
    number: int,
    path: str,
    uport: str,
    parent_dport: str,
    parent: Port | None,
    dports: dict[int, str],
) -> Port:
    port = Port(number, path, uport, parent_dport, parent, dports)
    port.decoders = [SwitchDecoder(port, n) for n in range(1 if port.passes else 4)]
    if port.passes:
        port.decoders[0].shown.granularity = 4096
    return port
