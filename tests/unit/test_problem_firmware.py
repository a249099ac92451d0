# SPDX-License-Identifier: Apache-2.0
"""What firmware leaves behind: what the command line says of each kind of machine, and whether
``sacctl pool adopt`` makes a pool of it."""

from __future__ import annotations

import re
from pathlib import Path

import cxlsim
import pytest
from click.testing import CliRunner
from unit.told_kit import BOOT_FIX, Situation, Told, situations

from sacctl.cli import root
from sacctl.cxl.read import read


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Situation:
    return situations(tmp_path, monkeypatch)


def test_ready(machine: Situation) -> None:
    with machine("2hb2", firmware="devdax", kmem=False) as told:
        told.run("pool", "adopt", "kv", "region2")
        part = told.house.record().cxl
        assert part is not None
        assert part.adopted
        assert not part.regions[0].made


def test_hot_added_and_unused(machine: Situation) -> None:
    with machine("2hb2", firmware="kmem-offline") as told:
        told.run("pool", "adopt", "kv", "dax2.0")
        assert told.drivers() == {"device_dax"}
        assert read(told.house.machine.sysfs).policy.autoprobe


def test_movable(machine: Situation) -> None:
    with machine("2hb2", firmware="kmem-online-movable") as told:
        said = told.refused("pool", "adopt", "kv", "region2", code=4)
        assert "4 of 4 blocks online in zone Movable" in said
        assert "--force-offline" in said
        for _, why, hint in told.verdicts():
            assert "4 of 4 blocks online in zone Movable" in why
            assert hint == "sacctl pool adopt NAME region2 --force-offline"
        told.run("pool", "adopt", "kv", "region2", "--force-offline")
        assert told.drivers() == {"device_dax"}


def test_normal(machine: Situation) -> None:
    with machine("2hb2", firmware="kmem-online-normal") as told:
        for force in ([], ["--force-offline"]):
            said = told.refused("pool", "adopt", "kv", "dax2.0", *force, code=4)
            assert "zone Normal" in said
            assert BOOT_FIX in said
        for _, why, hint in told.verdicts():
            assert "zone Normal" in why
            assert hint == BOOT_FIX


def test_no_dax_device(machine: Situation) -> None:
    with machine("2hb2", firmware="system-ram") as told:
        for force in ([], ["--force-offline"]):
            said = told.refused("pool", "adopt", "kv", "region2", *force, code=4)
            assert "EFI_MEMORY_SP" in said


@pytest.mark.parametrize("situation", ["hmem-devdax", "hmem-offline"])
def test_foreign(machine: Situation, situation: str) -> None:
    with machine("2hb2", firmware=situation) as told:
        (dax,) = read(told.house.machine.sysfs).dax
        told.run("pool", "adopt", "kv", dax.name)
        part = told.house.record().cxl
        assert part is not None
        assert part.regions[0].devices == (f"hmem:{dax.start:#x}",)
        assert told.drivers() == {"device_dax"}


def test_no_endpoint(machine: Situation) -> None:
    with machine("2hb2", firmware="no-endpoint") as told:
        bad = [one for one in told.verdicts() if one[0] == "unusable"]
        assert len(bad) == 1
        assert "cxl_mem has not taken it" in bad[0][1]
        assert "dmesg" in bad[0][2]
        name = next(m.name for m in read(told.house.machine.sysfs).memdevs if not m.endpoint)
        said = told.refused("pool", "create", "kv", "--devices", "cxl0,cxl1", code=2)
        assert f"{name} has no endpoint: the driver cxl_mem has not taken it" in said


def test_no_memdev(machine: Situation) -> None:
    with machine("2hb2", firmware="no-driver") as told:
        found = told.json("device", "list")
        assert len(found["devices"]) == 1
        (skipped,) = found["skipped"]
        assert re.fullmatch(r"0000:[0-9a-f]{2}:00\.0", skipped["name"])
        assert "cxl_pci has not taken it" in skipped["why"]
        assert f"echo {skipped['name']} > /sys/bus/pci/drivers/cxl_pci/bind" in skipped["hint"]
        said = told.refused("pool", "create", "kv", "--devices", "cxl0,cxl1", code=3)
        assert f"{skipped['name']} is none: it is CXL memory, and cxl_pci has not" in said
        said = told.refused("pool", "create", "kv", "--devices", skipped["name"], code=3)
        assert "cxl_pci has not taken it" in said


def test_decoders_without_a_region(machine: Situation) -> None:
    with machine("2hb2", firmware="committed-no-region") as told:
        for verdict, why, _ in told.verdicts():
            assert verdict == "unusable"
            assert "there is no region" in why
            assert "left alone" in why
        said = told.refused("pool", "create", "kv", "--devices", "cxl0,cxl1", code=2)
        assert "it is left alone" in said


# ------------------------------------------------------------------------ all of them


@pytest.mark.parametrize("situation", cxlsim.SITUATIONS)
def test_looking_changes_nothing(machine: Situation, situation: str) -> None:
    with machine("2hb2", firmware=situation) as told:
        before = told.house.look()
        for words in ("device list", "device topology", "health"):
            CliRunner().invoke(
                root, ["--sysroot", str(told.house.machine.root), *words.split()]
            )
        for dax in read(told.house.machine.sysfs).dax:
            told_anyhow(told, "pool", "adopt", "kv", dax.name, "--dry-run")
        told_anyhow(told, "pool", "create", "kv", "--devices", "cxl0,cxl1", "--dry-run")
        assert told.house.look() == before
        assert told.house.machine.writes == []


def told_anyhow(told: Told, *words: str) -> None:
    """A plan or a reasoned refusal; never a crash."""
    at = str(told.house.machine.root)
    given = ["--config", str(told.config), "--sysroot", at, *words]
    result = CliRunner().invoke(root, given)
    if result.exit_code:
        assert result.stderr.splitlines()[-1].startswith("error: ")
        assert "next: " in result.stderr
    else:
        assert result.stdout
