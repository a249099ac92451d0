# SPDX-License-Identifier: Apache-2.0
"""Regions taken apart: what is refused, what is forced, what a kill leaves."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from unit.region_kit import UNIT, House, differences, quiet

from sacctl.cxl import offline, regionsteps, users
from sacctl.cxl.made import Made
from sacctl.errors import CtlError, NotFoundError, PartlyError, RefusedError
from sacctl.pool.steps import carry_out

MEMORY = "/sys/devices/system/memory"


def ram(tmp_path: Path, how: str, **options: object) -> House:
    return House(tmp_path, "2hb2", firmware=f"kmem-{how}", **options)


def test_destroy_refuses_while_blocks_are_online(tmp_path: Path) -> None:
    """Reported as "Failed to offline .../state: Device or resource busy"."""
    house = ram(tmp_path, "online-normal")
    with pytest.raises(RefusedError) as error:
        house.destroy("region2")
    assert "dax2.0 is system RAM: 4 of 4 blocks online in zone Normal" in error.value.message
    assert "memhp_default_state=offline" in error.value.hint
    assert not house.machine.writes
    house.close()


def test_destroy_of_movable_memory_needs_permission(tmp_path: Path) -> None:
    house = ram(tmp_path, "online-movable")
    with pytest.raises(RefusedError, match="4 of 4 blocks online in zone Movable") as error:
        house.destroy("region2")
    assert "--force-offline" in error.value.hint
    house.destroy("region2", force_offline=True)
    topology = house.topology()
    assert not topology.regions
    assert all(m.used_bytes == 0 for m in topology.memdevs)
    house.close()


def test_a_block_that_stays_puts_the_others_back(tmp_path: Path) -> None:
    house = ram(tmp_path, "online-movable")
    blocks = offline._blocks(house.sysfs, "dax2.0")
    house.machine.stick(blocks[1].number)
    before = house.machine.snapshot()
    with pytest.raises(RefusedError, match="1 of 4 blocks online in zone Movable") as error:
        house.destroy("region2", force_offline=True)
    assert f"memory{blocks[1].number}: stays online in Movable: pages in use" in str(
        error.value
    )
    assert not differences(before, house.machine.snapshot())
    house.close()


def test_a_block_that_takes_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = ram(tmp_path, "online-movable")
    before = house.machine.snapshot()
    write = type(house.sysfs).write

    def slow(self: object, path: str, value: str) -> None:
        if path.endswith("/state") and value == "offline":
            os.read(os.pipe()[0], 1)  # as the kernel: until there is a signal
        write(house.sysfs, path, value)

    monkeypatch.setattr(type(house.sysfs), "write", slow)
    with pytest.raises(RefusedError, match=r"4 of 4 blocks online.*it took too long"):
        house.destroy("region2", force_offline=True, seconds=0.05)
    assert not differences(before, house.machine.snapshot())
    house.close()


def test_leaking_is_a_permission_of_its_own(tmp_path: Path) -> None:
    house = ram(tmp_path, "online-normal")
    house.destroy("region2", allow_leak=True)
    assert not house.topology().regions
    house.close()


def test_a_kernel_that_panics_on_leaking_is_spared(tmp_path: Path) -> None:
    house = ram(tmp_path, "online-normal", version="7.3")
    with pytest.raises(RefusedError, match="panics when memory that is online"):
        house.destroy("region2", allow_leak=True)
    assert not house.machine.writes
    house.close()


def test_memory_that_came_online_meanwhile_stops_it(tmp_path: Path) -> None:
    house = ram(tmp_path, "offline")
    steps = regionsteps.destroy(house.sysfs, house.topology(), "region2")
    block = offline._blocks(house.sysfs, "dax2.0")[0]
    assert house.machine.write(f"{MEMORY}/memory{block.number}/state", "online_movable") == 0
    before = house.machine.snapshot()
    with pytest.raises(RefusedError, match="1 of 4 blocks online"):
        carry_out(steps, quiet)
    assert not differences(before, house.machine.snapshot())
    house.close()


def test_regions_are_destroyed_from_the_last(tmp_path: Path) -> None:
    house = House(tmp_path, "1hb2", size=2 * UNIT)
    first = house.create(bytes=2 * UNIT).region
    second = house.create(bytes=2 * UNIT).region
    with pytest.raises(RefusedError, match=f"{first} cannot be destroyed before {second}"):
        house.destroy(first)
    house.destroy(second)
    house.destroy(first)
    assert all(m.used_bytes == 0 for m in house.topology().memdevs)
    house.close()


def test_destroy_of_what_is_not_there(tmp_path: Path) -> None:
    house = House(tmp_path, "1hb1")
    with pytest.raises(NotFoundError, match="there is no region 'region9'"):
        house.destroy("region9")
    house.close()


def test_destroy_after_a_device_has_gone(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb4")
    made = house.create()
    house.machine.unplug(0x102)
    house.destroy(made.region)
    house.machine.plug(0x102)
    topology = house.topology()
    assert not topology.regions
    assert all(m.used_bytes == 0 for m in topology.memdevs)
    assert house.create().dax
    house.close()


def test_what_a_kill_leaves_is_taken_apart(tmp_path: Path) -> None:
    """At any write: destroy takes the rest of it, free_dpa what no region has."""
    house = House(tmp_path, "1hb2")
    clean = house.machine.snapshot()
    count = 19
    for number in range(2, count, 3):
        steps = house.steps(Made(), house.plan())
        house.machine.fail_at(number)
        with suppress(CtlError):
            for step in steps:
                step.apply()
        topology = house.topology()
        for region in topology.regions:
            house.destroy(region.name)
        left = [d.name for m in house.topology().memdevs for d in m.decoders if d.dpa_bytes]
        carry_out(regionsteps.free_dpa(house.sysfs, left), quiet)
        held = house.steps(Made(), house.plan())
        held[0].apply()  # the guard finds what was noted before the kill
        held[-1].apply()
        assert not differences(clean, house.machine.snapshot()), f"killed at {number}"
    house.close()


def test_destroying_is_taken_up_again_after_a_kill(tmp_path: Path) -> None:
    house = House(tmp_path, "1hb2")
    clean = house.machine.snapshot()
    count = 16
    for number in range(1, count, 2):
        made = house.create()
        house.machine.fail_at(number)
        with suppress(CtlError):
            for step in regionsteps.destroy(house.sysfs, house.topology(), made.region):
                step.apply()
        if house.topology().region(made.region) is not None:
            house.destroy(made.region)
        left = [d.name for m in house.topology().memdevs for d in m.decoders if d.dpa_bytes]
        carry_out(regionsteps.free_dpa(house.sysfs, left), quiet)
        assert not differences(clean, house.machine.snapshot()), f"killed at {number}"
    house.close()


# -------------------------------------------------------------------------------- users


def test_destroy_refuses_while_a_process_has_it_open(tmp_path: Path) -> None:
    house = House(tmp_path, "1hb1")
    made = house.create()
    path = house.sysfs.at(f"/dev/{made.dax[0]}")
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with (
        path.open("rb") as file,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[file.fileno()]
        ) as child,
    ):
        assert child.stdout is not None
        child.stdout.readline()
        file.close()
        assert [who.split()[1] for who in users.holders(house.sysfs, made.dax[0])] == [
            str(child.pid)
        ]
        since = len(house.machine.writes)
        with pytest.raises(RefusedError, match=rf"in use by process {child.pid} \(python"):
            house.destroy(made.region)
        assert not [w for w in house.written(since) if "unbind" in w[0]]
        child.communicate(b"")
    house.destroy(made.region)
    house.close()


def test_a_mapping_counts_without_its_file(tmp_path: Path) -> None:
    house = House(tmp_path, "1hb1")
    made = house.create()
    with house.sysfs.at(f"/dev/{made.dax[0]}").open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 4096)
    assert users.holders(house.sysfs, made.dax[0]) == [
        f"process {os.getpid()} ({Path('/proc/self/comm').read_text().strip()})"
    ]
    with pytest.raises(RefusedError, match="in use by process"):
        house.destroy(made.region)
    mapping.close()
    house.destroy(made.region)
    house.close()


def test_it_is_not_bound_again_under_an_old_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would corrupt the kernel, so it is what stays undone."""
    house = House(tmp_path, "1hb1")
    made = house.create()
    steps = regionsteps.destroy(house.sysfs, house.topology(), made.region)

    def late(_path: str, _value: str) -> None:
        monkeypatch.setattr(users, "holders", lambda *_: ["process 7 (late)"])

    house.machine.before(1, late)
    house.machine.fail_at(3)
    with pytest.raises(PartlyError, match=f"{made.dax[1]} is in use by process 7"):
        carry_out(steps, quiet)
    assert house.driver(made.dax[1]) == ""
    house.close()
