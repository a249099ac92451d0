# SPDX-License-Identifier: Apache-2.0
"""Situations that are there when a machine has booted: made by firmware or by the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cxlsim import regions
from cxlsim.parts import DaxDevice, DaxRegion, Region, State

if TYPE_CHECKING:
    from cxlsim.kernel import Kernel

__all__ = ["SITUATIONS", "Situation", "arrange"]


@dataclass(frozen=True, slots=True)
class Situation:
    """what: for a person. make: changes a machine that has just booted."""

    what: str
    make: Callable[[Kernel], None]
    options: Mapping[str, Any] = field(default_factory=dict)


def arrange(kernel: Kernel, name: str) -> None:
    kernel.change(lambda: SITUATIONS[name].make(kernel))


def _region(kernel: Kernel) -> Region:
    """A region of all devices, as firmware leaves it: committed and bound."""
    window = max(kernel.windows, key=lambda w: (w.ways, w.bytes))
    below = {b: [m for m in kernel.memdevs if m.bridge is b] for b in window.bridges}
    count = min(len(found) for found in below.values())
    members = [below[b][n] for n in range(count) for b in window.bridges]
    each = min(m.bytes for m in members)
    region = regions.create(kernel, window, f"region{window.next_id}")
    region.auto = True
    regions.set_granularity(region, str(window.granularity))
    regions.set_ways(region, str(len(members)))
    regions.set_size(region, str(each * len(members)))
    for position, memdev in enumerate(members):
        decoder = memdev.decoders[0]
        decoder.mode, decoder.dpa_bytes = "ram", each
        regions.attach(kernel, region, position, decoder)
    regions.commit(kernel, region, "1")
    return region


def _bound(kernel: Kernel) -> DaxDevice:
    region = _region(kernel)
    kernel.dax_delay, delay = 0.0, kernel.dax_delay  # it is long since, at boot
    regions.bind(kernel, region)
    kernel.dax_delay = delay
    if region.dax is None:
        raise RuntimeError("firmware's region has no dax device")
    return region.dax.devices[0]


def _devdax(kernel: Kernel) -> None:
    kernel.dax.autoprobe = False
    device = _bound(kernel)
    kernel.dax.new_id(kernel.dax.drivers[0], device.name)
    kernel.dax.autoprobe = True


def _kmem(kernel: Kernel) -> None:
    _bound(kernel)


def _ram(kernel: Kernel) -> None:
    region = _region(kernel)
    kernel.memory.firmware.append((region.start, region.bytes))
    regions.bind(kernel, region)


def _hmem(kernel: Kernel) -> None:
    window = kernel.windows[0]
    for memdev in kernel.memdevs:
        memdev.plugged = False
        kernel.media.gone.add(memdev)
    size = sum(m.bytes for m in kernel.memdevs)
    number = kernel.free_region_id()
    at = f"/sys/devices/platform/hmem.{number}"
    home = DaxRegion(number, window.start, size, window.node, at, None)
    kernel.dax.regions.append(home)
    kernel.dax.add_device(home)


def _hmem_devdax(kernel: Kernel) -> None:
    kernel.dax.autoprobe = False
    _hmem(kernel)
    kernel.dax.new_id(kernel.dax.drivers[0], kernel.dax.devices[0].name)
    kernel.dax.autoprobe = True


def _no_endpoint(kernel: Kernel) -> None:
    kernel.memdevs[0].probed = False


def _no_driver(kernel: Kernel) -> None:
    kernel.memdevs[0].bound = False


def _no_region(kernel: Kernel) -> None:
    """Decoders are committed, and the kernel has put no region together from them."""
    region = _region(kernel)
    for decoder in region.members:
        decoder.region = None
    for port in kernel.routes.ports:
        for switch in port.decoders:
            if switch.region is region:
                switch.region = None
    region.window.regions.remove(region)
    region.state = State.IDLE


SITUATIONS = {
    "devdax": Situation("region and dax device, driver device_dax", _devdax),
    "kmem-offline": Situation(
        "region and dax device, kmem, no block online", _kmem, {"auto_online": "offline"}
    ),
    "kmem-online-movable": Situation(
        "kmem, all blocks online in Movable", _kmem, {"auto_online": "online_movable"}
    ),
    "kmem-online-normal": Situation(
        "kmem, all blocks online in Normal", _kmem, {"auto_online": "online"}
    ),
    "system-ram": Situation("region without a dax device: System RAM from boot", _ram),
    "hmem": Situation("hmem dax device with kmem, no region, no memdev", _hmem),
    "hmem-offline": Situation(
        "the same, its blocks offline", _hmem, {"auto_online": "offline"}
    ),
    "hmem-devdax": Situation("the same with device_dax", _hmem_devdax),
    "no-endpoint": Situation("the first device has a memdev and no endpoint", _no_endpoint),
    "no-driver": Situation("the first device has no cxl_pci", _no_driver),
    "committed-no-region": Situation("decoders committed, no region", _no_region),
}
