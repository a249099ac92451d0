# SPDX-License-Identifier: Apache-2.0
"""A region on a simulated machine, made by plain writes: for tests of the machine itself."""

from __future__ import annotations

import cxlsim
from steps.names import Names, bare

__all__ = ["make", "take", "writes"]


def writes(
    machine: cxlsim.Machine, order: list[int], granularity: int = 256
) -> list[tuple[str, str]]:
    """(path, value) for a region of these devices, by their place in the order of serials."""
    names = Names(machine.sysfs)
    window = names.fill("{wide}")
    region = machine.sysfs.read(bare(f"{window}/create_ram_region"))
    decoders = [names.fill(f"{{d{n}}}") for n in order]
    size = min(machine.memdev(0x100 + n).bytes for n in order)
    todo = [
        (f"{window}/create_ram_region", region),
        (f"{region}/interleave_granularity", str(granularity)),
        (f"{region}/interleave_ways", str(len(order))),
        (f"{region}/size", str(size * len(order))),
    ]
    for position, decoder in enumerate(decoders):
        todo += [
            (f"{decoder}/mode", "ram"),
            (f"{decoder}/dpa_size", str(size)),
            (f"{region}/target{position}", decoder),
        ]
    todo += [(f"{region}/commit", "1"), ("/sys/bus/cxl/drivers/cxl_region/bind", region)]
    return [(bare(path), value) for path, value in todo]


def make(machine: cxlsim.Machine, order: list[int], granularity: int = 256) -> str:
    """Makes it; its name. Raises OSError."""
    todo = writes(machine, order, granularity)
    for path, value in todo:
        machine.sysfs.write(path, value)
    return todo[0][1]


def take(machine: cxlsim.Machine, dax: str) -> None:
    """device_dax takes the dax device."""
    machine.sysfs.write("/sys/bus/dax/drivers/device_dax/new_id", dax)
