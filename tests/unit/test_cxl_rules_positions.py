# SPDX-License-Identifier: Apache-2.0
"""Positions in trees of bridges and switches that nobody simulates."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.region_kit import UNIT, device, one_window, topology

from sacctl.cxl import positions, rules
from sacctl.errors import UsageError

GIB = 1 << 30


def test_order_below_two_switches_of_one_bridge() -> None:
    """The bridge takes the lowest bit, each switch the next two."""
    window = one_window()
    devices = [
        device(n, dports=(f"0000:0c:0{n // 4}.0", f"0000:0e:0{n % 4}.0")) for n in range(8)
    ]
    ordered = positions.in_order(window, list(reversed(devices)))
    assert [m.name for m in ordered] == [f"mem{n}" for n in (0, 4, 1, 5, 2, 6, 3, 7)]
    assert positions.mistake(window, ordered) == ""
    wrong = [ordered[i] for i in (0, 1, 2, 3, 4, 5, 7, 6)]
    assert "decodes in turn over its 2 ports" in positions.mistake(window, wrong)
    side_by_side = sorted(devices, key=lambda m: m.name)
    assert positions.mistake(window, side_by_side) != ""


def test_switches_with_different_numbers_of_devices() -> None:
    window = one_window()
    paths = ["00", "00", "00", "01"]
    devices = [
        device(n, dports=(f"0000:0c:{path}.0", f"0000:0e:0{n}.0"))
        for n, path in enumerate(paths)
    ]
    with pytest.raises(UsageError, match="the same number of devices must be below") as error:
        rules.check(topology(window, devices), window, devices, 256, 4 * UNIT)
    assert "host bridge port12 (pci0000:0c)" in error.value.message
    assert error.value.hint.startswith("leave out mem1, mem2")


def test_order_depends_on_addresses_and_not_on_names() -> None:
    window = one_window()
    devices = [device(n, dports=(f"0000:0c:0{3 - n}.0",)) for n in range(4)]
    assert [m.name for m in positions.in_order(window, devices)] == [
        "mem3",
        "mem2",
        "mem1",
        "mem0",
    ]


def test_twelve_devices_below_three_bridges() -> None:
    bridges = ("pci0000:0c", "pci0000:34", "pci0000:5c")
    window = one_window(ways=3, targets=bridges, granularity=1024, free_bytes=64 * GIB)
    devices = [
        device(n, bridge=bridges[n % 3], dports=(f"0000:0c:0{n // 3}.0",)) for n in range(12)
    ]
    assert [m.name for m in positions.in_order(window, devices)] == [
        f"mem{n}" for n in range(12)
    ]
    rules.check(topology(window, devices), window, devices, 1024, 12 * UNIT)
    lopsided = [*devices[:5], devices[6]]
    with pytest.raises(UsageError, match="must give the same number") as error:
        rules.check(topology(window, lopsided), window, lopsided, 1024, 6 * UNIT)
    assert error.value.hint == "leave out mem3, mem6, mem4"


@given(
    bridges=st.sampled_from([1, 2, 3, 4]),
    slots=st.sampled_from([1, 2, 4]),
    below=st.sampled_from([1, 2, 4]),
    chance=st.randoms(use_true_random=False),
)
def test_every_address_is_routed_to_the_device_of_its_position(
    bridges: int, slots: int, below: int, chance: random.Random
) -> None:
    """Followed through the decoders from the top: the window takes an address's lowest bits,
    the bridge the next, a switch those above. Where it ends, that device stands."""
    ways = bridges * slots * below
    if ways not in rules.WAYS:
        return
    names = [f"pci0000:{0x10 + 8 * b:02x}" for b in range(bridges)]
    chance.shuffle(names)  # the window's targets are in no order either
    numbers = list(range(ways))
    chance.shuffle(numbers)
    at = {}
    for (bridge, slot, port), number in zip(
        itertools.product(range(bridges), range(slots), range(below)), numbers, strict=True
    ):
        dports = (f"0000:{0x10 + bridge:02x}:{slot:02x}.0", f"0000:80:{port:02x}.0")
        at[bridge, slot, port] = device(number, bridge=names[bridge], dports=dports)
    window = one_window(ways=bridges, targets=tuple(names))
    given_in = list(at.values())
    chance.shuffle(given_in)
    ordered = positions.in_order(window, given_in)
    assert positions.mistake(window, ordered) == ""
    for granule in range(2 * ways):
        rest, bridge = divmod(granule, bridges)
        rest, slot = divmod(rest, slots)
        assert ordered[granule % ways] is at[bridge, slot, rest % below]
    if bridges > 1:  # the two lowest address bits swapped: another bridge's device
        swapped = [ordered[1], ordered[0], *ordered[2:]]
        assert positions.mistake(window, swapped) != ""
