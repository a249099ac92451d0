# SPDX-License-Identifier: Apache-2.0
"""CXL devices as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sacctl.cxl.device_records import DaxRecord, DeviceRecord, LinkRecord, RegionRecord
from sacctl.render.quantities import size
from sacctl.render.table import Cell, Facts, Part, Table

__all__ = [
    "address",
    "blocks_text",
    "device_parts",
    "device_table",
    "health_cell",
    "link_text",
    "list_parts",
    "verdict_cell",
]

_VERDICTS = {"usable": "good", "in use": "", "unusable": "bad"}
_HEALTH = {"ok": "good", "unknown": "dim", "fatal errors": "bad", "poison": "bad"}


def verdict_cell(device: DeviceRecord) -> Cell:
    """ "usable: capacity unassigned", "in use by pool kv", coloured."""
    joint = " " if device["why"].startswith("by ") else ": "
    return Cell(
        f"{device['verdict']}{joint}{device['why']}", _VERDICTS.get(device["verdict"], "")
    )


def health_cell(word: str) -> Cell:
    """Health in a word, coloured."""
    return Cell(word, _HEALTH.get(word, "warn"))


def link_text(link: LinkRecord | None) -> Cell:
    """ "32 GT/s x16", and where it is degraded what it could be."""
    if link is None:
        return Cell("")
    now = f"{link['speed']:g} GT/s x{link['width']}"
    if not link["degraded"]:
        return Cell(now)
    return Cell(f"{now} of {link['max_speed']:g} GT/s x{link['max_width']}", "warn")


def address(value: int | None) -> str:
    """An address; "" for one that is hidden or not there."""
    return "" if value is None else f"{value:#x}"


def _node(number: int) -> str:
    return str(number) if number >= 0 else ""


def device_table(devices: Iterable[DeviceRecord]) -> Table:
    """One line a device."""
    table = Table(
        ("name", "serial", "pci", "vendor", ">capacity", ">used", ">free", ">node", ">target",
         "link", "~path", "health", "~part of", "~verdict", "~next"),
    )  # fmt: skip
    for device in devices:
        table.add(
            device["name"],
            device["serial"],
            device["pci"],
            device["vendor_name"] or device["vendor"],
            size(device["ram_bytes"]),
            size(device["used_bytes"]),
            size(device["free_bytes"]),
            _node(device["numa_node"]),
            ", ".join(map(str, device["target_nodes"])),
            link_text(device["link"]),
            _path(device),
            health_cell(device["health"]),
            ", ".join(_part_of(device)),
            verdict_cell(device),
            device["hint"],
        )
    return table


def _path(device: DeviceRecord) -> str:
    """Host bridge and the switches below it."""
    return " > ".join(word for word in (device["host_bridge"], *device["switches"]) if word)


def _part_of(device: DeviceRecord) -> list[str]:
    return [*device["pools"], *device["regions"], *device["dax"]]


def list_parts(record: Mapping[str, Any]) -> list[Part]:
    """The devices, and what else was seen, each with its reason."""
    parts: list[Part] = []
    if record["devices"]:
        parts.append(device_table(record["devices"]))
    known = {dax["name"]: dax for dax in record["dax"] if dax["kind"] == "hmem"}
    others = Table(
        ("name", ">size", ">node", "driver", "~what it is", "~next"),
        title="dax devices without a CXL device" if parts else "",
    )
    title = "not in the list" if parts or known else ""
    table = Table(("name", "~why not", "~next"), title=title)
    for one in record["skipped"]:
        dax = known.get(one["name"])
        if dax is None:
            table.add(one["name"], one["why"], one["hint"])
            continue
        node = _node(dax["target_node"])
        driver = dax["driver"] or "none"
        others.add(one["name"], size(dax["bytes"]), node, driver, one["why"], one["hint"])
    return [*parts, *(part for part in (others, table) if part.rows)]


def device_parts(
    device: DeviceRecord, regions: Sequence[RegionRecord], dax: Sequence[DaxRecord]
) -> list[Part]:
    """All of one device."""
    parts: list[Part] = [_facts(device)]
    decoders = Table(
        ("decoder", "mode", ">device address", ">size", "region", "locked"), title="decoders"
    )
    for one in device.get("decoders", []):
        decoders.add(
            one["name"], one["mode"], address(one["dpa_start"]), size(one["dpa_bytes"]),
            one["region"], "yes" if one["locked"] else "no",
        )  # fmt: skip
    if decoders.rows:
        parts.append(decoders)
    if regions:
        parts.append(_region_table(regions, device["name"]))
    if dax:
        parts.append(_dax_table(dax))
    poison = Table((">device address", ">bytes", "source"), title="poison")
    for range_ in device.get("poison", []):
        poison.add(address(range_["dpa"]), str(range_["bytes"]), range_["source"])
    if poison.rows:
        parts.append(poison)
    return parts


def _facts(device: DeviceRecord) -> Facts:
    facts = Facts()
    facts.add("name", device["name"])
    facts.add("verdict", verdict_cell(device))
    facts.add("next", device["hint"])
    facts.add("health", health_cell(device["health"]))
    facts.add("serial", device["serial"])
    facts.add("PCI address", device["pci"])
    names = " ".join(word for word in (device["vendor_name"], device["product_name"]) if word)
    facts.add("vendor", f"{device['vendor']}:{device['device']} {names}".rstrip())
    facts.add("firmware", device.get("firmware", ""))
    facts.add("capacity", size(device["ram_bytes"]))
    if device["pmem_bytes"]:
        facts.add("persistent", f"{size(device['pmem_bytes'])}, which pools do not use")
    facts.add("used", size(device["used_bytes"]))
    facts.add("free", size(device["free_bytes"]))
    facts.add("NUMA node", _node(device["numa_node"]))
    facts.add("target node", ", ".join(map(str, device["target_nodes"])))
    facts.add("link", link_text(device["link"]))
    facts.add("path", _path(device))
    facts.add("ports", " > ".join(device["dports"]))
    facts.add("endpoint", device["endpoint"])
    facts.add("driver", device["driver"])
    facts.add("part of", ", ".join(_part_of(device)))
    facts.add("security", device.get("security", ""))
    _conditions(facts, device)
    facts.add("sysfs", device.get("path", ""))
    return facts


def _conditions(facts: Facts, device: DeviceRecord) -> None:
    aer = device.get("aer", {})
    bad = aer.get("nonfatal", 0) or aer.get("fatal", 0)
    facts.add("PCIe errors", Cell(_counts(aer), "bad" if bad else ""))
    if "temperature" in device:
        facts.add("temperature", f"{device['temperature']} C")
    if "life_used_percent" in device:
        facts.add("life used", f"{device['life_used_percent']}%")
    facts.add("conditions", Cell(", ".join(device.get("conditions", [])), "warn"))
    facts.add("errors", _counts(device.get("errors", {})))
    facts.add("alerts", _counts(device.get("alerts", {})))
    if "poison" in device and not device["poison"]:
        facts.add("poison", Cell("none", "good"))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in counts.items())


def _region_table(regions: Sequence[RegionRecord], name: str) -> Table:
    table = Table(
        ("region", "window", "state", ">size", ">ways", ">granularity", ">position", ">address",
         "~devices"),
        title="regions",
    )  # fmt: skip
    for region in regions:
        devices = region["devices"]
        table.add(
            region["name"], region["window"], state_text(region), size(region["bytes"]),
            str(region["ways"]), str(region["granularity"]),
            ", ".join(str(n) for n, one in enumerate(devices) if one == name),
            address(region["start"]), ", ".join(one or "(none)" for one in devices),
        )  # fmt: skip
    return table


def state_text(region: RegionRecord) -> Cell:
    """ "committed", or what it is instead."""
    if not region["committed"]:
        return Cell("not committed", "warn")
    return Cell("committed") if region["driver"] else Cell("no driver", "warn")


def _dax_table(devices: Sequence[DaxRecord]) -> Table:
    table = Table(
        ("dax device", "region", "driver", ">size", ">align", ">node", ">address", "~blocks"),
        title="dax devices",
    )
    for one in devices:
        table.add(
            one["name"], one["region"], one["driver"] or "none", size(one["bytes"]),
            size(one["align"]), _node(one["target_node"]), address(one["start"]),
            blocks_text(one),
        )  # fmt: skip
    return table


def blocks_text(dax: DaxRecord) -> str:
    """ "4 of 4 online in zone Normal"; "" where there are none."""
    blocks = dax["blocks"]
    if not blocks["total"]:
        return ""
    zones = f" in zone {' and '.join(blocks['zones'])}" if blocks["zones"] else ""
    return f"{blocks['online']} of {blocks['total']} online{zones}"
