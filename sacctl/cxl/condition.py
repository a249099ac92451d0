# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the CXL devices of pools: conditions with the codes of docs/health.md.

Looks at one reading of the machine and changes nothing. What a reading cannot tell, such as
how fast error counters grow, comes from a :class:`History`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacctl.cxl.model import Memdev, Topology
from sacctl.cxl.read_blocks import blocks_of
from sacctl.cxl.sysfs import Sysfs

__all__ = ["Condition", "History", "Use", "conditions", "named", "uses"]

WINDOW = 3600.0  # seconds that growth is counted over
APART = 60.0  # between looks that are remembered
MANY = 10  # corrected errors within it
KINDS = ("correctable", "nonfatal", "fatal")


@dataclass(frozen=True, slots=True)
class Condition:
    """A finding on one object. code: of health_codes.py. hint "": what the code says."""

    code: str
    object: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """A region of a pool. devices: identities as Memdev.identity. dax: names."""

    pool: str
    mode: str  # "devdax" or "system-ram"
    region: str
    devices: tuple[str, ...]
    dax: tuple[str, ...]


def uses(pools: Iterable[Mapping[str, Any]]) -> list[Use]:
    """What the pools of these records (``pool.list``) use; of others than CXL pools nothing."""
    return [
        Use(
            pool["name"],
            pool["cxl"]["mode"],
            region["region"],
            tuple(region["devices"]),
            tuple(region["dax"]),
        )
        for pool in pools
        if pool.get("cxl")
        for region in pool["cxl"]["regions"]
    ]


class History:
    """Error counters of devices over the last hour. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looks: deque[tuple[float, dict[str, dict[str, int]]]] = deque()

    def note(self, topology: Topology) -> None:
        """Remembers this look."""
        now = self._clock()
        with self._lock:
            # Looks may come several a second; a few an hour are enough to tell growth.
            if len(self._looks) > 1 and now - self._looks[-2][0] < APART:
                self._looks.pop()
            self._looks.append((now, {m.identity: dict(m.aer) for m in topology.memdevs}))
            while len(self._looks) > 2 and now - self._looks[1][0] > WINDOW:
                self._looks.popleft()

    def grown(self, device: Memdev, kind: str) -> int:
        """How many errors more than an hour ago, or than at the first look."""
        with self._lock:
            counts = [
                look[device.identity].get(kind, 0)
                for _, look in self._looks
                if device.identity in look
            ]
        # The least, not the first: a device that was away counts from 0 again.
        return device.aer.get(kind, 0) - min(counts) if counts else 0


def conditions(
    sysfs: Sysfs, topology: Topology, used: Sequence[Use], history: History | None = None
) -> list[Condition]:
    """All that can be seen in sysfs. Without a history growth is not known. Raises nothing."""
    found: list[Condition] = []
    seen: set[str] = set()
    for use in used:
        for identity in use.devices:
            if identity.startswith("hmem:"):
                continue  # of memory from firmware's tables the device is not known
            device = next((m for m in topology.memdevs if m.identity == identity), None)
            if device is None:
                found.append(
                    Condition(
                        "SAC501",
                        f"{use.pool} {identity}",
                        f"device {identity} of pool {use.pool} is not there",
                    )
                )
            elif identity not in seen:
                seen.add(identity)
                found += _device(device, history)
        found += _region(topology, use)
        for name in use.dax:
            found += _dax(sysfs, topology, use, name)
    return found


def named(device: Memdev) -> str:
    """How findings call it: "mem0 (serial:0x100)"; the number changes, the rest stays."""
    return f"{device.name} ({device.identity})"


def _device(device: Memdev, history: History | None) -> Iterator[Condition]:
    on = named(device)
    problem = device.problem or ("" if device.endpoint else "it has no endpoint")
    if not device.driver:
        problem = "no driver is bound to it"
    elif device.security == "locked":
        problem = "it is locked"
    if problem:
        yield Condition("SAC502", on, problem)
    link = device.link
    if link is not None and link.degraded:
        yield Condition(
            "SAC503",
            on,
            f"its link runs at {link.speed:g} GT/s x{link.width}; {link.max_speed:g} GT/s "
            f"x{link.max_width} is possible",
        )
    yield from _errors(device, on, history)


def _errors(device: Memdev, on: str, history: History | None) -> Iterator[Condition]:
    grown = {kind: history.grown(device, kind) if history else 0 for kind in KINDS}
    bad = grown["nonfatal"] + grown["fatal"]
    if bad:
        yield Condition("SAC505", on, f"{_errors_of(bad)} could not be corrected, this hour")
    if grown["correctable"] >= MANY:
        yield Condition(
            "SAC504",
            on,
            f"{_errors_of(grown['correctable'])} of its link, corrected, this hour",
        )
    if bad or grown["correctable"] >= MANY or not any(device.aer.values()):
        return
    counts = ", ".join(f"{device.aer[k]} {k}" for k in KINDS if device.aer.get(k))
    yield Condition("SAC506", on, f"errors of its link since the boot: {counts}")


def _errors_of(number: int) -> str:
    return f"{number} error{'' if number == 1 else 's'}"


def _region(topology: Topology, use: Use) -> Iterator[Condition]:
    if not use.region:
        return  # memory without a region
    on = f"{use.pool} {use.region}"
    region = topology.region(use.region)
    hint = _assemble(topology, use)
    if region is None:
        yield Condition("SAC507", on, f"{use.region} of pool {use.pool} is not there", hint)
        return
    if not region.committed or not region.driver:
        what = "is not committed" if not region.committed else "has no driver"
        yield Condition("SAC507", on, f"{use.region} of pool {use.pool} {what}", hint)
        return
    owners = {m.identity for d in region.targets if (m := topology.owner_of(d)) is not None}
    away = [device for device in use.devices if device not in owners]
    if away:
        yield Condition(
            "SAC507",
            on,
            f"{use.region} of pool {use.pool} does not lead to {', '.join(away)}",
            hint,
        )


def _assemble(topology: Topology, use: Use) -> str:
    """What helps; while devices are away it would only fail."""
    there = {memdev.identity for memdev in topology.memdevs}
    away = [d for d in use.devices if d not in there and not d.startswith("hmem:")]
    when = "when its devices are back: " if away else ""
    return f"{when}sacctl pool assemble {use.pool}"


def _dax(sysfs: Sysfs, topology: Topology, use: Use, name: str) -> Iterator[Condition]:
    on = f"{use.pool} {name}"
    wanted = "device_dax" if use.mode == "devdax" else "kmem"
    device = topology.dax_device(name)
    if device is None:
        yield Condition(
            "SAC508",
            on,
            f"{name} of pool {use.pool} is not there",
            _assemble(topology, use),
        )
        return
    if device.driver != wanted:
        yield Condition(
            "SAC508",
            on,
            f"{name} of pool {use.pool} has {device.driver or 'no driver'}, and needs {wanted}",
            _assemble(topology, use),
        )
    if use.mode != "devdax":
        return
    online = [b for b in blocks_of(sysfs, topology, name) if b.state != "offline"]
    if online:
        yield Condition(
            "SAC509",
            on,
            f"{len(online)} memory blocks of {name} of pool {use.pool} are online",
        )
