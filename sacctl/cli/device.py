# SPDX-License-Identifier: Apache-2.0
"""``sacctl device``: what CXL memory is there, and what can be done with it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from sacctl.cli.base import Command, Group
from sacctl.cli.context import App, app
from sacctl.errors import CtlError

if TYPE_CHECKING:
    from sacctl.cxl.devices import View
    from sacctl.cxl.model import Memdev, Topology
    from sacctl.cxl.tools import Readings
    from sacctl.cxl.verdict import PoolUse

__all__ = ["device", "uses", "view_of"]

_EXAMPLES = """\
Examples:
  sacctl device list
  sacctl device show cxl0
  sacctl device topology
"""

device = Group(
    "device",
    help="CXL memory devices: what is there, and what can be done with it.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    lazy={
        "monitor": (
            "sacctl.cli.monitor:monitor",
            "Hear the events of CXL devices, and take poisoned memory of pools out of use.",
        )
    },
)


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of devices."""
    from sacctl.cxl.read import read

    try:
        found = read(ctx.find_root().ensure_object(App).sysfs).memdevs
    except CtlError:
        return []
    return [
        CompletionItem(m.name, help=m.identity) for m in found if m.name.startswith(incomplete)
    ]


@device.command("list", cls=Command)
def list_() -> None:
    """The devices, and for each one verdict.

    Usable, in use by what, or why it cannot be used and what to do. What was seen and
    cannot be a pool's device is listed with the reason. Where nothing is found, stderr says
    where was looked and what was there.
    """
    state = app()
    from sacctl.cxl.read import read
    from sacctl.cxl.read_platform import looked_for
    from sacctl.render.devices import list_parts

    topology = read(state.sysfs)
    view = view_of(state, topology, _asked(state, topology))
    looked = () if topology.memdevs else looked_for(state.sysfs, topology)
    record = {
        "devices": view.devices(),
        "dax": [view.dax(dax) for dax in topology.dax if dax.kind != "cxl"],
        "skipped": view.skipped(),
        "looked": [{"where": o.where, "found": o.found, "hint": o.hint} for o in looked],
    }
    state.emit("device.list", record, lambda: list_parts(record))
    if not topology.memdevs:
        state.say("no CXL memory device was found:")
    for one in looked:
        state.say(f"  {one.where}: {one.found}" + (f". next: {one.hint}" if one.hint else ""))


@device.command(cls=Command)
@click.argument("name", metavar="NAME", shell_complete=_names)
def show(name: str) -> None:
    """All of one device.

    NAME is its name (mem0, or cxl0, which means mem0), its serial number or its PCI address.
    Names may change at a boot; serial numbers and addresses stay. Temperature, life and
    poison come from the program cxl, where it is installed and this is root.
    """
    state = app()
    from sacctl.cxl.read import read, resolve
    from sacctl.cxl.verdict import regions_of
    from sacctl.render.devices import device_parts

    topology = read(state.sysfs)
    memdev = resolve(topology, name)
    said_means(state, name, memdev)
    readings = _asked(state, topology, memdev)
    view = view_of(state, topology, readings)
    found = view.device(memdev, full=True)
    regions = [view.region(region) for region in regions_of(topology, memdev)]
    dax = [view.dax(one) for one in view.dax_of(memdev)]
    record = {"device": found, "regions": regions, "dax": dax, "note": readings.note}
    state.emit("device.show", record, lambda: device_parts(found, regions, dax))
    if readings.note:
        state.more(f"not all of its health is known: {readings.note}")


@device.command(cls=Command)
def topology() -> None:
    """Windows, host bridges, switches, devices, regions and dax devices as a tree."""
    state = app()
    from sacctl.cxl.read import read
    from sacctl.cxl.tools import Readings
    from sacctl.render.topology import topology_tree
    from sacctl.render.tree import write_tree

    found = read(state.sysfs)
    view = view_of(state, found, Readings())
    record: dict[str, Any] = {
        "kernel": found.kernel,
        "windows": [view.window(root) for root in found.roots],
        "bridges": list(found.bridges),
        "ports": [view.port(port) for port in found.ports],
        "devices": view.devices(),
        "regions": [view.region(region) for region in found.regions],
        "dax": [view.dax(dax) for dax in found.dax],
        "policy": {
            "auto_online": found.policy.auto_online,
            "autoprobe": found.policy.autoprobe,
            "drivers": list(found.policy.drivers),
            "block_bytes": found.policy.block_bytes,
        },
        "skipped": view.skipped(),
    }
    if state.output == "json":
        state.emit("device.topology", record, list)
    else:
        write_tree(topology_tree(record), sys.stdout)
    if not found.memdevs:
        state.say("no CXL memory device was found. next: sacctl device list says why")


# --------------------------------------------------------------------------- helpers


def said_means(state: App, given: str, memdev: Memdev) -> None:
    """Says on stderr which device was meant, where the name is not the kernel's."""
    if given.strip().lower().startswith("cxl"):
        state.say(f"{given.strip()} means {memdev.name} ({memdev.identity})")


def view_of(state: App, topology: Topology, readings: Readings) -> View:
    """Records of what was read, with the pools that devices belong to."""
    from sacctl.cxl.devices import View

    names: dict[str, tuple[str, str]] = {}
    if not state.sysfs.simulated:
        from sacctl.cxl.read_udev import names_of

        names = names_of(memdev.pci for memdev in topology.memdevs)
    return View(state.sysfs, topology, uses(state), readings, names)


def uses(state: App) -> dict[str, tuple[PoolUse, ...]]:
    """The pools of each device by their records, by what names it there ("serial:0x100").

    Looks in the folder of pools of the settings and, for an ordinary user, in root's too. A
    record that cannot be read is said on stderr and left out.
    """
    from sacctl import paths
    from sacctl.cxl.verdict import PoolUse
    from sacctl.pool.record import Record, Records

    found: dict[str, list[PoolUse]] = {}
    folders = [state.settings.pools.dir]
    if not state.sysfs.simulated and (system := paths.pools_dir(uid=0)) not in folders:
        folders.append(system)
    seen: set[str] = set()
    for folder in folders:
        records = Records(folder)
        try:
            pools = records.names()
        except CtlError as error:
            state.say(error.sentence())
            continue
        for pool in pools:
            try:
                record: Record | None = records.find(pool)
            except CtlError as error:
                state.say(error.sentence())
                continue
            if record is None or record.cxl is None or pool in seen:
                continue
            seen.add(pool)
            for identity in {d for part in record.cxl.regions for d in part.devices}:
                found.setdefault(identity, []).append(
                    PoolUse(pool, record.state, record.cxl.mode)
                )
    return {identity: tuple(pools) for identity, pools in found.items()}


def _asked(state: App, topology: Topology, memdev: Memdev | None = None) -> Readings:
    """What the program cxl says of all devices; of one, its poison list too. Never of a
    simulated tree, for it would be of this machine's devices."""
    from sacctl.cxl.tools import Readings, ask, can_list

    if state.sysfs.simulated:
        return Readings(note="this is a simulated tree")
    if not topology.memdevs:
        return Readings(note="there is no device")
    if memdev is None:
        return ask(poison=False)
    why_not = can_list(state.sysfs, memdev)
    found = ask(poison=not why_not, memdev=memdev.name)
    return replace(found, note="; ".join(note for note in (found.note, why_not) if note))
