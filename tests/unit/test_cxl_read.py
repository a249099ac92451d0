# SPDX-License-Identifier: Apache-2.0
"""The reader against what real kernels showed (tests/data/sysfs)."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from unit.cxl_dump import LOOKS, tree, unpack

from sacctl.cxl.model import Link, Memdev, Topology
from sacctl.cxl.read import read, resolve
from sacctl.cxl.read_blocks import blocks_of, blocks_within
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import NotFoundError, UsageError

MIB = 1 << 20
PART = 256 * MIB  # of each device

Reading = tuple[Sysfs, Topology]


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Reading]:
    found = {}
    for dump, look in LOOKS:
        sysfs = tree(dump, look, tmp_path_factory.mktemp(f"{dump}-{look}"))
        found[dump.removeprefix("6.12-"), look] = (sysfs, read(sysfs))
    return found


Looks = dict[tuple[str, str], Reading]


def by_serial(topology: Topology) -> dict[int, Memdev]:
    return {memdev.serial: memdev for memdev in topology.memdevs}


@pytest.mark.parametrize("name", ["1hb2", "2hb4", "sw4", "7.3-2hb2"])
def test_before_anything_was_made(looks: Looks, name: str) -> None:
    _, found = looks[name, "before"]
    count = int(name[-1])
    assert sorted(by_serial(found)) == list(range(0x100, 0x100 + count))
    assert [m.name for m in found.memdevs] == [f"mem{n}" for n in range(count)]
    for memdev in found.memdevs:
        assert (memdev.ram_bytes, memdev.pmem_bytes) == (PART, 0)
        assert (memdev.used_bytes, memdev.free_bytes) == (0, PART)
        assert (memdev.vendor, memdev.device) == (0x8086, 0x0D93)
        assert memdev.driver == "cxl_mem"
        assert memdev.problem == ""
        assert memdev.link == Link(32.0, 16, 32.0, 16)
        assert memdev.aer == {"correctable": 0, "nonfatal": 0, "fatal": 0}
        assert memdev.identity == f"serial:{memdev.serial:#x}"
        assert len(memdev.decoders) == 4
        assert {(d.mode, d.dpa_start, d.region) for d in memdev.decoders} == {
            ("none", None, "")
        }
        assert memdev.path.endswith(f"/{memdev.pci}/{memdev.name}")
    assert [len(x) for x in (found.regions, found.dax, found.skipped)] == [0, 0, 0]
    assert found.policy.auto_online == "online"
    assert found.policy.autoprobe is True
    assert found.policy.block_bytes == 128 * MIB
    assert found.kernel.startswith("7.3." if name.startswith("7.3-") else "6.12.")
    for root in found.roots:
        assert root.ram
        assert root.free_bytes == root.bytes
        assert root.regions == ()


def test_two_bridges(looks: Looks) -> None:
    _, found = looks["2hb4", "before"]
    assert set(found.bridges) == {"pci0000:0c", "pci0000:34"}
    assert [(r.name, r.ways, r.targets) for r in found.roots] == [
        ("decoder0.0", 1, ("pci0000:0c",)),
        ("decoder0.1", 1, ("pci0000:34",)),
        ("decoder0.2", 2, ("pci0000:0c", "pci0000:34")),
    ]
    assert [r.bytes >> 30 for r in found.roots] == [2, 2, 4]
    devices = by_serial(found)
    bridges = [devices[0x100 + n].host_bridge for n in range(4)]
    assert bridges == ["pci0000:0c"] * 2 + ["pci0000:34"] * 2
    assert devices[0x102].dports == ("0000:34:00.0",)
    assert {(p.kind, p.parent, p.at) for p in found.ports} == {
        ("bridge", "root0", "pci0000:0c"),
        ("bridge", "root0", "pci0000:34"),
    }


def test_below_a_switch(looks: Looks) -> None:
    _, found = looks["sw4", "before"]
    bridge, switch = found.ports
    assert (bridge.kind, bridge.parent, bridge.at) == ("bridge", "root0", "pci0000:0c")
    assert (switch.kind, switch.parent, switch.at) == ("switch", bridge.name, "0000:0d:00.0")
    assert switch.above == "0000:0c:00.0"
    for number, (_, memdev) in enumerate(sorted(by_serial(found).items())):
        assert memdev.ports == (bridge.name, switch.name)
        assert memdev.dports == ("0000:0c:00.0", f"0000:0e:0{number}.0")
        assert memdev.host_bridge == "pci0000:0c"


@pytest.mark.parametrize(
    ("name", "order", "root"),
    [
        ("1hb2", [0x100, 0x101], "decoder0.0"),
        ("2hb4", [0x100, 0x102, 0x101, 0x103], "decoder0.2"),
        ("sw4", [0x100, 0x101, 0x102, 0x103], "decoder0.0"),
        ("7.3-2hb2", [0x100, 0x101], "decoder0.2"),
    ],
)
def test_a_region(looks: Looks, name: str, order: list[int], root: str) -> None:
    _, found = looks[name, "region"]
    (region,) = found.regions
    assert (region.root, region.ways, region.granularity) == (root, len(order), 256)
    assert region.bytes == PART * len(order)
    assert (region.committed, region.mode, region.driver) == (True, "ram", "cxl_region")
    owners = [found.owner_of(target) for target in region.targets]
    assert [owner.serial for owner in owners if owner] == order
    window = found.root(root)
    assert window is not None
    assert window.regions == (region.name,)
    assert window.free_bytes == window.bytes - region.bytes
    assert region.start == window.start
    for memdev in found.memdevs:
        first = memdev.decoders[0]
        assert (first.mode, first.dpa_start, first.dpa_bytes) == ("ram", 0, PART)
        assert first.region == region.name
        assert (memdev.used_bytes, memdev.free_bytes, memdev.committed) == (PART, 0, 1)
    (dax,) = found.dax
    assert region.dax == (dax.name,)
    assert (dax.kind, dax.region, dax.driver) == ("cxl", region.name, "device_dax")
    assert (dax.bytes, dax.align, dax.start) == (region.bytes, 2 * MIB, region.start)
    assert (dax.region_bytes, dax.available_bytes) == (region.bytes, 0)
    assert dax.target_node > 0


@pytest.mark.parametrize("name", ["1hb2", "2hb4", "sw4", "7.3-2hb2"])
def test_a_split_dax_device(looks: Looks, name: str) -> None:
    _, found = looks[name, "split"]
    (region,) = found.regions
    first, second = found.dax
    assert region.dax == (first.name, second.name)
    assert second.bytes == 16 * MIB
    assert first.bytes + second.bytes == region.bytes
    assert first.start is not None
    assert second.start == first.start + first.bytes
    assert first.folder == second.folder
    assert first.folder.endswith(f"/dax_{region.name}/dax_region")


# ------------------------------------------------------------- kmem, and what goes away


def test_blocks_online_and_offline(looks: Looks) -> None:
    for look, state, zones in (
        ("kmem", "online", "Normal"),
        ("offline", "offline", "Normal Movable"),
    ):
        sysfs, found = looks["2hb2", look]
        (dax,) = found.dax
        assert dax.driver == "kmem"
        blocks = blocks_of(sysfs, found, dax.name)
        assert [(b.state, b.zones) for b in blocks] == [(state, zones)] * 4
        assert blocks == blocks_of(sysfs, found, dax.region)
        assert blocks[0].start == dax.start
        assert sum(found.policy.block_bytes for _ in blocks) == dax.bytes
    sysfs, found = looks["2hb2", "nodriver"]
    assert found.dax[0].driver == ""
    assert blocks_of(sysfs, found, "dax2.0") == ()


def test_blocks_by_node_where_addresses_are_hidden(looks: Looks) -> None:
    sysfs, found = looks["2hb2", "kmem"]
    hidden = replace(found.dax[0], start=None)
    found = replace(found, dax=(hidden,), regions=())
    assert len(blocks_of(sysfs, found, hidden.name)) == 4
    # A node with CPUs has memory of its own: those blocks say nothing.
    found = replace(found, dax=(replace(hidden, target_node=0),))
    assert blocks_of(sysfs, found, hidden.name) == ()


def test_blocks_of_a_range_of_nonsense(looks: Looks) -> None:
    sysfs, found = looks["2hb2", "kmem"]
    assert len(blocks_within(sysfs, 0, 1 << 63, found.policy.block_bytes)) > 4
    assert blocks_within(sysfs, 0, 1 << 63, 0) == ()
    assert blocks_of(sysfs, found, "dax9.9") == ()


def test_a_device_that_left(looks: Looks) -> None:
    _, found = looks["2hb2", "gone"]
    (left,) = found.memdevs
    (region,) = found.regions
    assert (region.committed, region.driver, region.dax) == (False, "", ())
    assert region.targets == ("", left.decoders[0].name)
    assert left.used_bytes == PART
    (skipped,) = found.skipped
    assert skipped.name == "0000:0d:00.0"
    assert "cxl_pci has not taken it" in skipped.why
    _, back = looks["2hb2", "back"]
    returned = by_serial(back)[0x100]
    assert (returned.free_bytes, returned.problem) == (PART, "")
    assert back.skipped == ()


def test_devices_without_their_drivers(looks: Looks) -> None:
    _, found = looks["2hb2", "unbound"]
    assert by_serial(found)[0x100].problem == ""
    unbound = by_serial(found)[0x101]
    assert (unbound.endpoint, unbound.decoders, unbound.driver) == ("", (), "")
    assert "cxl_mem has not taken it" in unbound.problem
    assert unbound.host_bridge == "pci0000:34"  # by its PCI path
    _, found = looks["2hb2", "noacpi"]
    assert [("modprobe cxl_acpi" in m.problem) for m in found.memdevs] == [True, True]
    _, found = looks["2hb2", "unloaded"]
    assert found.memdevs == ()
    assert [s.name for s in found.skipped] == ["0000:0d:00.0", "0000:35:00.0"]
    assert all("modprobe cxl_pci" in s.why for s in found.skipped)


# ---------------------------------------------------------------------------- resolve


def test_names(looks: Looks) -> None:
    _, found = looks["2hb4", "before"]
    wanted = by_serial(found)[0x102]
    number = wanted.name.removeprefix("mem")
    for name in (
        wanted.name, f"cxl{number}", f"CXL{number}", "0x102", "258", wanted.pci,
        wanted.pci.removeprefix("0000:"), wanted.identity, f" {wanted.name} ",
    ):  # fmt: skip
        assert resolve(found, name) is wanted


@pytest.mark.parametrize("name", ["mem9", "cxl9", "0x999", "", "0", "mem", "root0", "٣", "0x"])
def test_a_name_of_nothing(looks: Looks, name: str) -> None:
    _, found = looks["2hb4", "before"]
    with pytest.raises(NotFoundError) as raised:
        resolve(found, name)
    assert "mem0 (serial:0x102)" in raised.value.message


def test_a_name_of_what_was_skipped(looks: Looks) -> None:
    _, found = looks["2hb2", "gone"]
    with pytest.raises(NotFoundError, match="cxl_pci has not taken it"):
        resolve(found, "0000:0d:00.0")


def test_serials_all_zero(looks: Looks) -> None:
    _, found = looks["2hb4", "before"]
    zero = replace(found, memdevs=tuple(replace(m, serial=0) for m in found.memdevs))
    with pytest.raises(UsageError, match="4 devices") as raised:
        resolve(zero, "0")
    assert "PCI address" in raised.value.hint
    one = zero.memdevs[1]
    assert one.identity == f"pci:{one.pci}"
    assert resolve(zero, one.identity) is one


# ------------------------------------------------------------------- the looks themselves


def test_a_look_at_a_tree_is_the_tree(looks: Looks, tmp_path: Path) -> None:
    """tools/sysfslook.py keeps all that the reader reads."""
    file = tmp_path / "looks.json.xz"
    tool = Path(__file__).resolve().parents[2] / "tools" / "sysfslook.py"
    for name in ("kmem", "unloaded"):
        sysfs, found = looks["2hb2", name]
        subprocess.run(
            [sys.executable, str(tool), str(file), name, str(sysfs.root)], check=True
        )
        taken = json.loads(lzma.decompress(file.read_bytes()))
        again = unpack(taken[name], tmp_path / name)
        assert read(again) == found
        assert blocks_of(again, found, "dax2.0") == blocks_of(sysfs, found, "dax2.0")
    assert set(taken) == {"kmem", "unloaded"}
