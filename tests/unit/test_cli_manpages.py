# SPDX-License-Identifier: Apache-2.0
"""The man pages are those of the commands, and roff takes them without a complaint."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "man"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("manpages", ROOT / "tools" / "manpages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_fresh(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--check"]) == 0, capsys.readouterr().out


def test_pages_refer_to_pages_that_are_there() -> None:
    there = {file.stem for file in FOLDER.glob("*.1")}
    assert {"sacctl", "sacctl-pool-create", "sacctl-health"} <= there
    for file in FOLDER.glob("*.1"):
        text = file.read_text().replace("\\-", "-")
        assert set(re.findall(r"(sacctl[\w-]*)\\fR\(1\)", text)) <= there


def test_roff_takes_them() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not here")
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-z", *map(str, sorted(FOLDER.glob("*.1")))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_escapes(tool: ModuleType) -> None:
    assert tool.escape(".x -y'z\\") == r"\&.x \-y\(aqz\e"
