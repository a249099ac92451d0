# SPDX-License-Identifier: Apache-2.0
"""`make install DESTDIR=...`: what lies where, and that it runs from there."""

from __future__ import annotations

import importlib.metadata
import os
import re
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from unit.tool_kit import tool

ROOT = Path(__file__).resolve().parents[2]
place = tool("place")
VERSION = "{}.{}".format(*sys.version_info[:2])
SITE = f"usr/lib/sac/lib/python{VERSION}/site-packages"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the installed product came from, packed again."""
    try:
        found = importlib.metadata.distribution("libsac")
    except importlib.metadata.PackageNotFoundError:
        pytest.fail("libsac is not installed: run make test-python")
    tags = re.findall(r"^Tag: (\S+)$", found.read_text("WHEEL") or "", re.M)
    path = tmp_path_factory.mktemp("wheel") / f"libsac-{found.version}-{tags[0]}.whl"
    assert found.files
    with zipfile.ZipFile(path, "w") as archive:
        for file in found.files:
            outside = ".." in file.parts or "__pycache__" in file.parts
            if not outside and file.name not in ("INSTALLER", "REQUESTED", "direct_url.json"):
                archive.write(str(file.locate()), str(file))
    return path


@pytest.fixture(scope="module")
def placed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything in it. Without the packages that the product depends on: the
    network is not for tests."""
    folder = tmp_path_factory.mktemp("root")
    assert place.main(["--destdir", str(folder), "--no-deps", str(wheel)]) == 0
    return folder


def run(placed: Path, code: str) -> str:
    """What code says to the placed Python, with the other packages of this one behind its
    own."""
    beside = Path(str(importlib.metadata.distribution("click").locate_file(""))).resolve()
    done = subprocess.run(
        [
            str(placed / "usr/lib/sac/bin/python3"),
            "-I",
            "-c",
            f"import sys; sys.path.append({str(beside)!r})\n{code}",
        ],
        cwd=placed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_files(placed: Path) -> None:
    files = {str(f.relative_to(placed)) for f in placed.rglob("*") if not f.is_dir()}
    outside = {file for file in files if not file.startswith(f"{SITE}/")}
    units = {
        f"usr/lib/systemd/system/{file.name}"
        for pattern in ("*.service", "*.socket", "*.timer")
        for file in (ROOT / "systemd").glob(pattern)
    }
    pages = {f"usr/share/man/man1/{page.name}" for page in (ROOT / "docs/man").glob("*.1")}
    assert len(units) >= 8
    assert len(pages) > 30
    assert outside == units | pages | {
        "etc/sac/sac.toml",
        "usr/bin/sacctl",
        "usr/lib/sac/bin/python3",
        "usr/lib/sac/pyvenv.cfg",
        "usr/lib/sysusers.d/sac.conf",
        "usr/lib/tmpfiles.d/sac.conf",
        "usr/lib/udev/rules.d/90-sac.rules",
        "usr/share/bash-completion/completions/sacctl",
        "usr/share/fish/vendor_completions.d/sacctl.fish",
        "usr/share/zsh/vendor-completions/_sacctl",
    }
    assert (placed / "etc/sac/pools.d").is_dir()
    inside = {file.removeprefix(f"{SITE}/").split("/")[0] for file in files - outside}
    assert {name for name in inside if "dist-info" not in name} == {"libsac", "sacctl"}
    assert not [file for file in files if file.endswith((".pyc", "direct_url.json"))]


def test_modes(placed: Path) -> None:
    for file in placed.rglob("*"):
        if file.is_symlink():
            continue
        mode = stat.S_IMODE(file.stat().st_mode)
        assert mode & 0o022 == 0, file
        assert mode & 0o444 == 0o444, file
    assert stat.S_IMODE((placed / "usr/bin/sacctl").stat().st_mode) == 0o755


def test_the_environment_is_of_the_real_python(placed: Path) -> None:
    """Not of the virtual environment that the installation was made with."""
    target = (placed / "usr/lib/sac/bin/python3").readlink()
    assert target.is_absolute()
    assert target == Path(os.path.realpath(sys.executable))
    settings = (placed / "usr/lib/sac/pyvenv.cfg").read_text()
    assert f"home = {target.parent}\n" in settings
    assert "include-system-site-packages = false\n" in settings


def test_it_runs(placed: Path) -> None:
    said = run(placed, "import libsac._core as c; print(c.__file__)")
    assert Path(said.strip()).is_relative_to(placed / SITE)
    launcher = placed / "usr/bin/sacctl"
    assert launcher.read_text().startswith("#!/usr/lib/sac/bin/python3 -I\n")
    started = (
        f"import runpy; sys.argv = ['sacctl', '--version']; "
        f"runpy.run_path({str(launcher)!r}, run_name='__main__')"
    )
    assert re.search(r"\d+\.\d+", run(placed, started))
    # Its children (the demo's processes) have the same environment.
    home = run(placed, "print(sys.prefix, sys.executable)").split()
    assert home == [str(placed / "usr/lib/sac"), str(placed / "usr/lib/sac/bin/python3")]


def test_completions_are_the_commands(placed: Path) -> None:
    for path in place.SHELLS.values():
        assert "_SACCTL_COMPLETE" in (placed / "usr" / path).read_text(), path


def test_settings_stay_and_the_rest_is_made_anew(wheel: Path, tmp_path: Path) -> None:
    settings = tmp_path / "etc/sac/sac.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("# mine\n")
    record = tmp_path / "etc/sac/pools.d/kv.toml"
    record.parent.mkdir()
    record.touch()
    old = tmp_path / SITE / "sacctl" / "module_of_an_old_version.py"
    old.parent.mkdir(parents=True)
    old.touch()
    place.main(["--destdir", str(tmp_path), "--no-deps", str(wheel)])
    assert settings.read_text() == "# mine\n"
    assert record.exists()
    assert not old.exists()
    assert (tmp_path / SITE / "sacctl" / "settings.py").exists()


def test_another_prefix(wheel: Path, tmp_path: Path) -> None:
    place.main(["--destdir", str(tmp_path), "--prefix", "/usr/local", "--no-deps", str(wheel)])
    assert {file.name for file in tmp_path.iterdir()} == {"etc", "usr"}
    assert {file.name for file in (tmp_path / "usr").iterdir()} == {"local"}
    unit = (tmp_path / "usr/local/lib/systemd/system/sacd.service").read_text()
    assert "ExecStart=/usr/local/bin/sacctl daemon run\n" in unit
    assert "/usr/bin/" not in unit
    launcher = (tmp_path / "usr/local/bin/sacctl").read_text()
    assert launcher.startswith("#!/usr/local/lib/sac/bin/python3 -I\n")


@pytest.mark.parametrize(
    ("python", "hidden"),
    [("/root/.pyenv/bin/python3", True), ("/home/me/py/bin/python3", True),
     ("/usr/bin/python3", False), ("/homes/python3", False)],
)  # fmt: skip
def test_a_python_that_the_units_do_not_see(python: str, hidden: bool) -> None:
    target = place.Target(Path("/x"), Path("/usr"), Path(python), False)
    assert ("ProtectHome" in place.out_of_reach(target)) == hidden


def test_the_prefix_begins_at_the_root(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        place.main(["--prefix", "usr", "x.whl"])
    assert "--prefix" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "env", "system"),
    [
        ((), {}, False),
        (("DESTDIR=/x",), {}, True),
        (("DESTDIR=",), {}, True),
        (("PREFIX=/usr/local",), {}, True),
        ((), {"DESTDIR": "/x"}, True),
        # Other programs set it for themselves.
        ((), {"PREFIX": "/opt/x"}, False),
    ],
)
def test_make_knows_which_installation_is_meant(
    words: tuple[str, ...], env: dict[str, str], system: bool
) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "PREFIX")}
    done = subprocess.run(
        ["make", "-n", "install", *words],
        cwd=ROOT,
        env=kept | env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("tools/place.py" in done.stdout) == system, done.stdout
    if "DESTDIR=/x" in words or env.get("DESTDIR"):
        assert '--destdir "/x" --prefix "/usr"' in done.stdout
