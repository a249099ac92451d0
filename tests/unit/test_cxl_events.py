# SPDX-License-Identifier: Apache-2.0
"""Events are read as two real kernels print them, and placed in pools without guessing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.faults_kit import trace_lines

from sacctl.cxl.events import Event, lost, parse, sentence
from sacctl.cxl.model import EndpointDecoder, Memdev, Policy, Region, Topology
from sacctl.cxl.poison import META, Place, Spot, locate

KERNELS = ("6.12", "7.3")


def events(kernel: str) -> list[Event]:
    return [event for line in trace_lines(kernel) if (event := parse(line)) is not None]


@pytest.mark.parametrize("kernel", KERNELS)
def test_poison_of_a_list(kernel: str) -> None:
    first = events(kernel)[0]
    assert (first.kind, first.pci, first.serial) == ("cxl_poison", "0000:0d:00.0", 0x100)
    assert (first.hpa, first.dpa, first.bytes) == (0x4D0008000, 0x4000, 128)
    assert (first.region, first.damaged, first.severity) == ("region2", True, "error")
    assert sentence(first) == (
        f"{first.memdev} (serial 0x100) has poison at device address 0x4000, in region2 at "
        "0x4d0008000, 128 bytes (internal)"
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_makes_memory_bad(kernel: str) -> None:
    found = events(kernel)
    words = [(e.kind, e.fields.get("trace_type", ""), e.damaged) for e in found]
    assert ("cxl_poison", "Inject", True) in words
    assert ("cxl_poison", "Clear", False) in words
    assert ("cxl_general_media", "", True) in words
    assert ("cxl_dram", "", True) in words
    assert ("cxl_memory_module", "", False) in words
    line = next(x for x in trace_lines(kernel) if "cxl_dram" in x)
    corrected = parse(line.replace("UNCORRECTABLE_EVENT|", ""))
    assert corrected is not None
    assert not corrected.damaged


@pytest.mark.parametrize("kernel", KERNELS)
def test_media_events_print_hexadecimal_without_a_mark(kernel: str) -> None:
    media = next(e for e in events(kernel) if e.kind == "cxl_general_media")
    dram = next(e for e in events(kernel) if e.kind == "cxl_dram")
    assert (media.dpa, media.hpa) == (0x1000, 0x4D0002000)
    assert (dram.dpa, dram.hpa) == (0x1040, 0x4D0002040)
    assert media.fields["descriptor"] == "UNCORRECTABLE_EVENT|THRESHOLD_EVENT"
    assert media.fields["comp_id"].startswith("49 72 61")
    assert "Scrub Media ECC Error (fatal)" in sentence(dram)


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_address_in_no_region(kernel: str) -> None:
    nowhere = [e for e in events(kernel) if not e.region and e.kind == "cxl_poison"]
    assert len(nowhere) == 3
    assert {e.hpa for e in nowhere} == {None}
    assert " in region" not in sentence(nowhere[0])


def test_link_errors_and_the_health_of_a_module() -> None:
    said = [sentence(e) for e in events("6.12")]
    assert (
        "mem1 (serial 0x100) has a correctable error of its link: Cache Data ECC Error" in said
    )
    assert any("uncorrectable error of its link: Cache Address Parity Error" in s for s in said)
    assert any("82 °C, 30% of its life used" in s for s in said)


def test_other_lines() -> None:
    assert parse("# tracer: nop") is None
    assert parse("x-1 [001] .....  8.18: aer_event: 0000:0d:00.0 PCIe Bus Error") is None
    assert lost("CPU:1 [LOST 12 EVENTS]") == 12
    assert lost(trace_lines("6.12")[0]) == 0


@given(st.text(max_size=300))
def test_no_line_is_too_much(text: str) -> None:
    for line in (text, f"a-1 [000] ..... 1.5: cxl_poison: {text}"):
        event = parse(line)
        assert event is None or sentence(event)


# ------------------------------------------------------------------------- their places

START, SIZE = 0x4D0000000, 1 << 30


def topology(ways: int, dpa_start: int | None = 0) -> Topology:
    region = Region(
        name="region2", root="decoder0.2", start=START, bytes=SIZE, ways=ways,
        granularity=256, targets=("decoder3.0",), committed=True, mode="ram",
        driver="cxl_region", dax=("dax2.0", "dax2.1"),
    )  # fmt: skip
    decoder = EndpointDecoder("decoder3.0", "ram", dpa_start, SIZE // ways, "region2", False)
    memdev = Memdev(
        name="mem0", serial=0x100, pci="0000:0d:00.0", vendor=0, device=0, firmware="",
        numa_node=0, ram_bytes=SIZE, pmem_bytes=0, driver="cxl_mem", host_bridge="pci0000:0c",
        ports=("port1",), dports=(), endpoint="endpoint3", decoders=(decoder,), link=None,
    )  # fmt: skip
    return Topology(
        memdevs=(memdev,), roots=(), regions=(region,), dax=(), skipped=(), kernel="",
        policy=Policy("offline", True, (), 128 << 20),
    )  # fmt: skip


KNOWN = [
    Place("kv", 0, "dax2.0", START, SIZE - (16 << 20), 0),
    Place("kv", META, "dax2.1", START + SIZE - (16 << 20), 16 << 20, 0),
]


def event(**values: object) -> Event:
    known: dict[str, object] = {
        "kind": "cxl_poison", "time": 1.0, "memdev": "mem0", "pci": "0000:0d:00.0",
        "serial": 0x100, "region": "region2", "bytes": 64, "fields": {"trace_type": "List"},
    } | values  # fmt: skip
    return Event(**known)  # type: ignore[arg-type]


def test_the_kernels_address_decides() -> None:
    found = locate(event(hpa=START + 0x2000, dpa=0x1000), topology(2), KNOWN)
    assert found.spots == (Spot("kv", 0, 0x2000, 64),)
    assert (found.pools, found.why) == (("kv",), "")


def test_metadata_and_both_sides_of_a_border() -> None:
    meta = START + SIZE - (16 << 20)
    found = locate(event(hpa=meta - 64, bytes=128), topology(1), KNOWN)
    assert found.spots == (
        Spot("kv", META, 0, 64),
        Spot("kv", 0, SIZE - (16 << 20) - 64, 64),
    )


def test_a_dax_device_that_is_not_at_its_extents_start() -> None:
    """Two ranges: the second is behind the first in the file, wherever it lies."""
    known = [
        Place("kv", 0, "dax2.0", START, 2 << 20, 0),
        Place("kv", 0, "dax2.0", START + (64 << 20), 2 << 20, 2 << 20),
    ]
    found = locate(event(hpa=START + (64 << 20) + 128), topology(1), known)
    assert found.spots == (Spot("kv", 0, (2 << 20) + 128, 64),)


def test_more_than_a_granule_takes_whole_stripes() -> None:
    """1 KiB of a device in a region of two with 256 bytes: four granules, so four stripes."""
    found = locate(event(hpa=START + 0x800000 + 256, bytes=1024), topology(2), KNOWN)
    assert found.spots == (Spot("kv", 0, 0x800000, 4 * 512),)


def test_without_the_kernels_address_a_region_of_one_device_is_exact() -> None:
    found = locate(event(hpa=None, dpa=0x3000, region=""), topology(1, 0x1000), KNOWN)
    assert found.spots == (Spot("kv", 0, 0x2000, 64),)


def test_without_it_an_interleaved_region_is_not_guessed() -> None:
    found = locate(event(hpa=None, dpa=0x3000, region=""), topology(2), KNOWN)
    assert found.spots == ()
    assert found.pools == ("kv",)
    assert "region2 is spread over 2 devices" in found.why


def test_memory_that_no_pool_has() -> None:
    assert locate(event(hpa=START - 4096, region=""), topology(2), KNOWN).spots == ()
    assert locate(event(hpa=None, dpa=None, region=""), topology(2), KNOWN).pools == ()
    unused = topology(2, None)
    assert locate(event(hpa=None, dpa=0x3000, region=""), unused, KNOWN).pools == ()
