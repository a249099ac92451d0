# SPDX-License-Identifier: Apache-2.0
"""The rules that tell udev which devices are a pool's."""

from __future__ import annotations

import grp
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from unit.cxl_dump import tree

from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, RefusedError
from sacctl.pool import udevrule
from sacctl.pool.steps import carry_out
from sacctl.pool.udevrule import ForgetDevices, MarkDevices, active, rules, rules_file

ROOT = Path(__file__).resolve().parents[2]
DEVICES = ["serial:0x100", "pci:0000:35:00.0"]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Sysfs:
    """A region of two devices, its memory divided into two DAX devices, as a kernel had it.
    Not to be changed."""
    return tree("6.12-2hb4", "split", tmp_path_factory.mktemp("real"))


def test_a_region_of_a_real_machine(machine: Sysfs) -> None:
    text = rules(machine, "kv", DEVICES, ["dax2.0", "dax2.1"])
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == 4
    serial, pci, *dax = lines
    assert 'KERNEL=="mem*", ATTR{serial}=="0x100", ' in serial
    assert 'SUBSYSTEMS=="pci", KERNELS=="0000:35:00.0", ' in pci
    for line in (serial, pci):
        assert line.startswith('ACTION=="add", SUBSYSTEM=="cxl", ')
        assert 'ENV{SYSTEMD_WANTS}+="sac-pool@kv.service"' in line
        assert "GROUP" not in line
        assert "MODE" not in line
    ways = machine.number("/sys/bus/cxl/devices/region2/interleave_ways")
    assert ways >= 2
    for name, line in zip(("dax2.0", "dax2.1"), dax, strict=True):
        assert line.startswith(f'SUBSYSTEM=="dax", KERNEL=="{name}", KERNELS=="region2", ')
        assert line.endswith('ENV{SAC_POOL}="kv"')
        for position in range(ways):
            decoder = machine.read(f"/sys/bus/cxl/devices/region2/target{position}")
            assert f'ATTRS{{target{position}}}=="{decoder}"' in line


def test_the_attribute_is_as_the_kernel_writes_it(machine: Sysfs) -> None:
    """A rule compares texts: the record's "0x100" has to be the file's."""
    written = {
        machine.read(f"/sys/bus/cxl/devices/{name}/serial")
        for name in machine.names("/sys/bus/cxl/devices")
        if re.fullmatch(r"mem\d+", name)
    }
    assert "0x100" in written


def test_hmem(tmp_path: Path) -> None:
    path = tmp_path / "sys/devices/platform/hmem.3/dax3.0"
    path.mkdir(parents=True)
    (tmp_path / "sys/bus/dax/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/dax/devices/dax3.0").symlink_to(path)
    text = rules(Sysfs(tmp_path), "kv", [], ["dax3.0"])
    assert 'KERNEL=="dax3.0", KERNELS=="hmem.3", ENV{SAC_POOL}="kv"' in text


def test_a_device_that_is_not_there(machine: Sysfs) -> None:
    with pytest.raises(CtlError, match=r"no DAX device dax9\.0"):
        rules(machine, "kv", [], ["dax9.0"])


@pytest.mark.parametrize("word", ['a"b', "a b", "a\nb", "a*", "$env{X}", ""])
def test_nothing_strange_gets_into_a_rule(word: str, machine: Sysfs) -> None:
    with pytest.raises(CtlError):
        rules(machine, word, [], [])
    with pytest.raises(CtlError):
        rules(machine, "kv", [f"serial:{word}"], [])
    with pytest.raises(CtlError):
        rules_file(word)


def test_a_simulated_tree_has_no_udev(machine: Sysfs) -> None:
    assert not active(machine)
    step = MarkDevices(machine, "kv", lambda: DEVICES, lambda: ["dax2.0"])
    carry_out([step], lambda _: None)
    assert not machine.exists(rules_file("kv"))
    carry_out([ForgetDevices(machine, "kv")], lambda _: None)


# ---------------------------------------------------------------- with a udev


class Udev:
    """Stands for udevadm: keeps what it was told, and acts by a function."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.act: Callable[[Sequence[str]], None] = lambda words: None

    def __call__(self, *words: str) -> None:
        self.told.append(" ".join(words))
        self.act(words)


@pytest.fixture
def udev(monkeypatch: pytest.MonkeyPatch) -> Udev:
    made = Udev()
    monkeypatch.setattr(udevrule, "_udevadm", made)
    monkeypatch.setattr(udevrule, "active", lambda sysfs: True)
    monkeypatch.setattr(udevrule, "_check", lambda sysfs, name: None)
    return made


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sysfs:
    """A small tree, taken for the machine itself."""
    monkeypatch.setattr(Sysfs, "simulated", property(lambda self: False))
    region = tmp_path / "sys/devices/root0/region2"
    (region / "dax_region2/dax2.0").mkdir(parents=True)
    (region / "interleave_ways").write_text("2\n")
    for position in range(2):
        (region / f"target{position}").write_text(f"decoder{position + 3}.0\n")
    for bus, device in (("cxl", region), ("dax", region / "dax_region2/dax2.0")):
        (tmp_path / f"sys/bus/{bus}/devices").mkdir(parents=True)
        (tmp_path / f"sys/bus/{bus}/devices/{device.name}").symlink_to(device)
    control = tmp_path / udevrule.CONTROL.lstrip("/")
    control.parent.mkdir(parents=True)
    control.touch()
    return Sysfs(tmp_path)


def mark(real: Sysfs) -> MarkDevices:
    return MarkDevices(real, "kv", lambda: DEVICES, lambda: ["dax2.0"])


def test_marked_then_forgotten(udev: Udev, real: Sysfs) -> None:
    file = real.at(rules_file("kv"))
    seen: list[str] = []
    udev.act = lambda words: seen.append(file.read_text() if file.exists() else "")
    assert rules_file("kv") in mark(real).what
    carry_out([mark(real)], lambda _: None)
    assert udev.told == [
        "control --reload",
        "trigger --action=change --settle /sys/bus/dax/devices/dax2.0",
    ]
    # The rules are there before udev is told of them.
    assert seen[0] == rules(real, "kv", DEVICES, ["dax2.0"]) == file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    carry_out([ForgetDevices(real, "kv")], lambda _: None)
    assert not file.exists()
    assert udev.told[2:] == ["control --reload"]


def test_the_same_rules_are_not_loaded_again(udev: Udev, real: Sysfs) -> None:
    for _ in range(2):
        carry_out([mark(real)], lambda _: None)
    assert udev.told.count("control --reload") == 1
    # The device may have got another mode meanwhile.
    assert sum(told.startswith("trigger") for told in udev.told) == 2


@pytest.mark.parametrize("before", [None, "# of an earlier boot\n"])
def test_undone_where_udev_fails(before: str | None, udev: Udev, real: Sysfs) -> None:
    file = real.at(rules_file("kv"))
    file.parent.mkdir(parents=True)
    if before is not None:
        file.write_text(before)

    def fail(words: Sequence[str]) -> None:
        if words[0] == "trigger":
            raise CtlError("udevadm trigger failed")

    udev.act = fail
    with pytest.raises(CtlError, match="udevadm trigger failed"):
        carry_out([mark(real)], lambda _: None)
    assert (file.read_text() if file.exists() else None) == before
    assert udev.told[-1] == "control --reload"
    assert [found.name for found in file.parent.iterdir()] == ([file.name] if before else [])


def test_forgotten_and_taken_back(udev: Udev, real: Sysfs) -> None:
    carry_out([mark(real)], lambda _: None)
    kept = real.at(rules_file("kv")).read_text()
    forget = ForgetDevices(real, "kv", lambda: ["dax2.0"])
    forget.apply()
    assert not real.exists(rules_file("kv"))
    forget.undo()
    assert real.at(rules_file("kv")).read_text() == kept
    assert udev.told[-1].startswith("trigger")


def test_the_daemons_group_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever changed the device behind our rules is found here, not at the first client."""
    if os.geteuid() != 0:
        pytest.skip("only root makes device files")
    other = next(g for g in grp.getgrall() if g.gr_gid not in (0, os.getegid()))
    monkeypatch.setattr(udevrule, "GROUP", other.gr_name)
    (tmp_path / "dev").mkdir()
    device = tmp_path / "dev" / "dax0.0"
    os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    with pytest.raises(RefusedError, match=r"mode 0600.*another rule"):
        udevrule._check(Sysfs(tmp_path), "dax0.0")
    os.chown(device, 0, other.gr_gid)
    with pytest.raises(RefusedError):
        udevrule._check(Sysfs(tmp_path), "dax0.0")
    device.chmod(0o660)
    udevrule._check(Sysfs(tmp_path), "dax0.0")
    monkeypatch.setattr(udevrule, "GROUP", "no-such-group-here")
    with pytest.raises(CtlError, match="there is no group"):
        udevrule._check(Sysfs(tmp_path), "dax0.0")


def test_a_udevadm_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "udevadm"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CtlError, match="no udevadm"):
        udevrule._udevadm("control", "--reload")
    program.write_text("#!/bin/sh\necho it broke >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(CtlError, match="udevadm control --reload failed: it broke"):
        udevrule._udevadm("control", "--reload")
    program.write_text("#!/bin/sh\nexec /bin/sleep 5\n")
    monkeypatch.setattr(udevrule, "_TIMEOUT", 0.2)
    with pytest.raises(CtlError, match="did not answer"):
        udevrule._udevadm("control", "--reload")


def test_policy_and_match_speak_of_the_same_properties(machine: Sysfs) -> None:
    policy = (ROOT / "udev" / udevrule.POLICY).read_text()
    text = rules(machine, "kv", DEVICES, ["dax2.0"])
    asked = set(re.findall(r"ENV\{(\w+)\}==", policy))
    assert asked == {"SAC_POOL"}
    assert asked <= set(re.findall(r"ENV\{(\w+)\}\+?=", text))
    # The match comes first: udev takes its files by name.
    assert Path(rules_file("kv")).name < udevrule.POLICY
