# SPDX-License-Identifier: Apache-2.0
"""sacctl as an administrator types it, on a simulated machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from unit.cxl_house import CxlHouse

from sacctl.cli import root
from sacctl.cxl.read import read

__all__ = ["BOOT_FIX", "Situation", "Told", "situations"]

Situation = Callable[..., "AbstractContextManager[Told]"]
BOOT_FIX = "boot with memhp_default_state=offline"


class Told:
    """A house, and sacctl as its administrator would type it."""

    def __init__(self, house: CxlHouse) -> None:
        self.house = house
        self.config = house.root / "sac.toml"
        self.config.write_text(
            f'[pools]\ndir = "{house.records.folder}"\n[daemon]\nrun_dir = "{house.root}/run"\n'
        )

    def run(self, *words: str, code: int = 0) -> Result:
        at = str(self.house.machine.root)
        given = ["--config", str(self.config), "--sysroot", at, *words]
        result = CliRunner().invoke(root, given)
        assert result.exit_code == code, (words, result.stdout, result.stderr)
        return result

    def refused(self, *words: str, code: int) -> str:
        """The message; nothing may have changed."""
        before = self.house.look()
        said = self.run(*words, code=code).stderr.splitlines()[-1]
        assert self.house.look() == before
        return said

    def json(self, *words: str) -> Any:
        return json.loads(self.run("-o", "json", *words).stdout)

    def verdicts(self) -> list[tuple[str, str, str]]:
        found = self.json("device", "list")["devices"]
        return [(d["verdict"], d["why"], d["hint"]) for d in found]

    def below(self, bridge: int) -> list[str]:
        """Names of the devices of a host bridge, in the order of their slots."""
        found = read(self.house.machine.sysfs).memdevs
        bridges = sorted({m.host_bridge for m in found})
        mine = [m for m in found if m.host_bridge == bridges[bridge]]
        return [m.name for m in sorted(mine, key=lambda m: m.pci)]

    def drivers(self) -> set[str]:
        return {d.driver for d in read(self.house.machine.sysfs).dax}


def situations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Situation:
    """What makes a machine: a topology, and what cxlsim.Machine takes."""
    monkeypatch.delenv("SAC_SYSROOT", raising=False)
    monkeypatch.setenv("SAC_SOCKET", str(tmp_path / "nobody"))

    @contextmanager
    def make(topology: str = "2hb2", **options: Any) -> Iterator[Told]:
        with CxlHouse(tmp_path, monkeypatch, topology, **options) as house:
            yield Told(house)

    return make
