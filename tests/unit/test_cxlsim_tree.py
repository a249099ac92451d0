# SPDX-License-Identifier: Apache-2.0
"""The simulated tree beside looks at real machines: the same files, modes, links, contents.

memN, endpointN, portN and decoderN.M have numbers of their own on each machine: files are
compared by their paths without those, contents as the set of what files of that path hold.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import cxlsim
import pytest
from unit.cxl_dump import Look, load
from unit.cxl_region import make, take

DAX = "/sys/bus/dax"

# Of a real machine, and not of a simulated one: nothing that anybody here reads or writes.
NOT_SHOWN = [
    r"/power(/|$)",
    r"/module$",
    r"^/sys/devices/pci0000:00|^/sys/bus/pci/devices/0000:00:",
    r"^/sys/devices/LNXSYSTM:00/|^/sys/bus/acpi/devices/ACPI0010",
    r"^/sys/devices/virtual/memory_tiering",
    r"^/sys/devices/platform/ACPI0017:00/(driver_override|firmware_node|subsystem)$",
    r"/(CDAT|resource|aer_rootport_total_err_\w+|secondary_bus_number|subordinate_bus_number)$",
    r"^/sys/devices/pci.*/(physical_node|firmware_node|thermal_cooling)$",
    r"^/sys/bus/pci/drivers/\w+/(new_id|remove_id)$",
    r"^/sys/bus/pci/drivers/pcieport/(bind|unbind)$",
    r"^/sys/bus/platform/drivers/cxl_acpi/(bind|unbind)$",
    r"^/sys/devices/system/memory/(crash_hotplug|hard_offline_page|soft_offline_page)$",
    r"^/sys/devices/system/node/(has_generic_initiator|node\d+/(compact|reclaim))$",
    r"^/sys/devices/pci.*/(aer|doe_features)/|^/sys/devices/pci.*/serial_number$",
]
# What a simulated machine has its own of.
OWN = [
    r"^/proc/iomem$|^/proc/sys/kernel/osrelease$",
    r"^/sys/devices/pci.*/mem#/dev$",  # the numbers of memN
    r"^/sys/devices/pci0000:0c/0000:0c:01.0/current_link_",  # a slot with nothing in it
]


def plain(text: str) -> str:
    return re.sub(r"\b(mem|endpoint|decoder|port)\d+(?![\d:])", r"\1#", text)


Shown = dict[str, set[tuple[str, str, str]]]


def of_real(look: Look) -> Shown:
    found: Shown = {}
    for path, (kind, first, *rest) in look.items():
        if kind == "l":
            target = os.path.normpath(f"{path}/../{first}")
            found.setdefault(plain(path), set()).add(("l", "", plain(target)))
        elif kind == "f":
            text = str(rest[0] or "")
            found.setdefault(plain(path), set()).add(("f", str(first), plain(text)))
    return found


def of_simulated(machine: cxlsim.Machine) -> Shown:
    found: Shown = {}
    for path, entry in machine.kernel.tree.shown.items():
        if entry.kind == "l":
            found.setdefault(plain(path), set()).add(("l", "", plain(entry.content)))
        elif entry.kind == "f":
            one = ("f", oct(entry.mode), plain(entry.content))
            found.setdefault(plain(path), set()).add(one)
    return found


def differences(real: Shown, simulated: Shown) -> Iterator[str]:
    for path, wanted in sorted(real.items()):
        if any(re.search(p, path) for p in (*NOT_SHOWN, *OWN)):
            continue
        got = simulated.get(path)
        if got is None:
            yield f"{path}: missing"
        elif got != wanted:
            yield f"{path}: {got} is not {wanted}"


def state(look: str, machine: cxlsim.Machine) -> None:
    """Brings the machine to where it was looked at."""
    if look == "before":
        return
    topology = machine.topology
    order = {"2hb4": [0, 2, 1, 3], "sw4": [0, 1, 2, 3]}.get(topology, [0, 1])
    policy = "/sys/devices/system/memory/auto_online_blocks"
    if look == "offline":
        machine.sysfs.write(policy, "offline")
    region = make(machine, order)
    machine.sysfs.write(policy, "online")
    while not machine.sysfs.names(f"{DAX}/devices"):
        time.sleep(0.01)
    dax = f"dax{region[6:]}.0"
    if look in ("region", "split"):
        take(machine, dax)
    if look == "split":
        split(machine, dax)
    if look in KMEM[2:]:
        for block in machine.kernel.memory.blocks.values():
            block.state = "offline" if block.added else block.state
        machine.sysfs.write(f"{DAX}/drivers/kmem/unbind", dax)
    drivers = "/sys/bus/pci/drivers/cxl_pci"
    if look in KMEM[3:]:
        machine.sysfs.write(f"{drivers}/unbind", machine.memdev(0x100).pci)
    if look in KMEM[4:]:
        machine.sysfs.write(f"{drivers}/bind", machine.memdev(0x100).pci)
    if look == "unbound":
        name = machine.memdev(0x101).name
        machine.sysfs.write("/sys/bus/cxl/drivers/cxl_mem/unbind", name)


def split(machine: cxlsim.Machine, dax: str) -> None:
    number = dax[3:].partition(".")[0]
    home = f"/sys/bus/cxl/devices/dax_region{number}/dax_region"
    size = machine.sysfs.number(f"{DAX}/devices/{dax}/size")
    for path, value in [
        (f"{DAX}/drivers/device_dax/unbind", dax),
        (f"{DAX}/devices/{dax}/size", str(size - (16 << 20))),
        (f"{home}/create", "1"),
        (f"{DAX}/devices/dax{number}.1/size", str(16 << 20)),
        (f"{DAX}/drivers/device_dax/new_id", dax),
        (f"{DAX}/drivers/device_dax/new_id", f"dax{number}.1"),
    ]:
        machine.sysfs.write(path, value)


KMEM = ("kmem", "offline", "nodriver", "gone", "back", "unbound")
OLD = [f"6.12-{topology}" for topology in ("1hb2", "2hb4", "sw4")]
LOOKS = [
    *((dump, look) for dump in (*OLD, "7.3-2hb2") for look in ("before", "region", "split")),
    *(("6.12-2hb2", look) for look in KMEM),
]


@pytest.mark.parametrize(("dump", "look"), LOOKS)
def test_the_tree_is_that_of_a_real_machine(dump: str, look: str, tmp_path: Path) -> None:
    version, _, topology = dump.partition("-")
    kmem = look in KMEM
    with cxlsim.Machine(tmp_path, topology, kmem=kmem, version=version) as machine:
        state(look, machine)
        found = list(differences(of_real(load(dump)[look]), of_simulated(machine)))
    assert found == []


def test_a_difference_is_found(tmp_path: Path) -> None:
    look = load("6.12-1hb2")["before"]
    with cxlsim.Machine(tmp_path, "1hb2") as machine:
        shown = of_simulated(machine)
    assert list(differences(of_real(look), shown)) == []
    look["/sys/bus/dax/drivers_autoprobe"] = ["f", "0o600", "1\n"]
    look["/sys/bus/dax/other"] = ["f", "0o644", ""]
    assert len(list(differences(of_real(look), shown))) == 2
