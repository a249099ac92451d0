# SPDX-License-Identifier: Apache-2.0
"""What a device says of itself and its memory: temperature, wear, poison. Needs root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sacctl.cxl.condition import Condition, Use, named
from sacctl.cxl.events import Event
from sacctl.cxl.model import Memdev, Topology
from sacctl.cxl.poison import META, Found
from sacctl.cxl.tools import Reading, Readings

__all__ = ["alerts", "members", "poisoned"]

WORN = 90  # percent of its life, where the device names no threshold


def members(topology: Topology, used: Sequence[Use]) -> list[Memdev]:
    """The devices of these pools that are there, each once."""
    wanted = {identity for use in used for identity in use.devices}
    return [m for m in topology.memdevs if m.identity in wanted]


def alerts(topology: Topology, used: Sequence[Use], readings: Readings) -> Iterator[Condition]:
    """Of what the devices of these pools report."""
    for device in members(topology, used):
        reading = readings.of(device.pci)
        if reading is not None:
            yield from _of(device, reading)


def _of(device: Memdev, reading: Reading) -> Iterator[Condition]:
    on = named(device)
    warm = _least(reading, "over_temperature")
    if reading.temperature is not None and warm and reading.temperature >= warm:
        yield Condition(
            "SAC511", on, f"it has {reading.temperature} °C; its own limit is {warm} °C"
        )
    worn = _least(reading, "life_used") or WORN
    if reading.life_used is not None and reading.life_used >= worn:
        yield Condition("SAC512", on, f"{reading.life_used}% of its life are used")
    # Temperature and wear have codes of their own.
    said = [s for s in reading.status if "temperature" not in s and "life" not in s]
    if said:
        yield Condition("SAC510", on, f"it reports {', '.join(said)}")


def _least(reading: Reading, what: str) -> int:
    """The lowest threshold of that kind that is set; 0: none is."""
    return min((v for k, v in reading.alerts.items() if what in k and v > 0), default=0)


def poisoned(found: Sequence[tuple[Event, Found]]) -> Iterator[Condition]:
    """Of poison in the pools' memory: one finding a device and pool."""
    exact: dict[tuple[str, str], list[str]] = {}
    unknown: dict[tuple[str, str], str] = {}
    for event, where in found:
        device = f"{event.memdev} (serial:{event.serial:#x})" if event.serial else event.memdev
        for spot in where.spots:
            name = "metadata" if spot.extent == META else f"extent {spot.extent}"
            exact.setdefault((device, spot.pool), []).append(f"{name} at {spot.offset:#x}")
        if where.why:
            for pool in where.pools:
                unknown[device, pool] = where.why
    for (device, pool), places in sorted(exact.items()):
        listed = sorted(set(places))
        more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
        yield Condition(
            "SAC513",
            f"{pool} {device}",
            f"it has poison in pool {pool}: {', '.join(listed[:3])}{more}",
            "sacctl device monitor --once takes these blocks out of use",
        )
    for (device, pool), why in sorted(unknown.items()):
        yield Condition("SAC514", f"{pool} {device}", f"it has poison in pool {pool}: {why}")
