# SPDX-License-Identifier: Apache-2.0
"""What is there already: each row of the table of sacctl.cxl.adopt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from unit.region_kit import DAX, META, UNIT, House, differences, quiet

from sacctl.cxl import adopt, daxsteps, guard, offline
from sacctl.cxl.adopt import Judgement
from sacctl.cxl.made import Made
from sacctl.errors import NotFoundError, RefusedError
from sacctl.pool.steps import carry_out


def judged(house: House, name: str) -> Judgement:
    return adopt.judge(house.topology(), house.sysfs, name)


def made_of(found: Judgement) -> Made:
    return Made(region=found.region, dax=list(found.dax))


def convert(house: House, found: Judgement, **allowed: bool) -> Made:
    made = made_of(found)
    carry_out(adopt.convert(house.sysfs, house.topology(), made, **allowed), quiet)
    return made


def test_ready_is_left_as_it_is(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2", firmware="devdax", kmem=False)
    for name in ("region2", "dax2.0", house.memdevs()[0].name):
        found = judged(house, name)
        assert (found.case, found.usable, found.needs) == ("ready", True, "nothing")
        assert (found.region, found.dax, found.foreign) == ("region2", ("dax2.0",), False)
    assert adopt.convert(house.sysfs, house.topology(), made_of(found)) == []
    house.close()


def test_hot_added_and_unused_is_converted(tmp_path: Path) -> None:
    """Reported as errno 6 on open: it is bound to kmem."""
    house = House(tmp_path, "2hb2", firmware="kmem-offline")
    found = judged(house, "region2")
    assert (found.case, found.usable, found.needs) == ("unused", True, "convert")
    assert found.message == (
        "dax2.0 is bound to kmem, not device_dax, and not used: 0 of 4 blocks online"
    )
    made = convert(house, found)
    assert house.driver(made.dax[0]) == "device_dax"
    assert judged(house, "region2").case == "ready"
    house.close()


def test_movable_needs_permission(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2", firmware="kmem-online-movable")
    found = judged(house, "dax2.0")
    assert (found.case, found.usable, found.needs) == ("movable", True, "force-offline")
    assert "dax2.0 is system RAM: 4 of 4 blocks online in zone Movable" in found.message
    assert "auto_online_blocks is online_movable" in found.message
    with pytest.raises(RefusedError) as error:
        convert(house, found)
    assert "--force-offline" in error.value.hint
    assert not house.machine.writes
    made = convert(house, found, force_offline=True)
    assert house.driver(made.dax[0]) == "device_dax"
    house.close()


def test_each_block_is_reported(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2", firmware="kmem-online-movable")
    made = made_of(judged(house, "region2"))
    step = offline.Offline(house.sysfs, made.dax_name, seconds=5.0)
    numbers = [b.number for b in offline._blocks(house.sysfs, "dax2.0")]
    step.apply()
    assert step.lines == [f"memory{n}: offline" for n in numbers]
    house.close()


def test_normal_is_there_until_the_reboot(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2", firmware="kmem-online-normal")
    found = judged(house, "region2")
    assert (found.case, found.usable, found.needs) == ("normal", False, "impossible")
    assert "until the next reboot: 4 of 4 blocks online in zone Normal" in found.message
    assert found.hint == "boot with memhp_default_state=offline"
    with pytest.raises(RefusedError):
        convert(house, found, force_offline=True)
    assert not house.machine.writes
    house.close()


def test_one_block_in_normal_is_enough(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2", firmware="kmem-offline")
    blocks = offline._blocks(house.sysfs, "dax2.0")
    for block, state in zip(blocks, ["online_movable", "online_kernel"], strict=False):
        path = offline.block_path(block)
        assert house.machine.write(path, state) == 0
    found = judged(house, "dax2.0")
    assert (found.case, found.needs) == ("normal", "impossible")
    assert "2 of 4 blocks online (1 in Movable, 1 in Normal)" in found.message
    house.close()


def test_ram_from_boot_names_the_firmwares_option(tmp_path: Path) -> None:
    """Reported as: daxctl lists nothing."""
    house = House(tmp_path, "2hb2", firmware="system-ram")
    found = judged(house, "region2")
    assert (found.case, found.usable, found.needs) == ("system-ram", False, "impossible")
    assert "its range is System RAM from boot" in found.message
    assert "Specific Purpose memory" in found.hint
    house.close()


@pytest.mark.parametrize(
    ("situation", "case", "needs"),
    [
        ("hmem-devdax", "ready", "nothing"),
        ("hmem-offline", "unused", "convert"),
        ("hmem", "normal", "impossible"),
    ],
)
def test_hmem_is_foreign(tmp_path: Path, situation: str, case: str, needs: str) -> None:
    house = House(tmp_path, "2hb2", firmware=situation)
    found = judged(house, house.topology().dax[0].name)
    assert (found.case, found.needs, found.foreign) == (case, needs, True)
    assert found.region == ""
    assert "no device health" in found.message
    if found.usable:
        made = convert(house, found)
        assert house.driver(made.dax[0]) == "device_dax"
    else:
        assert "auto_online_blocks is online" in found.message
    house.close()


def test_device_without_an_endpoint(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2", firmware="no-endpoint")
    broken = next(m for m in house.memdevs() if not m.endpoint)
    found = judged(house, broken.name)
    assert (found.case, found.usable) == ("no-endpoint", False)
    assert f"{broken.name} has no endpoint: " in found.message
    house.close()


def test_decoders_without_a_region_are_left_alone(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2", firmware="committed-no-region")
    found = judged(house, house.memdevs()[0].name)
    assert (found.case, found.usable) == ("decode-only", False)
    assert "left alone" in found.message
    house.close()


def test_device_that_nobody_made_a_region_of(tmp_path: Path) -> None:
    """Reported as: listed, but neither RAM nor dax."""
    house = House(tmp_path, "2hb2")
    name = house.memdevs()[0].name
    found = judged(house, name)
    assert found.message == f"{name} has no region: its capacity is unassigned"
    assert found.hint == f"sacctl pool create NAME --devices {name}"
    house.close()


def test_a_region_that_is_not_enabled_is_enabled(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2")
    made = house.create()
    held = guard.Guard(house.sysfs)
    free = adopt.release(house.sysfs, house.topology(), made)
    carry_out([*held.begin, *free, *held.end], quiet)
    assert house.machine.write("/sys/bus/cxl/drivers/cxl_region/unbind", made.region) == 0
    found = judged(house, made.region)
    assert (found.case, found.needs) == ("disabled", "convert")
    again = convert(house, found)
    assert [house.driver(name) for name in again.dax] == ["device_dax"]
    house.close()


def test_a_region_that_was_never_finished(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2")
    for step in house.steps(Made(), house.plan())[:10]:
        step.apply()
    found = judged(house, "region2")
    assert (found.case, found.needs) == ("broken", "impossible")
    assert "not committed: 1 of its 2 devices has gone" in found.message
    house.close()


def test_a_region_whose_device_has_gone(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2")
    made = house.create()
    house.machine.unplug(0x101)
    found = judged(house, made.region)
    assert found.case == "broken"
    assert "1 of its 2 devices has gone" in found.message
    house.close()


def test_adopted_memory_can_be_split(tmp_path: Path) -> None:
    """As a pool does for its metadata, and back."""
    house = House(tmp_path, "2hb2", firmware="devdax", kmem=False)
    before = house.machine.snapshot()
    found = judged(house, "region2")
    made = made_of(found)
    held = guard.Guard(house.sysfs)
    steps = [
        *held.begin,
        *adopt.release(house.sysfs, house.topology(), made),
        *daxsteps.split(house.sysfs, made, (2 * UNIT - META, META)),
        *daxsteps.bind(house.sysfs, made, "device_dax", (0, 1)),
        *held.end,
    ]
    carry_out(steps, quiet)
    assert [house.driver(name) for name in made.dax] == ["device_dax"] * 2
    for step in reversed(steps):
        step.undo()
    assert not differences(before, house.machine.snapshot())
    house.close()


def test_several_dax_devices_are_as_good_as_the_worst(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2")
    made = house.create()
    assert house.machine.write(f"{DAX}/drivers/device_dax/unbind", made.dax[1]) == 0
    found = judged(house, made.region)
    assert (found.case, found.needs, found.dax) == ("unbound", "convert", tuple(made.dax))
    again = convert(house, found)
    assert [house.driver(name) for name in again.dax] == ["device_dax"] * 2
    house.close()


def test_kinds_and_drivers_that_are_not_ours(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2")
    made = house.create()
    topology = house.topology()
    dax = topology.dax_device(made.dax[0])
    assert dax is not None
    for change, said in (
        ({"kind": "other"}, "not of CXL memory"),
        ({"driver": "fsdev_dax"}, "whose file system may be mounted"),
        ({"bytes": 0}, "has no memory"),
    ):
        other = replace(topology, dax=(replace(dax, **change),))
        found = adopt.judge(other, house.sysfs, dax.name)
        assert (found.case, found.usable) == ("other", False)
        assert said in found.message
    house.close()


def test_name_of_nothing(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2")
    made = house.create()
    there = f"region2, {made.dax[0]}, {made.dax[1]}"
    with pytest.raises(NotFoundError, match=f"no region or dax device 'x'; there is {there}"):
        judged(house, "x")
    house.close()
