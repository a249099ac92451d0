"""tools/require.sh: what is missing, and what was chosen and does not work, is named with
what to do."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What the make that runs the tests was told must not reach the programs under test.
CHOICES = ("PYTHON", "CC", "CXX", "FUZZ_CC", "FUZZ_CXX", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")


def run(
    *words: str | Path, cwd: Path, code: int = 0, env: Mapping[str, str] | None = None
) -> str:
    """Run a program; its stdout and stderr."""
    kept = {name: text for name, text in os.environ.items() if name not in CHOICES}
    result = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**kept, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = result.stdout + result.stderr
    assert result.returncode == code, f"{words}\n{said}"
    return said


@pytest.fixture
def require(tmp_path: Path) -> Path:
    """tools/require.sh in a tree of its own: what is in .venv here plays no part."""
    (tmp_path / "tree" / "tools").mkdir(parents=True)
    return Path(shutil.copy(ROOT / "tools" / "require.sh", tmp_path / "tree" / "tools"))


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("what", "variable", "package"),
    [("cxx", "CXX", "g++"), ("clang", "FUZZ_CXX", "clang"), ("cxx", "CC", "gcc")],
)
def test_chosen_compilers_that_do_not_work_are_named(
    what: str, variable: str, package: str, require: Path, tmp_path: Path
) -> None:
    said = run(require, what, cwd=tmp_path, code=1, env={variable: "/nowhere/compiler"})
    assert f"{variable}=/nowhere/compiler: there is no such program" in said
    assert re.search(rf"packages: ([^)]* )?{re.escape(package)}[ )]", said)
    assert "apt-get" not in said
    old = program(tmp_path / "old", 'echo "old 1.0"; [ "$1" = --version ]')
    said = run(require, what, cwd=tmp_path, code=1, env={variable: str(old)})
    assert re.search(rf"{variable}={old}: it cannot build .* \(old 1\.0\)", said)


@pytest.mark.parametrize("name", ["c++", "cc"])
def test_missing_compilers_are_named_with_the_command(
    name: str, require: Path, tmp_path: Path
) -> None:
    program(tmp_path / "bin" / name, "exit 1")
    env = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "CXX": "", "CC": ""}
    said = run(require, "cxx", cwd=tmp_path, code=1, env=env)
    assert f"{name} here" in said
    assert re.search(r"^  (sudo )?apt-get install -y g", said, re.MULTILINE)


def test_a_chosen_python_that_does_not_work_is_named(require: Path, tmp_path: Path) -> None:
    said = run(require, "python", cwd=tmp_path, code=1, env={"PYTHON": "/nope"})
    assert "PYTHON=/nope: there is no such program" in said
    assert "leave PYTHON out" in said
    shutil.copy(ROOT / "Makefile", require.parents[1])
    (require.parents[1] / "requirements").mkdir()
    for given in ("PYTHON=/nope", "PYTHON=false"):
        said = run("make", "demo", given, cwd=require.parents[1], code=2)
        assert f"{given}: " in said
        assert "==" not in said  # nothing was begun


def test_a_python_that_venv_was_not_made_by_is_named(require: Path, tmp_path: Path) -> None:
    environment = require.parents[1] / ".venv" / "bin" / "python"
    python = {"PYTHON": sys.executable}
    program(environment, f'exec {shlex.quote(sys.executable)} "$@"')
    assert run(require, "python", cwd=tmp_path, env=python) == ""
    program(environment, "case $1 in -V) echo Python 3.11.0 ;; *) echo /other/os.py ;; esac")
    said = run(require, "python", cwd=tmp_path, code=1, env=python)
    assert f"PYTHON={sys.executable} is Python 3." in said
    assert ".venv was made by Python 3.11.0 of /other: run make clean first" in said
    assert run(require, "python", cwd=tmp_path, env={"PYTHON": ""}) == ""
    environment.unlink()
    environment.symlink_to("/nowhere/python")
    assert "make clean" in run(require, "python", cwd=tmp_path, code=1, env={"PYTHON": ""})


def test_no_package_is_advised_for_a_python_of_ones_own(require: Path, tmp_path: Path) -> None:
    """One outside /usr/bin, without the venv module."""
    lacking = f"""case "$2" in
*ensurepip*) exit 1 ;;
*sys.executable*) echo /opt/python/bin/python3.12 ;;
*) exec {shlex.quote(sys.executable)} "$@" ;;
esac"""
    python = program(tmp_path / "python", lacking)
    said = run(require, "python", cwd=tmp_path, code=1, env={"PYTHON": str(python)})
    assert "/opt/python/bin/python3.12 lacks the venv module" in said
    assert "apt-get" not in said
    program(python, lacking.replace("/opt/python", "/usr"))
    said = run(require, "python", cwd=tmp_path, code=1, env={"PYTHON": str(python)})
    assert re.search(r"apt-get install -y python3\.\d+-venv$", said, re.MULTILINE)


@pytest.mark.parametrize("words", [[], ["--help"], ["foo"], ["cxx", "all"], ["--install"]])
def test_require_shows_its_usage(words: list[str], require: Path, tmp_path: Path) -> None:
    assert "usage: tools/require.sh" in run(require, *words, cwd=tmp_path, code=2)


def test_nothing_missing_is_silent(require: Path, tmp_path: Path) -> None:
    python = {"PYTHON": sys.executable}
    assert run(require, "python", "cxx", cwd=tmp_path, env=python) == ""
