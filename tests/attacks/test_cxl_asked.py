# SPDX-License-Identifier: Apache-2.0
"""Health of another machine's tree: this machine's devices are left alone, and every note says
what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from unit.faults_kit import CxlHouse, cxl_house

from sacctl import health_devices
from sacctl.cxl.condition import Condition
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.tools import Readings
from sacctl.health_devices import ask_devices


def notes(house: CxlHouse) -> list[Condition]:
    found = ask_devices(house.sysfs, [house.pool])
    assert {one.code for one in found} == {"SAC515"}
    return found


def test_the_program_is_not_run_for_a_simulated_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    program = tmp_path / "bin" / "cxl"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho \"$@\" >> {said}\necho '[]'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with cxl_house(tmp_path / "m") as house:
        found = notes(house)
    assert not said.exists()
    assert [one.object for one in found] == ["devices", "poison lists"]
    assert all(one.hint for one in found)


@pytest.mark.parametrize("there", [True, False])
def test_a_note_on_alerts_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    with cxl_house(tmp_path) as house:
        # As on a real machine, where the program is not there, or fails.
        monkeypatch.setattr(Sysfs, "simulated", False)
        monkeypatch.setattr(health_devices, "which", lambda name: "/usr/bin/cxl" * there)
        monkeypatch.setattr(health_devices, "ask", lambda poison: Readings(note="it failed"))
        first = notes(house)[0]
    assert (first.object, first.message) == ("devices", "not asked: it failed")
    assert ("cxl list" in first.hint, "apt install" in first.hint) == (there, not there)


def test_a_note_on_a_list_says_what_to_do(tmp_path: Path) -> None:
    with cxl_house(tmp_path) as house:
        name = f"sac-health-{os.getpid()}"
        house.machine.trace_instance(name)
        # No device's list can be read.
        for number in range(4):
            house.machine.fail_at(number)
        found = notes(house)
    assert len(found) == 5
    assert all(one.hint for one in found)
