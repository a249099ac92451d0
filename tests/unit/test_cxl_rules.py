# SPDX-License-Identifier: Apache-2.0
"""The kernel's rules, refused before anything is written, with what would be valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from unit.region_kit import CXL, UNIT, House, device, one_window, topology

from sacctl.cxl import positions, rules
from sacctl.cxl.model import EndpointDecoder, RootDecoder
from sacctl.cxl.verdict import judge
from sacctl.errors import RefusedError, UsageError

GIB = 1 << 30


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two bridges with two devices each; windows x1, x1 and x2."""
    made = House(tmp_path_factory.mktemp("two"), "2hb4")
    yield made
    made.close()


@pytest.fixture(scope="module")
def fine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two bridges with one device each; the x2 window has 4 KiB granularity."""
    made = House(tmp_path_factory.mktemp("fine"), "2hb2g4k")
    yield made
    made.close()


def root(house: House, name: str) -> RootDecoder:
    found = house.topology().root(name)
    assert found is not None
    return found


def refused(
    house: House, window: str, serials: list[int], granularity: int = 256, size: int = 0
) -> UsageError:
    with pytest.raises(UsageError) as error:
        rules.check(
            house.topology(),
            root(house, window),
            house.memdevs(*serials),
            granularity,
            size or UNIT * len(serials),
        )
    return error.value


def test_the_valid_is_valid(two: House) -> None:
    topology = two.topology()
    x2 = root(two, "decoder0.2")
    rules.check(topology, x2, two.memdevs(0x100, 0x102, 0x101, 0x103), 256, 4 * UNIT)
    rules.check(topology, x2, two.memdevs(0x101, 0x103), 256, 2 * UNIT)
    rules.check(topology, root(two, "decoder0.1"), two.memdevs(0x102, 0x103), 16384, 2 * UNIT)
    rules.check(topology, root(two, "decoder0.0"), two.memdevs(0x101), 1024, UNIT)


def test_devices_of_another_bridge_say_which_window_reaches_them(two: House) -> None:
    """Reported as "no active memdevs found: decoder: decoder0.0 filter: mem1,mem3"."""
    error = refused(two, "decoder0.0", [0x102, 0x103])
    names = positions.names_of(two.memdevs(0x102, 0x103))
    assert f"decoder0.0 does not reach {names} (below pci0000:34)" in error.message
    assert "it leads to pci0000:0c" in error.message
    assert error.hint == f"decoder0.1 (x1), decoder0.2 (x2) can reach {names}"


def test_wrong_positions_say_the_valid_order(two: House) -> None:
    """Reported as "failed to set target0 to mem1"."""
    right = positions.names_of(two.memdevs(0x100, 0x102, 0x101, 0x103))
    error = refused(two, "decoder0.2", [0x100, 0x101, 0x102, 0x103])
    second = two.memdevs(0x101)[0].name
    assert "position 1 of decoder0.2 leads to host bridge pci0000:34" in error.message
    assert f"{second} is below pci0000:0c" in error.message
    assert error.hint == f"the order {right}"
    error = refused(two, "decoder0.2", [0x102, 0x100])
    assert error.hint == f"the order {positions.names_of(two.memdevs(0x100, 0x102))}"


def test_two_devices_of_one_bridge_in_an_interleaved_window(two: House) -> None:
    error = refused(two, "decoder0.2", [0x100, 0x101])
    assert "interleaves over 2 host bridges, so each must give the same number" in str(error)
    assert "pci0000:34: none" in error.message
    assert error.hint == "add devices below each of its bridges"


def test_granularity_of_an_interleaved_window(fine: House) -> None:
    """Reported as "For and x2 root, only root decoder granularity (8192) permitted"."""
    error = refused(fine, "decoder0.2", [0x100, 0x101], 256)
    assert "interleaves over 2 host bridges at 4096" in error.message
    assert error.hint == "--granularity 4096, or leave it out"
    rules.check(
        fine.topology(), root(fine, "decoder0.2"), fine.memdevs(0x100, 0x101), 4096, 2 * UNIT
    )


@pytest.mark.parametrize("granularity", [0, 1, 128, 300, 32768, -256])
def test_granularity_that_no_window_allows(two: House, granularity: int) -> None:
    error = refused(two, "decoder0.0", [0x100], granularity)
    assert "powers of two from 256 to 16384" in error.message
    assert error.hint == "one of 256, 512, 1024, 2048, 4096, 8192, 16384"


@pytest.mark.parametrize("granularity", rules.GRANULARITIES)
def test_granularity_is_free_below_one_bridge(two: House, granularity: int) -> None:
    rules.check(
        two.topology(),
        root(two, "decoder0.0"),
        two.memdevs(0x100, 0x101),
        granularity,
        2 * UNIT,
    )


@pytest.mark.parametrize(
    ("ways", "valid"),
    [
        (1, (1, 2, 4, 8, 16)),
        (2, (2, 4, 8, 16)),
        (3, (3, 6, 12)),
        (4, (4, 8, 16)),
        (6, (6, 12)),
        (12, (12,)),
    ],
)
def test_ways_by_window(two: House, ways: int, valid: tuple[int, ...]) -> None:
    window = replace(root(two, "decoder0.2"), ways=ways, targets=("",) * ways)
    assert rules.ways_of(window) == valid


def test_three_devices_below_one_bridge() -> None:
    window, devices = one_window(), [device(n) for n in range(3)]
    with pytest.raises(UsageError, match="3 devices cannot be interleaved") as error:
        rules.check(topology(window, devices), window, devices, 256, 3 * UNIT)
    assert "decoder0.0: it takes regions of 1, 2, 4, 8, 16 devices" in error.value.message
    assert error.value.hint == "1, 2, 4, 8, 16 devices"


@pytest.mark.parametrize("count", [5, 7, 9, 17])
def test_number_of_devices_that_no_region_has(count: int) -> None:
    window, devices = one_window(), [device(n) for n in range(count)]
    with pytest.raises(UsageError, match="it takes regions of 1, 2, 4, 8, 16 devices"):
        rules.check(topology(window, devices), window, devices, 256, count * UNIT)


@pytest.mark.parametrize(
    ("size", "near"),
    [
        (UNIT, "--size 512M"),
        (3 * UNIT, "--size 512M or --size 1G"),
        (2 * UNIT + 4096, "--size 512M or --size 1G"),
        (-UNIT, ""),
    ],
)
def test_size_is_a_multiple_of_256_mib_a_device(two: House, size: int, near: str) -> None:
    error = refused(two, "decoder0.2", [0x100, 0x102], size=size)
    assert "a multiple of 256 MiB x 2 = 512 MiB" in error.message
    assert error.hint == near


def test_size_beyond_the_devices(two: House) -> None:
    error = refused(two, "decoder0.2", [0x100, 0x102], size=4 * UNIT)
    assert "every device must give 512 MiB" in error.message
    assert "has 256 MiB free" in error.message
    assert error.hint == "--size 512M or less"


def test_size_beyond_the_window() -> None:
    window, devices = one_window(), [device(0, ram_bytes=16 * GIB)]
    with pytest.raises(UsageError, match="4 GiB of addresses free in one piece") as error:
        rules.check(topology(window, devices), window, devices, 256, 8 * GIB)
    assert error.value.hint == "--size 4G or less"


def test_window_for_persistent_memory_only(two: House) -> None:
    window = replace(root(two, "decoder0.0"), ram=False)
    with pytest.raises(UsageError, match="not for volatile memory"):
        rules.check(two.topology(), window, two.memdevs(0x100), 256, UNIT)


def test_the_same_device_twice(two: House) -> None:
    error = refused(two, "decoder0.2", [0x100, 0x102, 0x100, 0x102])
    assert "given twice" in error.message


def test_device_without_an_endpoint_says_why() -> None:
    window = one_window()
    broken = device(0, endpoint="", problem="the driver cxl_mem is not loaded", decoders=())
    with pytest.raises(UsageError, match="mem0 has no endpoint: the driver cxl_mem is not"):
        rules.check(topology(window, [broken]), window, [broken], 256, UNIT)


def test_device_with_persistent_memory_only() -> None:
    window = one_window()
    with pytest.raises(UsageError, match="mem0 has only persistent memory"):
        rules.check_device(topology(window, []), device(0, ram_bytes=0, pmem_bytes=GIB))


def decoders(*used: int, region: str = "", locked: int = -1) -> tuple[EndpointDecoder, ...]:
    return tuple(
        EndpointDecoder(
            f"decoder10.{i}",
            "ram" if size else "none",
            None,
            size,
            region if size else "",
            i == locked,
        )
        for i, size in enumerate(used)
    )


def test_decoders_are_taken_in_order() -> None:
    def next_of(*used: int, locked: int = -1) -> str:
        found = rules.next_decoder(device(0, decoders=decoders(*used, locked=locked)))
        return found.name if found else ""

    assert next_of(0, 0, 0) == "decoder10.0"
    assert next_of(UNIT, 0, 0) == "decoder10.1"
    # The kernel gives decoder 2 behind decoder 1, though 0 is free.
    assert next_of(0, UNIT, 0) == "decoder10.2"
    assert next_of(UNIT, UNIT) == ""
    assert next_of(0, 0, locked=0) == ""


def test_device_without_a_free_decoder() -> None:
    window = one_window()
    full = device(0, decoders=decoders(UNIT, UNIT, region="region0"), committed=2)
    with pytest.raises(UsageError, match=r"no decoder to give.*all are in use"):
        rules.check_device(topology(window, [full]), full)
    locked = device(0, decoders=decoders(0, 0, locked=0))
    with pytest.raises(UsageError, match=r"decoder10\.0 is locked by firmware"):
        rules.check_device(topology(window, [locked]), locked)


def test_device_whose_memory_is_taken_says_by_what() -> None:
    window = one_window()
    taken = device(0, decoders=decoders(GIB, 0, region="region7"), committed=1)
    with pytest.raises(
        UsageError, match=r"0 bytes free of 1 GiB.*region7 has the rest"
    ) as error:
        rules.check_device(topology(window, [taken]), taken)
    assert "pool adopt region7" in error.value.hint
    forgotten = device(0, decoders=decoders(GIB, 0))
    with pytest.raises(UsageError) as error:
        rules.check_device(topology(window, [forgotten]), forgotten)
    assert "decoder10.0/dpa_size" in error.value.hint


def test_device_that_decodes_without_a_region_is_left_alone() -> None:
    window = one_window()
    kexec = device(0, committed=1)
    with pytest.raises(UsageError, match=r"decodes memory without a region.*left alone"):
        rules.check_device(topology(window, [kexec]), kexec)


def test_bridge_with_one_decoder_has_one_region(tmp_path: Path) -> None:
    """A bridge with a single root port passes everything through, by one decoder."""
    house = House(tmp_path, "1hb1", size=2 * UNIT)
    made = house.create(bytes=UNIT)
    with pytest.raises(
        RefusedError, match="has no decoder free: its only one is used by region0"
    ) as error:
        house.plan()
    assert "destroy region0" in error.value.hint
    # The kernel agrees: it is its errno that the rule is about.
    decoder = house.memdevs()[0].decoders[1].name
    write = house.machine.write
    for path, value in [
        ("decoder0.0/create_ram_region", "region1"),
        ("region1/interleave_granularity", "256"),
        ("region1/interleave_ways", "1"),
        (f"{decoder}/mode", "ram"),
        (f"{decoder}/dpa_size", f"{UNIT:#x}"),
        ("region1/size", f"{UNIT:#x}"),
    ]:
        assert write(f"{CXL}/{path}", value) == 0, path
    assert write(f"{CXL}/region1/target0", decoder) == 16  # EBUSY
    assert made.region == "region0"
    house.close()


def test_regions_on_one_port_are_made_in_the_order_of_addresses(tmp_path: Path) -> None:
    """The x2 window lies above the x1 window of the first bridge."""
    house = House(tmp_path, "2hb4", size=2 * UNIT)
    high = house.create(0x100, 0x102, bytes=2 * UNIT).region
    topology = house.topology()
    low = topology.root("decoder0.0")
    assert low is not None
    with pytest.raises(RefusedError, match="HPA order") as error:
        rules.check(topology, low, house.memdevs(0x101), 256, UNIT)
    assert f"below {high} at" in error.value.message
    assert error.value.hint.startswith(f"destroy {high} first")
    # Behind it in the same window there is room.
    rules.check(
        topology,
        root(house, "decoder0.2"),
        house.memdevs(0x101, 0x103),
        256,
        2 * UNIT,
    )
    house.close()


def test_a_device_that_the_order_of_addresses_forbids_says_so(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb4", size=2 * UNIT)
    high = house.create(0x100, 0x102, bytes=2 * UNIT).region
    (free,) = house.memdevs(0x101)
    said = judge(house.topology(), free)
    # Its own window lies below the region; with a device of the other bridge it goes.
    assert (said.word, said.hint) == ("usable", "sacctl pool plan")
    assert f"not alone, for {high} lies above it" in said.text
    house.close()
