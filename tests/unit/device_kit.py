# SPDX-License-Identifier: Apache-2.0
"""What tests of ``sacctl device`` share: running it over a tree, and records of pools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from unit.cxl_dump import tree

from sacctl.cli import root
from sacctl.pool.cxl_record import CxlPart, RegionPart
from sacctl.pool.record import Record, Records

__all__ = ["Run", "listed", "look", "record", "runner"]

MIB = 1 << 20
Run = Callable[..., Result]


def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs sacctl with settings of its own; code: the exit code that is due."""
    monkeypatch.setenv("SAC_CONFIG", str(tmp_path / "sac.toml"))
    monkeypatch.delenv("SAC_SYSROOT", raising=False)
    (tmp_path / "sac.toml").write_text(f'[pools]\ndir = "{tmp_path}/pools.d"\n')

    def go(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(root, list(words))
        assert result.exit_code == code, (words, result.stdout, result.stderr)
        return result

    return go


def look(tmp_path: Path, dump: str, name: str) -> str:
    folder = tmp_path / f"{dump}-{name}"
    folder.mkdir()
    return str(tree(dump, name, folder).root)


def listed(run: Run, at: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        run("--sysroot", at, "-o", "json", "device", "list").stdout
    )
    return found


def record(tmp_path: Path, pool: str, devices: tuple[str, ...], state: str = "ready") -> None:
    """A pool's record, as POOL writes it."""
    (tmp_path / "pools.d").mkdir(exist_ok=True)
    Records(tmp_path / "pools.d").write(
        Record(
            name=pool, uuid="ab" * 16, created="2026-11-30T00:00:00Z", kind="cxl", state=state,
            meta="/dev/dax2.1", data=("/dev/dax2.0",), sizes=(496 * MIB,),
            cxl=CxlPart(
                regions=(
                    RegionPart(
                        devices=devices, ways=len(devices), granularity=256,
                        bytes=256 * MIB * len(devices),
                        parts=(240 * MIB * len(devices), 16 * MIB),
                    ),
                ),
            ),
        )
    )  # fmt: skip
