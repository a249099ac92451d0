# SPDX-License-Identifier: Apache-2.0
"""Plans: positions from the topology, the window, sizes, several regions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from unit.region_kit import CXL, DAX, UNIT, House, device, quiet

from sacctl.cxl import bandwidth, equivalents, plan, positions
from sacctl.cxl.made import Made
from sacctl.cxl.model import Link, Memdev, Policy, RootDecoder, Topology
from sacctl.errors import UsageError
from sacctl.pool.steps import carry_out

GIB = 1 << 30


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two bridges with two devices each; windows x1, x1 and x2."""
    made = House(tmp_path_factory.mktemp("two"), "2hb4")
    yield made
    made.close()


def serials(house: House, names: tuple[str, ...]) -> list[int]:
    found = {m.name: m.serial for m in house.topology().memdevs}
    return [found[name] for name in names]


def test_any_order_gives_the_same_positions(two: House) -> None:
    seen = {
        plan.plan_region(two.topology(), order)
        for order in itertools.permutations(two.memdevs())
    }
    orders = {one.order for one in seen}
    assert [serials(two, order) for order in orders] == [[0x100, 0x102, 0x101, 0x103]]
    one = next(iter(seen))
    assert (one.root, one.ways, one.granularity) == ("decoder0.2", 4, 256)
    assert (one.bytes, one.bytes_each) == (4 * UNIT, UNIT)
    assert one.identities == ("serial:0x100", "serial:0x102", "serial:0x101", "serial:0x103")
    owners = [two.topology().owner_of(decoder) for decoder in one.decoders]
    assert tuple(m.name for m in owners if m) == one.order


@pytest.mark.parametrize(
    ("given", "window"),
    [
        ([0x100, 0x101], "decoder0.0"),
        ([0x103, 0x102], "decoder0.1"),
        ([0x101], "decoder0.0"),
        ([0x102, 0x101], "decoder0.2"),
    ],
)
def test_the_window_that_reaches_the_devices(two: House, given: list[int], window: str) -> None:
    assert two.plan(*given).root == window


def test_what_was_chosen_is_said(two: House) -> None:
    said = "; ".join(two.plan(0x103, 0x102, 0x101, 0x100).why)
    assert "window decoder0.2: it leads to 2 host bridges pci0000:0c, pci0000:34" in said
    assert "bridges and switches decode in turn" in said
    assert "granularity 256: the window's" in said
    assert "rows spread evenly" in "; ".join(two.plan(0x100, 0x101).why)


def test_granularity_asked_for(two: House) -> None:
    assert two.plan(0x100, 0x101, granularity=4096).granularity == 4096
    with pytest.raises(UsageError, match="interleaves over 2 host bridges at 256"):
        two.plan(0x100, 0x102, granularity=4096)


def test_size_asked_for(tmp_path: Path) -> None:
    house = House(tmp_path, "1hb2", size=4 * UNIT)
    planned = house.plan(bytes=2 * UNIT)
    assert (planned.bytes, planned.bytes_each) == (2 * UNIT, UNIT)
    with pytest.raises(UsageError, match="a multiple of 256 MiB x 2") as error:
        house.plan(bytes=3 * UNIT)
    assert error.value.hint == "--size 512M or --size 1G"
    house.close()


def test_positions_of_a_record_are_checked_and_kept(two: House) -> None:
    topology, memdevs = two.topology(), two.memdevs(0x101, 0x103, 0x100, 0x102)
    kept = plan.plan_region(topology, memdevs, as_given=True)
    assert serials(two, kept.order) == [0x101, 0x103, 0x100, 0x102]
    with pytest.raises(UsageError, match="position 1 of decoder0"):
        plan.plan_region(topology, two.memdevs(0x100, 0x101, 0x102, 0x103), as_given=True)


def test_error_of_the_nearest_window_is_the_one_that_is_said(two: House) -> None:
    with pytest.raises(UsageError) as error:
        two.plan(0x100, 0x101, 0x102)
    assert "3 devices cannot be interleaved in decoder0.2" in error.value.message
    assert "decoder0.0" not in error.value.message
    with pytest.raises(UsageError, match="at least one device"):
        plan.plan_region(two.topology(), [])


def test_no_window_at_all(two: House) -> None:
    bare = replace(two.topology(), roots=())
    with pytest.raises(UsageError, match=r"no window for volatile CXL memory.*CFMWS"):
        plan.plan_region(bare, two.memdevs())


def test_devices_of_mixed_size_give_the_smallest(tmp_path: Path) -> None:
    house = House(tmp_path, "1hb2", size=[UNIT, 3 * UNIT])
    found = plan.plan_pool(house.topology(), house.memdevs())
    assert found.bytes == 2 * UNIT
    name = house.memdevs(0x101)[0].name
    assert found.stranded == {name: 2 * UNIT}
    assert f"not used: 512 MiB of {name}" in "; ".join(found.why)
    house.close()


def test_a_window_smaller_than_the_devices_is_said() -> None:
    devices = [device(n, ram_bytes=4 * GIB) for n in range(2)]
    topology = hand_made(devices, free=4 * GIB)
    found = plan.plan_pool(topology, devices)
    assert found.bytes == 4 * GIB
    assert "the window has no more than 4 GiB free" in "; ".join(found.why)
    assert found.stranded == {"mem0": 2 * GIB, "mem1": 2 * GIB}


def test_one_region_where_hardware_interleaves_all(two: House) -> None:
    found = plan.plan_pool(two.topology(), two.memdevs())
    assert len(found.regions) == 1
    assert found.regions[0] == two.plan()
    assert found.stranded == {}


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        # the x1 window of the first bridge lies lower: it is made first
        ([0x100, 0x101, 0x102], [{0x101}, {0x100, 0x102}]),
        ([0x100, 0x102, 0x103], [{0x103}, {0x100, 0x102}]),
    ],
)
def test_few_regions_where_it_does_not(
    two: House, given: list[int], parts: list[set[int]]
) -> None:
    found = plan.plan_pool(two.topology(), two.memdevs(*given))
    assert [set(serials(two, region.order)) for region in found.regions] == parts
    assert found.bytes == 3 * UNIT
    assert "interleaving in software" in "; ".join(found.why)
    assert "3 devices cannot be interleaved in decoder0.2" in found.why[0]


def test_the_kernel_takes_several_regions_in_the_order_of_the_plan(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb4", size=[UNIT, 2 * UNIT, UNIT, UNIT])
    found = plan.plan_pool(house.topology(), house.memdevs(0x102, 0x101, 0x100))
    for region in found.regions:
        carry_out(house.steps(Made(), region), quiet)
    topology = house.topology()
    assert sum(r.bytes for r in topology.regions) == found.bytes == 4 * UNIT
    assert all(r.committed for r in topology.regions)
    house.close()


def test_bytes_of_several_regions_are_shared_out(tmp_path: Path) -> None:
    house = House(tmp_path, "1hb4", size=4 * UNIT)
    three = house.memdevs(0x100, 0x101, 0x102)

    def sizes(size: int) -> list[tuple[int, int]]:
        found = plan.plan_pool(house.topology(), three, bytes=size)
        assert found.bytes == size
        return sorted((region.ways, region.bytes // UNIT) for region in found.regions)

    assert sizes(3 * UNIT) == [(1, 1), (2, 2)]
    assert sizes(4 * UNIT) == [(1, 2), (2, 2)]
    assert sizes(12 * UNIT) == [(1, 4), (2, 8)]
    assert sizes(2 * UNIT) == [(2, 2)]
    with pytest.raises(UsageError, match="at most 3 GiB together") as error:
        plan.plan_pool(house.topology(), three, bytes=13 * UNIT)
    assert error.value.hint == "--size 3G"
    with pytest.raises(UsageError) as error:
        plan.plan_pool(house.topology(), three, bytes=3 * UNIT + 4096)
    assert error.value.hint == "--size 768M"
    house.close()


def test_an_option_that_forbids_one_region_is_not_worked_around(two: House) -> None:
    topology, memdevs = two.topology(), two.memdevs()
    with pytest.raises(UsageError, match="interleaves over 2 host bridges at 256") as error:
        plan.plan_pool(topology, memdevs, granularity=4096)
    assert error.value.hint == "--granularity 256, or leave it out"
    with pytest.raises(UsageError, match="a multiple of 256 MiB x 4"):
        plan.plan_pool(topology, memdevs, bytes=3 * UNIT)
    with pytest.raises(UsageError, match="given twice"):
        plan.plan_pool(topology, [*memdevs, memdevs[0]])


def test_devices_that_no_window_joins() -> None:
    devices = [device(0), device(1, bridge="pci0000:34")]
    topology = hand_made(devices, bridges=("pci0000:0c", "pci0000:34"))
    found = plan.plan_pool(topology, devices)
    assert [region.order for region in found.regions] == [("mem0",), ("mem1",)]
    assert [region.root for region in found.regions] == ["decoder0.0", "decoder0.1"]


def test_a_device_that_cannot_be_used_is_named(two: House) -> None:
    broken = [replace(m, endpoint="", problem="no driver") for m in two.memdevs(0x101)]
    with pytest.raises(UsageError, match="has no endpoint: no driver"):
        plan.plan_pool(two.topology(), [*two.memdevs(0x100), *broken])


def test_bandwidth_is_of_the_slowest_link_times_ways() -> None:
    fast, slow = Link(32.0, 16, 32.0, 16), Link(32.0, 8, 32.0, 16)
    devices = [device(0, link=fast), device(1, link=slow)]
    found = plan.plan_pool(hand_made(devices), devices).bandwidth
    assert found.bytes_per_second == 2 * bandwidth.link_bytes(slow)
    # 32 GT/s over 8 lanes are 32 GB/s raw; 128/130 and 64/68 of it are memory.
    assert bandwidth.link_bytes(slow) == pytest.approx(29.65e9, rel=0.001)
    assert "slowest device of a region times its ways" in found.how
    assert bandwidth.link_bytes(Link(64.0, 8, 64.0, 8)) == pytest.approx(59.0e9, rel=0.001)


def test_bandwidth_that_is_not_known_is_not_invented() -> None:
    devices = [device(0)]
    found = plan.plan_pool(hand_made(devices), devices).bandwidth
    assert found == bandwidth.Bandwidth(0, "not known: no link speed for mem0")


def test_bandwidth_behind_a_switch_says_what_it_leaves_out() -> None:
    link = Link(16.0, 8, 16.0, 8)
    devices = [
        device(n, link=link, dports=("0000:0c:00.0", f"0000:0e:0{n}.0")) for n in range(2)
    ]
    found = plan.plan_pool(hand_made(devices), devices).bandwidth
    assert "a switch's own link may be less" in found.how


def test_bandwidth_that_is_reported(tmp_path: Path) -> None:
    house = House(tmp_path, "1hb1")
    region = house.create().region
    assert bandwidth.reported(house.sysfs, "region9") is None
    for access, megabytes in (("access1", 21500), ("access0", 20000)):
        folder = house.sysfs.at(f"{CXL}/{region}/{access}").resolve()
        folder.mkdir(exist_ok=True)
        (folder / "read_bandwidth").write_text(f"{megabytes}\n")
        if access == "access1":
            (house.sysfs.at(f"{CXL}/{region}/access0") / "read_bandwidth").unlink(
                missing_ok=True
            )
        found = bandwidth.reported(house.sysfs, region)
        assert found is not None
        assert found.bytes_per_second == megabytes * 1_000_000
        assert f"{access} of region0" in found.how
    house.close()


def test_lines_for_cxl_and_daxctl(two: House) -> None:
    planned = two.plan()
    names = positions.names_of(two.memdevs(0x100, 0x102, 0x101, 0x103)).replace(",", "")
    assert equivalents.create(planned, region="region2") == [
        f"echo 0 > {DAX}/drivers_autoprobe",
        f"cxl create-region -t ram -d decoder0.2 -w 4 -g 256 -s {4 * UNIT} -m {names}",
        "daxctl reconfigure-device -m devdax dax2.0",
        f"echo 1 > {DAX}/drivers_autoprobe",
    ]
    assert equivalents.create(planned, region="region2", sizes=(3 * UNIT, UNIT))[2:-1] == [
        f"daxctl reconfigure-device -s {3 * UNIT} dax2.0",
        f"daxctl create-device -r 2 -s {UNIT}",
        "daxctl reconfigure-device -m devdax dax2.0",
        "daxctl reconfigure-device -m devdax dax2.1",
    ]
    assert equivalents.create(planned, driver="kmem", autoprobe="0")[-2:] == [
        "daxctl reconfigure-device -m system-ram --no-online daxN.0",
        f"echo 0 > {DAX}/drivers_autoprobe",
    ]
    assert equivalents.destroy("region2", ["dax2.0", "dax2.1"]) == [
        "daxctl disable-device dax2.1",
        "daxctl disable-device dax2.0",
        "cxl disable-region region2",
        "cxl destroy-region region2",
    ]


def hand_made(
    devices: Sequence[Memdev], bridges: Sequence[str] = ("pci0000:0c",), free: int = 64 * GIB
) -> Topology:
    """A machine with an x1 window for each bridge."""
    roots = tuple(
        RootDecoder(
            name=f"decoder0.{n}",
            start=(n + 1) << 40,
            bytes=free,
            ways=1,
            granularity=256,
            targets=(bridge,),
            ram=True,
            locked=False,
            free_bytes=free,
            regions=(),
        )
        for n, bridge in enumerate(bridges)
    )
    policy = Policy("offline", True, (), 128 << 20)
    return Topology(tuple(devices), roots, (), (), policy, (), "6.12.0")
