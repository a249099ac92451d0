# SPDX-License-Identifier: Apache-2.0
"""The CXL topology as a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sacctl.cxl.device_records import (
    DaxRecord,
    DeviceRecord,
    PortRecord,
    RegionRecord,
    WindowRecord,
)
from sacctl.render.devices import address, blocks_text, link_text, state_text, verdict_cell
from sacctl.render.quantities import size
from sacctl.render.table import Cell
from sacctl.render.tree import Branch

__all__ = ["topology_tree"]


def topology_tree(record: Mapping[str, Any]) -> Branch:
    """Windows with their regions, host bridges with what is below them, and what is left.

    record: as the JSON of `device topology`.
    """
    windows: list[WindowRecord] = record["windows"]
    bridges: list[str] = record["bridges"]
    devices: list[DeviceRecord] = record["devices"]
    root = Branch(
        f"CXL: {_many(len(windows), 'window')}, {_many(len(bridges), 'host bridge')}, "
        f"{_many(len(devices), 'device')}"
    )
    for window in windows:
        _window(root, window, record["regions"], record["dax"])
    shown: set[str] = set()
    for bridge in bridges:
        _bridge(root, bridge, record["ports"], devices, shown)
    left = [device for device in devices if device["name"] not in shown]
    if left:
        below = root.add("elsewhere")
        for device in left:
            _device(below, device)
    placed = {name for region in record["regions"] for name in region["dax"]}
    foreign = [dax for dax in record["dax"] if dax["name"] not in placed]
    if foreign:
        below = root.add("dax devices without a region")
        for dax in foreign:
            _dax(below, dax)
    if record["skipped"]:
        below = root.add("not used")
        for one in record["skipped"]:
            below.add(f"{one['name']}: {one['why']}")
    return root


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _window(
    root: Branch,
    window: WindowRecord,
    regions: Sequence[RegionRecord],
    dax: Sequence[DaxRecord],
) -> None:
    ways = f"x{window['ways']} over {', '.join(window['targets'])}"
    if window["ways"] > 1:
        ways += f" by {window['granularity']} bytes"
    kind = "" if window["ram"] else ", not for volatile memory"
    locked = ", locked" if window["locked"] else ""
    start = f" at {address(window['start'])}" if window["start"] is not None else ""
    below = root.add(
        f"window {window['name']}: {size(window['bytes'])}{start}, {ways}, "
        f"{size(window['free_bytes'])} free{kind}{locked}"
    )
    for region in regions:
        if region["window"] == window["name"]:
            _region(below, region, dax)


def _region(below: Branch, region: RegionRecord, dax: Sequence[DaxRecord]) -> None:
    state = state_text(region)
    branch = below.add(
        Cell(
            f"{region['name']}: {size(region['bytes'])}, x{region['ways']} by "
            f"{region['granularity']} bytes, {state.text}",
            state.mood,
        )
    )
    for position, (device, decoder) in enumerate(
        zip(region["devices"], region["targets"], strict=True)
    ):
        named = f"{device} by {decoder}" if device else decoder or "no device"
        branch.add(Cell(f"position {position}: {named}", "" if device else "bad"))
    for one in dax:
        if one["region"] == region["name"]:
            _dax(branch, one)


def _dax(below: Branch, dax: DaxRecord) -> None:
    node = f", node {dax['target_node']}" if dax["target_node"] >= 0 else ""
    blocks = blocks_text(dax)
    below.add(
        f"{dax['name']}: {size(dax['bytes'])}, {dax['driver'] or 'no driver'}{node}"
        + (f", blocks {blocks}" if blocks else "")
    )


def _bridge(
    root: Branch,
    bridge: str,
    ports: Sequence[PortRecord],
    devices: Sequence[DeviceRecord],
    shown: set[str],
) -> None:
    port = next((p for p in ports if p["kind"] == "bridge" and p["at"] == bridge), None)
    below = root.add(f"host bridge {bridge}" + _used(port))
    if port is not None:
        _below(below, port, ports, devices, shown)
    for device in devices:  # without an endpoint, or without a port above it
        if device["host_bridge"] == bridge and device["name"] not in shown:
            shown.add(device["name"])
            _device(below, device)


def _below(
    branch: Branch,
    port: PortRecord,
    ports: Sequence[PortRecord],
    devices: Sequence[DeviceRecord],
    shown: set[str],
) -> None:
    for switch in ports:
        if switch["parent"] == port["name"] and switch["kind"] == "switch":
            inner = branch.add(f"switch {switch['at']} at {switch['above']}" + _used(switch))
            _below(inner, switch, ports, devices, shown)
    for device in devices:
        if device["ports"] and device["ports"][-1] == port["name"]:
            shown.add(device["name"])
            _device(branch, device)


def _used(port: PortRecord | None) -> str:
    if port is None:
        return ": no port"
    return f": {port['name']}, {port['committed']} of {port['decoders']} decoders used"


def _device(below: Branch, device: DeviceRecord) -> None:
    verdict = verdict_cell(device)
    if device["verdict"] == "in use":
        part_of = [f"pool {pool}" for pool in device["pools"]] or device["regions"]
        verdict = Cell(f"in use by {', '.join(part_of)}")
    at = f" at {device['dports'][-1]}" if device["dports"] else ""
    link = link_text(device["link"]).text
    text = (
        f"{device['name']} ({device['serial']}, {device['pci']}){at}: "
        f"{size(device['ram_bytes'])}, {size(device['free_bytes'])} free"
        + (f", {link}" if link else "")
        + f"; {verdict.text}"
    )
    below.add(Cell(text, verdict.mood))
