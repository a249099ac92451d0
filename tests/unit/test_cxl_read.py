# SPDX-License-Identifier: Apache-2.0
"""The reader against what real kernels showed (tests/data/sysfs)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from unit.cxl_dump import LOOKS, tree

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


@pytest.mark.parametrize("name", ["1hb2", "2hb4", "sw4"])
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
    assert found.kernel.startswith("6.12.")
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


@pytest.mark.parametrize("name", ["1hb2", "2hb4", "sw4"])
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


# ------------------------------------------------------------------- changed by hand


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
