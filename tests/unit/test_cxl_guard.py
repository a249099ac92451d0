# SPDX-License-Identifier: Apache-2.0
"""New memory stays with the pool: neither kmem nor auto-online gets it, and what was switched
for that is as it was afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.region_kit import DAX, House, quiet

from sacctl.cxl import autoonline, guard, regionsteps
from sacctl.cxl.made import Made
from sacctl.errors import CtlError
from sacctl.pool.steps import carry_out

AUTOPROBE = f"{DAX}/drivers_autoprobe"
AUTO_ONLINE = "/sys/devices/system/memory/auto_online_blocks"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """kmem is loaded and memory goes online at once: as distributions have it."""
    made = House(tmp_path, "2hb2", kmem=True, auto_online="online")
    yield made
    made.close()


def values(house: House) -> tuple[str, str]:
    return house.sysfs.read(AUTOPROBE), house.sysfs.read(AUTO_ONLINE)


def added_blocks(house: House) -> list[str]:
    """Memory blocks in the windows; the machine's own memory lies lower."""
    root = house.topology().roots[0]
    assert root.start is not None
    first = root.start // (128 << 20)
    folder = "/sys/devices/system/memory"
    names = [n for n in house.sysfs.names(folder) if n.removeprefix("memory").isdigit()]
    return [n for n in names if int(n.removeprefix("memory")) >= first]


@pytest.mark.parametrize("auto", ["online", "offline", "online_kernel", "online_movable"])
@pytest.mark.parametrize("probe", ["0", "1"])
def test_kmem_never_sees_the_memory_and_all_is_as_it_was(
    house: House, auto: str, probe: str
) -> None:
    house.machine.write(AUTO_ONLINE, auto)
    house.machine.write(AUTOPROBE, probe)
    made = house.create()
    assert [house.driver(name) for name in made.dax] == ["device_dax"] * 2
    assert added_blocks(house) == []
    assert values(house) == (probe, auto)
    assert not house.sysfs.at(guard.NOTE).exists()
    house.destroy(made.region)
    assert values(house) == (probe, auto)


def test_without_the_guard_kmem_takes_it(house: House) -> None:
    """What the guard is for: else the test above would prove nothing."""
    made = Made()
    carry_out(regionsteps.create(house.sysfs, house.plan(), made), quiet)
    assert house.driver(made.dax[0]) == "kmem"
    assert len(added_blocks(house)) == 4


def test_it_is_put_back_after_a_failure(house: House) -> None:
    house.machine.fail_at(12)
    with pytest.raises(CtlError):
        house.create()
    assert values(house) == ("1", "online")
    assert not house.sysfs.at(guard.NOTE).exists()


def test_a_killed_command_leaves_a_note_and_the_next_restores_from_it(house: House) -> None:
    held = guard.Guard(house.sysfs)
    held.begin[0].apply()
    assert values(house) == ("0", "online")
    assert guard.left_behind(house.sysfs) == {AUTOPROBE: "1"}
    # It was killed. The next one finds autoprobe off, and knows that it was on.
    made = house.create()
    assert values(house) == ("1", "online")
    assert guard.left_behind(house.sysfs) == {}
    assert made.dax


def test_a_note_of_nonsense_is_not_believed(house: House) -> None:
    note = house.sysfs.at(guard.NOTE)
    note.parent.mkdir(parents=True, exist_ok=True)
    for text in ("", f"{AUTOPROBE} 7\n", "/sys/power/state mem\n", "\0\0", "0" * 5000):
        note.write_text(text)
        assert guard.left_behind(house.sysfs) == {}
    house.create()
    assert values(house) == ("1", "online")
    assert ("power/state", "mem") not in house.written()


def test_the_lines_name_the_value_that_comes_back(house: House) -> None:
    held = guard.Guard(house.sysfs)
    assert [s.what for s in held.begin] == [f"echo 0 > {AUTOPROBE}"]
    assert [s.what for s in held.end] == [f"echo 1 > {AUTOPROBE}"]
    house.machine.write(AUTOPROBE, "0")
    assert [s.what for s in guard.Guard(house.sysfs).end] == [f"echo 0 > {AUTOPROBE}"]


class NoSwitch:
    """A kernel whose DAX bus has no drivers_autoprobe."""

    def __init__(self, house: House) -> None:
        self.values = {AUTO_ONLINE: "online_movable"}
        self.at = house.sysfs.at

    def exists(self, path: str) -> bool:
        return path in self.values

    def get(self, path: str, default: str = "") -> str:
        return self.values.get(path, default)

    def write(self, path: str, value: str) -> None:
        self.values[path] = value


def test_where_there_is_no_switch_memory_is_kept_offline(house: House) -> None:
    sysfs = NoSwitch(house)
    held = guard.Guard(sysfs)  # type: ignore[arg-type]
    assert held.begin[0].what == f"echo offline > {AUTO_ONLINE}"
    carry_out(held.begin, quiet)
    assert sysfs.values == {AUTO_ONLINE: "offline"}
    carry_out(held.end, quiet)
    assert sysfs.values == {AUTO_ONLINE: "online_movable"}
    held.end[0].undo()
    assert sysfs.values == {AUTO_ONLINE: "offline"}
    held.begin[0].undo()
    assert sysfs.values == {AUTO_ONLINE: "online_movable"}


def test_who_puts_memory_online_is_named(house: House) -> None:
    """Reported as "kernel policy will auto-online memory, aborting"."""
    assert "auto_online_blocks is online (the kernel's default" in autoonline.who_onlines(
        house.sysfs
    )
    house.sysfs.at("/proc/cmdline").write_text("quiet memhp_default_state=online\n")
    assert "memhp_default_state=online on the kernel's command line" in (
        autoonline.who_onlines(house.sysfs)
    )
    house.machine.write(AUTO_ONLINE, "offline")
    assert autoonline.who_onlines(house.sysfs) == ""
    rules = house.sysfs.at("/usr/lib/udev/rules.d")
    rules.mkdir(parents=True)
    line = 'SUBSYSTEM=="memory", ACTION=="add", ATTR{state}=="offline", ATTR{state}="online"'
    (rules / "40-vm-hotadd.rules").write_text(f"# {line}\n{line}\n")
    (rules / "50-other.rules").write_text(f"# {line}\n")
    assert autoonline.who_onlines(house.sysfs) == (
        "the udev rule /usr/lib/udev/rules.d/40-vm-hotadd.rules"
    )
    masks = house.sysfs.at("/etc/udev/rules.d")
    masks.mkdir(parents=True)
    (masks / "40-vm-hotadd.rules").write_text("")
    assert autoonline.who_onlines(house.sysfs) == ""
