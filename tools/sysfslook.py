# SPDX-License-Identifier: Apache-2.0
"""Adds a look at this machine's CXL and DAX objects to a file of looks, for tests:

    sudo python tools/sysfslook.py tests/data/sysfs/KERNEL-MACHINE.json.xz NAME

tests/unit/cxl_dump.py makes trees of them and says what a look is. Nothing is changed. What
the tests do not need (power management, interrupts, resources, other devices) is left out.
Needs neither sacctl nor libsac.
"""

from __future__ import annotations

import errno
import json
import lzma
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

KEPT = re.compile(
    r"/sys/(bus/(cxl|dax)|bus/pci/devices|bus/pci/drivers/(cxl_pci|pcieport)"
    r"|bus/acpi/devices/ACPI001|bus/platform/(drivers/cxl_acpi|devices/ACPI0017)"
    r"|devices/(platform/(ACPI0017|hmem)|pci|LNXSYSTM:00/LNXSYBUS:00/ACPI001"
    r"|system/(memory|node)|virtual/memory_tiering))"
)
DROPPED = re.compile(
    r"/(power|msi_irqs|firmware_node|physical_node|wakeup|subsystem|hugepages|x86|module"
    r"|memory_failure|cpu\d+|nvdimm-bridge0|firmware|pci_bus|[^/]*:pcie\d+|link|net|block"
    r"|virtio\d+|ata\d+|host\d+)(/|$)"
    r"|/(uevent|modalias|config|rom|resource\d+(_wc)?|CDAT|vmstat|numastat|meminfo|irq|reset"
    r"|waiting_for_supplier|driver_override|local_cpu(s|list)|msi_bus|d3cold_allowed|remove"
    r"|(consistent_)?dma_mask_bits|broken_parity_status|rescan|reset_(method|subordinate)"
    r"|ari_enabled|revision|cpumap)$"
)
ALONE = ("/proc/iomem", "/proc/sys/kernel/osrelease")
MOST = 65536  # bytes of a file

Look = dict[str, list[str | None]]


def main(arguments: list[str]) -> int:
    """Adds or replaces the look; the exit code."""
    if len(arguments) not in (2, 3):
        print("usage: sysfslook.py FILE.json.xz NAME [ROOT]", file=sys.stderr)
        return 2
    file, name = Path(arguments[0]), arguments[1]
    looks: dict[str, Look] = {}
    if file.exists():
        looks = json.loads(lzma.decompress(file.read_bytes()))
    looks[name] = take(Path(arguments[2] if len(arguments) == 3 else "/"))
    text = json.dumps(looks, sort_keys=True).encode()
    file.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    print(f"{file}: {name} has {len(looks[name])} files, folders and links")
    return 0


def take(root: Path) -> Look:
    """All that is kept, by its path on the machine."""
    found = {path: one(at) for path, at in walk(root)}
    for path in ALONE:
        found[path] = one(root / path.lstrip("/"))
    return found


def walk(root: Path) -> Iterator[tuple[str, Path]]:
    for folder, folders, files in os.walk(root / "sys"):
        inside = "/" + str(Path(folder).relative_to(root))
        for name in folders + files:
            path = f"{inside}/{name}"
            if KEPT.match(path) and not DROPPED.search(path):
                yield path, Path(folder, name)
        folders[:] = [name for name in folders if wanted(f"{inside}/{name}")]


def wanted(path: str) -> bool:
    """Whether a folder may have something that is kept."""
    return not path.startswith(("/sys/module", "/sys/kernel", "/sys/fs", "/sys/class"))


def one(at: Path) -> list[str | None]:
    """Kind, mode or target, content."""
    if at.is_symlink():
        return ["l", str(at.readlink())]
    try:
        mode = at.stat().st_mode & 0o777
        if at.is_dir():
            return ["d", oct(mode)]
        if not mode & 0o444:
            return ["f", oct(mode), None]
        with at.open("rb") as file:
            return ["f", oct(mode), file.read(MOST).decode("latin1")]
    except OSError as error:
        return ["f", "0", f"!{errno.errorcode.get(error.errno or 0, 'EIO')}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
