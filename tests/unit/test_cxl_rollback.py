# SPDX-License-Identifier: Apache-2.0
"""A failure at any write of creating or destroying a region leaves the machine as it was."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from unit.region_kit import CXL, DAX, META, UNIT, House, differences, quiet

from sacctl.cxl import adopt, daxsteps, guard, regionsteps
from sacctl.cxl.guard import NOTE
from sacctl.cxl.made import Made
from sacctl.errors import BusyError, CtlError, PartlyError
from sacctl.pool.steps import Step, carry_out

SHAPES = ["1hb1", "2hb4", "sw4"]
SPARE = 40  # more writes than any of these needs


@pytest.fixture
def house(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[House]:
    made = House(tmp_path, request.param)
    yield made
    made.close()


def outcome(steps: list[Step]) -> CtlError | None:
    """What carrying out the steps came to; None if it went well."""
    try:
        carry_out(steps, quiet)
    except CtlError as error:
        return error
    return None


def fail_at_each(house: House, steps: Callable[[], list[Step]], code: int) -> int:
    """Fails at the first write, then at the second, and so on until all goes well. Each time
    the machine must be as before. How many failures there were."""
    machine = house.machine
    for number in range(SPARE):
        before = machine.snapshot()
        planned = steps()
        begun = len(machine.writes)
        machine.fail_at(number, code)
        error = outcome(planned)
        if error is None:
            assert len(machine.writes) - begun == number
            return number
        assert not isinstance(error, PartlyError), f"write {number}: {error}"
        assert error.errno == code, f"write {number}: {error}"
        assert not differences(before, machine.snapshot()), f"write {number}: {error}"
        assert not house.sysfs.at(NOTE).exists()
    pytest.fail("it never ends")


@pytest.mark.parametrize("house", SHAPES, indirect=True)
def test_creating_and_destroying_roll_back_at_each_write(house: House) -> None:
    clean = house.machine.snapshot()
    made = Made()

    def create() -> list[Step]:
        made.region, made.dax[:] = "", []
        return house.steps(made, house.plan())

    ways = house.plan().ways
    # autoprobe (twice), name, granularity, ways, size, commit, driver; 3 a device; 3 for the
    # second dax device; a driver for each of the two.
    assert fail_at_each(house, create, errno.EIO) == 8 + 3 * ways + 3 + 2
    assert [house.driver(name) for name in made.dax] == ["device_dax", "device_dax"]

    def destroy() -> list[Step]:
        return regionsteps.destroy(house.sysfs, house.topology(), made.region)

    assert fail_at_each(house, destroy, errno.EBUSY) == 2 + 2 * 2 + 3 + 2 + 2 * ways + 1
    assert not differences(clean, house.machine.snapshot())


@pytest.mark.parametrize("house", ["2hb4"], indirect=True)
def test_system_ram_rolls_back_at_each_write(house: House) -> None:
    made = Made()

    def create() -> list[Step]:
        made.region, made.dax[:] = "", []
        return house.steps(made, house.plan(), "kmem", split=False)

    house.machine.write("/sys/devices/system/memory/auto_online_blocks", "offline")
    assert fail_at_each(house, create, errno.EIO) > 12
    assert house.driver(made.dax[0]) == "kmem"


@pytest.mark.parametrize("movable", [False, True])
def test_converting_rolls_back_at_each_write(movable: bool, tmp_path: Path) -> None:
    situation = "kmem-online-movable" if movable else "kmem-offline"
    house = House(tmp_path, "2hb2", firmware=situation)

    def convert() -> list[Step]:
        found = adopt.judge(house.topology(), house.sysfs, "region2")
        made = Made(region=found.region, dax=list(found.dax))
        return adopt.convert(house.sysfs, house.topology(), made, force_offline=movable)

    for number in range(SPARE):
        before = house.machine.snapshot()
        planned = convert()
        house.machine.fail_at(number)
        error = outcome(planned)
        if error is None:
            break
        assert not isinstance(error, PartlyError), error
        assert not differences(before, house.machine.snapshot()), f"write {number}: {error}"
    assert number == 2 + 2 + 4 * movable
    assert house.driver("dax2.0") == "device_dax"
    house.close()


@pytest.mark.parametrize("house", ["1hb2"], indirect=True)
def test_ctrl_c_behind_each_write_leaves_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has done the write, and the step does not know it."""
    write = type(house.sysfs).write
    left = 0

    def interrupted(self: object, path: str, value: str) -> None:
        nonlocal left
        write(house.sysfs, path, value)
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(type(house.sysfs), "write", interrupted)
    for number in range(1, SPARE):
        before = house.machine.snapshot()
        left = number
        try:
            carry_out(house.steps(Made(), house.plan()), quiet)
        except KeyboardInterrupt:
            after = house.machine.snapshot()
            assert not differences(before, after), f"interrupted behind write {number}"
        else:
            break
    assert number == 8 + 6 + 3 + 2 + 1


@pytest.mark.parametrize("house", ["2hb4"], indirect=True)
@pytest.mark.parametrize("number", [3, 5, 6, 8, 13, 15, 17, 18, 20, 22])
def test_a_device_that_goes_in_the_middle_leaves_nothing_allocated(
    house: House, number: int
) -> None:
    """The write it goes at may fail or not; something fails in the end, and what the device
    had has gone with it."""
    gone = house.memdevs(0x102)[0]
    house.machine.before(number, lambda _path, _value: house.machine.unplug(0x102))
    with pytest.raises(CtlError) as failed:
        carry_out(house.steps(Made(), house.plan()), quiet)
    assert not isinstance(failed.value, PartlyError), failed.value
    there = house.topology()
    assert gone.identity not in [m.identity for m in there.memdevs]
    assert not there.regions
    assert not there.dax
    assert all(m.used_bytes == 0 for m in there.memdevs)
    assert there.policy.autoprobe is True
    assert house.machine.oops == ""
    house.machine.plug(0x102)
    assert house.create().dax


@pytest.mark.parametrize("house", ["2hb2"], indirect=True)
def test_what_cannot_be_undone_is_named(house: House) -> None:
    machine = house.machine
    planned = house.steps(Made(), house.plan())
    machine.fail_at(11)  # the commit
    machine.fail_at(12)  # the first newline into a target, on the way back
    with pytest.raises(PartlyError, match=r"could not be undone: .*target1") as failed:
        carry_out(planned, quiet)
    assert "echo 1 > " in str(failed.value)
    assert house.topology().policy.autoprobe is True  # the way back went on


@pytest.mark.parametrize("house", ["2hb2"], indirect=True)
def test_a_name_taken_by_another_is_read_again(house: House) -> None:
    """create_ram_region says EBUSY where somebody else took the name meanwhile."""
    machine = house.machine
    root = f"{CXL}/decoder0.2"

    def other(_path: str, value: str) -> None:
        assert machine.kernel.write(f"{root}/create_ram_region", value) == 0

    machine.before(1, other)
    made = house.create()
    assert made.region == "region3"
    assert house.topology().region("region2") is not None


@pytest.mark.parametrize("house", ["2hb2"], indirect=True)
def test_a_name_that_is_always_taken_is_an_error(house: House) -> None:
    for number in range(1, 9):
        house.machine.fail_at(number, errno.EBUSY)
    with pytest.raises(BusyError, match="other programs make regions"):
        house.create()
    assert not house.topology().regions


@pytest.mark.parametrize("house", ["1hb2"], indirect=True)
def test_a_target_is_never_written_twice(house: House) -> None:
    """Some kernels crash on it (the simulator too, which fails the test)."""
    for number in range(9, 14):  # around the targets
        house.machine.fail_at(number)
        with pytest.raises(CtlError):
            house.create()
    house.destroy(house.create().region)
    seen: dict[str, str] = {}
    for path, value, code in house.machine.writes:
        if path.rpartition("/")[2].startswith("target") and not code:
            assert value == "\n" or seen.get(path, "\n") == "\n", path
            seen[path] = value
    assert len(seen) >= 2
    assert house.machine.oops == ""


@pytest.mark.parametrize("house", ["1hb1"], indirect=True)
@pytest.mark.parametrize("sizes", [(UNIT - META,), (UNIT - 3 * META, META)])
def test_room_in_the_region_is_there_again(house: House, sizes: tuple[int, ...]) -> None:
    """Not all of a region need be a dax device's: room for isolated namespaces."""
    made = Made()
    planned = house.plan()
    held = guard.Guard(house.sysfs)
    steps = [
        *held.begin,
        *regionsteps.create(house.sysfs, planned, made),
        *daxsteps.split(house.sysfs, made, sizes),
        *daxsteps.bind(house.sysfs, made, "device_dax", range(len(sizes))),
        *held.end,
    ]
    carry_out(steps, quiet)
    fail_at_each(
        house,
        lambda: regionsteps.destroy(house.sysfs, house.topology(), made.region),
        errno.EIO,
    )


@pytest.mark.parametrize("house", ["2hb2"], indirect=True)
def test_destroy_cut_behind_its_last_point_of_return_says_what_is_left(house: House) -> None:
    made = house.create()
    before = house.machine.snapshot()
    house.machine.fail_at(2 + 4 + 3 + 2 + 4)
    with pytest.raises(CtlError, match="delete_region"):
        house.destroy(made.region)
    assert not differences(before, house.machine.snapshot())
    assert house.sysfs.read(f"{DAX}/drivers_autoprobe") == "1"
    house.destroy(made.region)
    assert not house.topology().regions
