# SPDX-License-Identifier: Apache-2.0
"""Links, pipes and folders in the places where sacctl writes and reads small files: never
written through, never waited at, and said in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from system.daemon_kit import Place

from sacctl.cli import root
from sacctl.cxl import guard
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError
from sacctl.files import read_regular, write_whole
from sacctl.pool import udevrule

WAIT = 20.0  # seconds: who waits at a pipe waits longer

PUT: dict[str, Callable[[Path, Path], None]] = {
    "link": lambda at, other: at.symlink_to(other),
    "dangling": lambda at, other: at.symlink_to(other.parent / "nowhere"),
    "loop": lambda at, other: at.symlink_to(at.name),
    "pipe": lambda at, other: os.mkfifo(at),
    "hard": lambda at, other: at.hardlink_to(other),
}  # fmt: skip


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A file of somebody else."""
    made = tmp_path / "victim"
    made.write_text("mine\n")
    return made


@pytest.mark.parametrize("what", PUT)
@pytest.mark.parametrize("beside", [False, True])
def test_nothing_is_written_through(
    tmp_path: Path, other: Path, what: str, beside: bool
) -> None:
    path = tmp_path / "file"
    PUT[what](path.with_name(".file.new") if beside else path, other)
    write_whole(path, b"new\n", 0o640, sync=True)
    assert other.read_text() == "mine\n"
    assert read_regular(path, 100) == b"new\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "victim"]


@pytest.mark.parametrize("what", ["link", "pipe"])
def test_rules_and_notes(tmp_path: Path, other: Path, what: str) -> None:
    sysfs = Sysfs(tmp_path)
    rules = tmp_path / udevrule.rules_file("kv").lstrip("/")
    note = tmp_path / guard.NOTE.lstrip("/")
    for path in (rules, note):
        path.parent.mkdir(parents=True, exist_ok=True)
        PUT[what](path, other)
        PUT[what](path.with_name(f".{path.name}.new"), other)
    autoprobe = tmp_path / guard.AUTOPROBE.lstrip("/")
    autoprobe.parent.mkdir(parents=True)
    autoprobe.write_text("0\n")
    assert guard.left_behind(sysfs) == {}
    guard.Guard(sysfs).hold()
    udevrule._write(sysfs, "kv", "# ours\n")
    assert other.read_text() == "mine\n"
    assert not rules.is_symlink()
    assert rules.read_text() == "# ours\n"
    assert not note.is_symlink()


def test_rules_that_are_no_file(tmp_path: Path) -> None:
    (tmp_path / udevrule.rules_file("kv").lstrip("/")).mkdir(parents=True)
    with pytest.raises(CtlError, match="not a regular file"):
        udevrule.ForgetDevices(Sysfs(tmp_path), "kv").what  # noqa: B018


def sacctl(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "sacctl", *words],
        env=place.env(),
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )


@pytest.mark.parametrize("what", ["pipe", "loop", "folder"])
def test_a_record_that_is_no_file(tmp_path: Path, other: Path, what: str) -> None:
    """Every command goes on without it, or says which it is."""
    place = Place(tmp_path)
    path = place.records.path("odd")
    if what == "folder":
        path.mkdir()
    else:
        PUT[what](path, other)
    place.make_pool("kv", "32M")
    place.start()
    for words in (("pool", "list"), ("health",), ("doctor",), ("pool", "destroy", "odd", "-y")):
        done = sacctl(place, *words)
        said = done.stdout + done.stderr
        assert "odd" in said
        assert "Traceback" not in said
        assert "a fault of sacctl" not in said
    assert place.ask("pool.show", name="kv")["pool"]["state"] == "serving"
    place.stop()
    place.close()


def test_a_folder_in_the_records_way(tmp_path: Path) -> None:
    """What was begun is taken back all the same."""
    place = Place(tmp_path)
    (place.records.folder / ".kv.toml.new").mkdir()
    with pytest.raises(CtlError, match="cannot write the pool record") as caught:
        place.make_pool("kv", "32M")
    assert "could not be undone" not in str(caught.value)
    assert not (tmp_path / "kv").exists()
    place.close()


def test_settings_without_an_end() -> None:
    done = CliRunner().invoke(root, ["--config", "/dev/zero", "pool", "list"])
    assert (done.exit_code, "too long for settings" in done.stderr) == (2, True)


def test_health_looks_at_pools_beside_a_bad_record(tmp_path: Path) -> None:
    place = Place(tmp_path)
    record = place.make_pool("kv", "32M")
    place.records.write(record.with_(state="creating"))
    place.records.path("odd").write_text("no record")
    done = sacctl(place, "-o", "json", "health")
    assert '"SAC201"' in done.stdout
    place.close()
