# SPDX-License-Identifier: Apache-2.0
"""The reader over a real look in which something was changed by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from unit.cxl_dump import tree

from sacctl.cxl.model import Link
from sacctl.cxl.read import read, resolve
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import NotFoundError

MIB = 1 << 20
PART = 256 * MIB  # of each device


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return tree("6.12-2hb4", "before", tmp_path)


def put(sysfs: Sysfs, path: str, text: str) -> None:
    at = sysfs.at(path)
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(text)


def link(sysfs: Sysfs, path: str, target: str) -> None:
    at = sysfs.at(path)
    at.parent.mkdir(parents=True, exist_ok=True)
    sysfs.at(target).mkdir(parents=True, exist_ok=True)
    at.symlink_to(sysfs.at(target))


def test_a_link_below_what_the_slot_can_do(sysfs: Sysfs) -> None:
    at = next(m for m in read(sysfs).memdevs).path.rsplit("/", 1)[0]
    put(sysfs, f"{at}/current_link_speed", "16.0 GT/s PCIe\n")
    put(sysfs, f"{at}/current_link_width", "8\n")
    found = read(sysfs).memdevs[0].link
    assert found == Link(16.0, 8, 32.0, 16)
    assert found.degraded
    # The slot is what limits: the device's own maximum is not to be had there.
    put(sysfs, f"{at.rsplit('/', 1)[0]}/max_link_width", "8\n")
    put(sysfs, f"{at.rsplit('/', 1)[0]}/max_link_speed", "16.0 GT/s PCIe\n")
    found = read(sysfs).memdevs[0].link
    assert found is not None
    assert not found.degraded
    put(sysfs, f"{at}/current_link_speed", "Unknown\n")
    assert read(sysfs).memdevs[0].link is None


def test_aer_counters(sysfs: Sysfs) -> None:
    at = read(sysfs).memdevs[0].path.rsplit("/", 1)[0]
    put(sysfs, f"{at}/aer_dev_correctable", "RxErr 3\nBadTLP 0\nTOTAL_ERR_COR 3\n")
    put(sysfs, f"{at}/aer_dev_fatal", "Undefined 0\nDLP 1\nTOTAL_ERR_FATAL 1\n")
    assert read(sysfs).memdevs[0].aer == {"correctable": 3, "nonfatal": 0, "fatal": 1}


def test_free_bytes_are_the_largest_hole(sysfs: Sysfs) -> None:
    root = read(sysfs).root("decoder0.0")
    assert root is not None
    assert root.start is not None
    folder = f"/sys/devices/platform/ACPI0017:00/root0/{root.name}/region7"
    for name, text in {
        "interleave_ways": "0", "interleave_granularity": "0", "commit": "0", "mode": "ram",
        "size": hex(PART), "resource": hex(root.start + PART),
    }.items():  # fmt: skip
        put(sysfs, f"{folder}/{name}", text + "\n")
    link(sysfs, "/sys/bus/cxl/devices/region7", folder)
    found = read(sysfs).root("decoder0.0")
    assert found is not None
    assert found.regions == ("region7",)
    assert found.free_bytes == root.bytes - 2 * PART
    # What firmware mapped without a region takes room too.
    iomem = sysfs.read("/proc/iomem")
    start = root.start
    inside = f"  {start + 4 * PART:x}-{start + 5 * PART - 1:x} : Soft Reserved\n"
    head = f"{start:x}-{start + root.bytes - 1:x} : CXL Window 0\n"
    assert head in iomem
    put(sysfs, "/proc/iomem", iomem.replace(head, head + inside))
    found = read(sysfs).root("decoder0.0")
    assert found is not None
    assert found.free_bytes == max(2 * PART, root.bytes - 5 * PART)
    # A user who is not root sees no addresses: all that is left.
    put(sysfs, f"/sys/devices/platform/ACPI0017:00/root0/{root.name}/start", "0x0\n")
    found = read(sysfs).root("decoder0.0")
    assert found is not None
    assert found.start is None
    assert found.free_bytes == root.bytes - PART
    # A region that cannot be read may take any of it.
    put(sysfs, f"{folder}/size", "nonsense\n")
    found = read(sysfs).root("decoder0.0")
    assert found is not None
    assert found.free_bytes == 0


def test_hmem_and_other_dax_devices_are_listed_with_a_reason(sysfs: Sysfs) -> None:
    for number, parent in enumerate(("platform/hmem.0", "platform/ndbus0/region9x")):
        folder = f"/sys/devices/{parent}/dax{number}.0"
        put(sysfs, f"{folder}/size", f"{PART}\n")
        put(sysfs, f"{folder}/target_node", "2\n")
        link(sysfs, f"/sys/bus/dax/devices/dax{number}.0", folder)
    found = read(sysfs)
    assert [(d.kind, d.region, d.folder) for d in found.dax] == [
        ("hmem", "", ""),
        ("other", "", ""),
    ]
    assert "hmem" in found.skipped[0].why
    assert [s.name for s in found.skipped] == ["dax0.0", "dax1.0"]


def test_sorted_by_number(sysfs: Sysfs) -> None:
    devices = sysfs.at("/sys/bus/cxl/devices")
    (devices / "mem10").symlink_to((devices / "mem0").resolve())
    assert [m.name for m in read(sysfs).memdevs] == ["mem0", "mem1", "mem2", "mem3", "mem10"]


def test_a_function_that_another_driver_has(sysfs: Sysfs) -> None:
    put(sysfs, "/sys/devices/pci0000:77/0000:77:01.0/class", "0x050210\n")
    link(sysfs, "/sys/bus/pci/devices/0000:77:01.0", "/sys/devices/pci0000:77/0000:77:01.0")
    link(
        sysfs,
        "/sys/devices/pci0000:77/0000:77:01.0/driver",
        "/sys/bus/pci/drivers/vfio-pci",
    )
    assert "vfio-pci" in read(sysfs).skipped[0].why


def test_an_empty_machine(tmp_path: Path) -> None:
    found = read(Sysfs(tmp_path))
    for listed in (found.memdevs, found.roots, found.regions, found.dax, found.skipped):
        assert len(listed) == 0
    assert found.policy.autoprobe is None
    with pytest.raises(NotFoundError, match="none at all"):
        resolve(found, "mem0")


def test_a_tree_that_leads_out(tmp_path: Path, sysfs: Sysfs) -> None:
    """A link to outside of the root is no device."""
    outside = tmp_path / "elsewhere"
    shutil.copytree(sysfs.at("/sys/bus"), outside, symlinks=True)
    devices = sysfs.at("/sys/bus/cxl/devices")
    (devices / "mem0").unlink()
    (devices / "mem0").symlink_to("/proc/self")
    found = read(sysfs)
    assert "mem0" not in [m.name for m in found.memdevs]
    assert "mem0" in [s.name for s in found.skipped]
