# SPDX-License-Identifier: Apache-2.0
"""The script of steps on the simulated kernel. tests/vm runs the same one on real kernels."""

from __future__ import annotations

from pathlib import Path

import cxlsim
import pytest
from steps.run import Differs, Runner
from steps.script import SCRIPT, Section, parse

SECTIONS = parse(SCRIPT.read_text())
LEAK = parse(SCRIPT.with_name("leak.steps").read_text())
TOPOLOGIES = ("1hb1", "1hb2", "1hb4", "2hb2", "2hb2g4k", "2hb4", "4hb4", "sw2", "sw4")


def run(machine: cxlsim.Machine, version: str, sections: list[Section]) -> list[Differs]:
    runner = Runner(machine.sysfs, version)
    found = runner.run(sections)
    assert runner.ran > 20, "no section fits the machine"
    return found


@pytest.mark.parametrize("version", ["6.12", "7.3"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_simulator_answers_as_the_kernel(
    topology: str, version: str, tmp_path: Path
) -> None:
    with cxlsim.Machine(tmp_path, topology, kmem=False, version=version) as machine:
        before = machine.snapshot()
        assert run(machine, version, SECTIONS) == []
        assert machine.snapshot() == before


@pytest.mark.parametrize("version", ["6.12", "7.3"])
def test_with_kmem(version: str, tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", version=version) as machine:
        before = machine.snapshot()
        assert run(machine, version, SECTIONS) == []
        # One of the devices has been taken from its driver and given back: it may have
        # another name.
        assert len(machine.snapshot()) == len(before)


@pytest.mark.parametrize("version", ["6.12", "7.3"])
def test_memory_that_is_online_is_lost(version: str, tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", version=version) as machine:
        assert run(machine, version, LEAK) == []
        assert "cannot be hotremoved until the next reboot" in "\n".join(machine.log)
        assert machine.snapshot()["leaked"] != "[]"


def test_memory_that_is_online_is_lost_and_the_newer_kernel_crashes(tmp_path: Path) -> None:
    """Where it is still online when its region goes."""
    text = SCRIPT.with_name("leak.steps").read_text()
    sections = parse(text.replace("each blocks state offline -> EINVAL\n", ""))
    for version in ("6.12", "7.3"):
        with cxlsim.Machine(tmp_path / version, "2hb2", version=version) as machine:
            found = run(machine, version, sections)
            assert bool(found) == bool(machine.oops) == (version == "7.3")
    assert found[0].step.startswith("write /sys/bus/cxl/drivers/cxl_region/unbind")
    assert "online until reboot" in machine.oops


def test_a_wrong_answer_is_found(tmp_path: Path) -> None:
    text = "section one\nwrite {wide}/create_ram_region foo -> OK\nread {wide}/locked -> 7"
    with cxlsim.Machine(tmp_path, "2hb2") as machine:
        found = Runner(machine.sysfs, "6.12").run(parse(text))
    assert [(d.line, d.wanted, d.got) for d in found] == [(2, "OK", "EINVAL"), (3, "7", "0")]


def test_what_a_section_leaves_is_found(tmp_path: Path) -> None:
    text = "section one\nwrite {d0}/mode ram -> OK\nwrite {d0}/dpa_size {each} -> OK"
    with cxlsim.Machine(tmp_path, "2hb2") as machine:
        found = Runner(machine.sysfs, "6.12").run(parse(text))
    assert [(d.step, d.wanted) for d in found] == [("end", "clean")]


@pytest.mark.parametrize(
    "text",
    [
        "write a b -> OK",
        "section x\nwrite a -> OK",
        "section x\nwrite a b",
        "section x\nfly a",
        "section x\nread a -> ",
    ],
)
def test_a_script_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        parse(text)


def test_every_answer_of_another_kernel_is_named() -> None:
    """A section without a topology that has it would never run."""
    needs = [s.needs for s in SECTIONS]
    assert all(
        n.get("granularity", "256") in ("256", "4096") and n.get("kmem", "yes") == "yes"
        for n in needs
    )
    kernels = {k for s in SECTIONS for step in s.steps for k in step.expected}
    assert kernels == {"", "7.3"}
