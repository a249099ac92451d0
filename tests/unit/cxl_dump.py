# SPDX-License-Identifier: Apache-2.0
"""What real kernels showed in sysfs, as trees to read.

tests/data/sysfs/KERNEL-TOPOLOGY.json.xz holds looks at one virtual machine with CXL devices:

    before, region, split       nothing made; a region over all devices, its dax device on
                                device_dax; that split in two (1hb2, 2hb4, sw4; 7.3-2hb2)
    kmem, offline, nodriver     a region made by cxl: its dax device on kmem, blocks online;
                                offline; unbound (all from here on 6.12-2hb2)
    gone, back                  one device's cxl_pci unbound, with the region; and bound again
    unbound                     the other's cxl_mem unbound
    unloaded, noacpi            no CXL module; all of them but cxl_acpi

A look is {path: [kind, mode or target, content]}; kind "d" folder, "f" file ("!EIO": reading
failed so; None: it can only be written), "l" link. Where /sys/bus/pci is not in the look, its
links are made from the folders they lead to. tools/sysfslook.py takes such looks.
"""

from __future__ import annotations

import json
import lzma
import os
import re
from pathlib import Path

from sacctl.cxl.sysfs import Sysfs

__all__ = ["DUMPS", "LOOKS", "load", "tree", "unpack"]

FOLDER = Path(__file__).parent.parent / "data" / "sysfs"
DUMPS = sorted(path.name.removesuffix(".json.xz") for path in FOLDER.glob("*.json.xz"))
OLD = ("before", "region", "split")
NEW = ("kmem", "offline", "nodriver", "gone", "back", "unbound", "unloaded", "noacpi")
LOOKS = [(d, look) for d in DUMPS for look in (NEW if d == "6.12-2hb2" else OLD)]

Look = dict[str, list[str | None]]


def load(dump: str) -> dict[str, Look]:
    """All looks of a dump."""
    found: dict[str, Look] = json.loads(
        lzma.decompress((FOLDER / f"{dump}.json.xz").read_bytes())
    )
    return found


def tree(dump: str, look: str, folder: Path) -> Sysfs:
    """One look of a dump as a tree in a folder."""
    return unpack(load(dump)[look], folder)


def unpack(look: Look, folder: Path) -> Sysfs:
    """Makes the tree. Link targets that are not in the look (drivers) become folders."""
    for path, (kind, *_, content) in look.items():
        at = folder / path.lstrip("/")
        if kind == "d":
            at.mkdir(parents=True, exist_ok=True)
        elif kind == "f" and not str(content).startswith("!"):
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_bytes((content or "").encode("latin1"))
    for path, (kind, target, *_) in look.items():
        if kind == "l":
            _link(folder / path.lstrip("/"), str(target))
    if any(path.startswith("/sys/bus/pci/devices/") for path in look):
        return Sysfs(folder)
    for found in sorted((folder / "sys/devices").glob("pci*/**/class")):
        if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", found.parent.name):
            at = folder / "sys/bus/pci/devices" / found.parent.name
            _link(at, os.path.relpath(found.parent, at.parent))
    return Sysfs(folder)


def _link(at: Path, target: str) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(target)
    real = Path(os.path.normpath(at.parent / target))
    if not real.exists():
        real.mkdir(parents=True)
