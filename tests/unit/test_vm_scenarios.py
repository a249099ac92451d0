# SPDX-License-Identifier: Apache-2.0
"""Which machines the scenarios of tests/vm get; the machines themselves are `make test-vm`."""

from __future__ import annotations

from pathlib import Path

import pytest
from vm.scenario import KERNELS, SCENARIOS, boots, load
from vm.topologies import TOPOLOGIES, find


def scenario(folder: Path, name: str, head: str = "", tests: str = "test_one") -> Path:
    functions = "".join(f"def {t}() -> None: ...\n" for t in tests.split())
    file = folder / f"{name}.py"
    file.write_text(f'"""About it."""\n{head}\n{functions}')
    return file


def test_every_scenario_can_be_planned() -> None:
    found = [load(file) for file in SCENARIOS.glob("*.py")]
    assert found
    for one in found:
        assert one.about, f"{one.name} does not say what it proves"
        assert one.tests, f"{one.name} has no tests"
        assert bool(one.again) == bool(one.again and one.state), (
            f"{one.name}: again_ needs STATE"
        )
        for kernel in one.kernels:
            assert set(one.machines(kernel)) <= set(TOPOLOGIES), one.name
        assert set(one.kernels) <= set(KERNELS), one.name
        assert one.init in ("minimal", "systemd"), one.name
    planned = [t.id for b in boots(found) for t in b.tests + b.second]
    assert len(planned) == len(set(planned))


def test_equal_machines_are_shared_and_others_not(tmp_path: Path) -> None:
    files = [
        scenario(tmp_path, "a"),
        scenario(tmp_path, "b", tests="test_x test_y helper"),
        scenario(tmp_path, "c", 'APPEND = "quiet"'),
        scenario(tmp_path, "d", 'LEAVES = "things"'),
        scenario(tmp_path, "e", "STATE = True", "test_one again_two"),
    ]
    found = boots([load(f) for f in files])
    per_kernel = [[t.id.split("/")[2] for t in b.tests] for b in found if b.kernel == "6.12"]
    assert per_kernel == [
        ["a.test_one", "b.test_x", "b.test_y"],
        ["c.test_one"],
        ["d.test_one"],
        ["e.test_one"],
    ]
    assert [t.function for t in found[-1].second] == ["again_two"]


def test_chosen_by_words(tmp_path: Path) -> None:
    found = [load(scenario(tmp_path, "a")), load(scenario(tmp_path, "b"))]
    (one,) = boots(found, ["7.3/2hb2/b"])
    assert [t.id for t in one.tests] == ["7.3/2hb2/b.test_one"]
    assert boots(found, ["nothing"]) == []


def test_the_package_is_made_for_its_machine_only(tmp_path: Path) -> None:
    head = 'FILES = ("dist/sacctl_*.deb",)\nLEAVES = "packages"'
    found = boots([load(scenario(tmp_path, "a")), load(scenario(tmp_path, "b", head))])
    assert {b.name: b.package for b in found if b.kernel == "6.12"} == {
        "6.12-2hb2-a": False,
        "6.12-2hb2-b": True,
    }


def test_topologies_by_kernel(tmp_path: Path) -> None:
    head = 'TOPOLOGIES = {"6.12": ("1hb1", "sw2"), "7.3": ("2hb2",)}'
    found = boots([load(scenario(tmp_path, "a", head))])
    assert [(b.kernel, b.topology) for b in found] == [
        ("6.12", "1hb1"),
        ("6.12", "sw2"),
        ("7.3", "2hb2"),
    ]


def test_misspelt_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="TOPOLOGY means nothing; TOPOLOGIES does"):
        load(scenario(tmp_path, "a", 'TOPOLOGY = "2hb2"'))
    assert load(scenario(tmp_path, "b", "SMALL = 3")).topologies == ("2hb2",)


def test_topologies_for_qemu(tmp_path: Path) -> None:
    words = find("2hb4g4k").arguments(tmp_path)
    window = words[words.index("-M") + 1]
    assert "cxl-fmw.2.targets.1=bridge1" in window
    assert "cxl-fmw.2.interleave-granularity=4096" in window
    devices = [w for w in words if w.startswith("cxl-type3")]
    assert [w.split("sn=")[1] for w in devices] == ["0x100", "0x101", "0x102", "0x103"]
    assert sum(w.startswith("memory-backend-file") for w in words) == 4
    assert find("1hb2mixed").size(1) == 512 << 20
    assert find("1hb2nameless").serial(1) == 0
    assert find("none").arguments(tmp_path) == []
    with pytest.raises(SystemExit, match="there are none, 1hb1"):
        find("3hb3")
