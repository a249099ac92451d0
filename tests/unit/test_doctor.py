# SPDX-License-Identifier: Apache-2.0
"""The report for a bug: what is in it, what is not, and that nothing can stop it."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from unit import cli_records as r
from unit.cli_fake import FakeDaemon
from unit.faults_kit import cxl_house

from sacctl import doctor as doctor_module
from sacctl.cli import root
from sacctl.errors import CtlError

PARTS = {
    "versions", "settings", "environment", "daemon", "pools", "records", "namespaces",
    "clients", "health", "devices", "sysfs", "iomem", "units", "log", "kernel", "unread",
}  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A simulated machine with settings, a record, and a daemon that answers."""
    (tmp_path / "pools.d").mkdir()
    (tmp_path / "pools.d" / "kv.toml").write_text("# a record\n")
    (tmp_path / "sac.toml").write_text(f'[pools]\ndir = "{tmp_path}/pools.d"\n')
    monkeypatch.setenv("SAC_CONFIG", str(tmp_path / "sac.toml"))
    answers: dict[str, Any] = {
        "status": {"daemon": r.daemon(), "pools": [r.pool()]},
        "pool.list": {"pools": [r.pool()]},
        "namespace.list": {"namespaces": [r.namespace()]},
        "client.list": {"clients": [r.client()]},
        "health": r.health(),
    }
    fake = FakeDaemon(tmp_path / "s", answers)
    monkeypatch.setenv("SAC_SOCKET", str(fake.path))
    (tmp_path / "m").mkdir()
    with cxl_house(tmp_path / "m", "1hb1") as house:
        monkeypatch.setenv("SAC_SYSROOT", str(house.sysfs.root))
        yield tmp_path
    fake.close()


def report(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(root, ["-o", "json", "doctor", *words])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_everything_is_in_it(machine: Path) -> None:
    found = report()
    assert found.pop("schema") == "sac.doctor/1"
    assert set(found) == PARTS
    assert found["versions"]["kernel"] == os.uname().release
    assert found["settings"]["pools.dir"] == str(machine / "pools.d")
    assert found["environment"]["SAC_CONFIG"].endswith("sac.toml")
    assert found["daemon"]["pid"] == r.daemon()["pid"]
    assert found["records"] == {"kv.toml": "# a record\n"}
    assert [p["name"] for p in found["pools"]] == ["kv"]
    assert [n["name"] for n in found["namespaces"]] == ["chat"]
    assert found["health"]["status"] == r.health()["status"]
    assert found["devices"]["memdevs"][0]["serial"] == 0x100
    paths = found["sysfs"]
    assert any(path.endswith("/interleave_ways") for path in paths)
    assert any(value.startswith("-> ") for value in paths.values())
    assert not any("trigger_poison_list" in path for path in paths)


def test_without_a_daemon_the_rest_is_there(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAC_SOCKET", str(machine / "none"))
    (machine / "pools.d" / "kv.toml").unlink()
    found = report()
    assert found["daemon"] == {}
    assert found["health"]["findings"][0]["code"] == "SAC101"
    assert found["devices"]["memdevs"]
    assert any(why.startswith("the daemon: no daemon listens") for why in found["unread"])


def test_what_cannot_be_read_is_named(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, str]:
        raise CtlError("no versions today")

    monkeypatch.setattr(doctor_module, "_versions", broken)
    found = report()
    assert found["versions"] == {}
    assert "versions: no versions today" in found["unread"]


def test_only_our_own_environment(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("SAC_TOKEN", "hunter2")  # somebody's own
    assert "hunter2" not in json.dumps(report())


def test_a_file_that_only_its_owner_reads(machine: Path) -> None:
    file = machine / "report.tar.gz"
    mask = os.umask(0)
    try:
        done = CliRunner().invoke(root, ["doctor", "--output-file", str(file)])
    finally:
        os.umask(mask)
    assert done.exit_code == 0, done.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as tar:
        names = {Path(name).stem for name in tar.getnames()}
        member = tar.extractfile("sacctl-doctor/settings.txt")
        assert member is not None
        assert f"pools.dir: {machine}/pools.d\n" in member.read().decode()
    assert names == PARTS
    again = CliRunner().invoke(root, ["doctor", "--output-file", str(file)])
    assert again.exit_code == 4
    assert "is there already" in again.stderr


def test_no_half_of_a_report_stays(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    file = machine / "report.tar.gz"
    done = CliRunner().invoke(root, ["doctor", "--output-file", str(file)])
    assert done.exit_code == 1
    assert "No space left" in done.stderr
    assert not file.exists()


def test_as_text(machine: Path) -> None:
    done = CliRunner().invoke(root, ["doctor"])
    assert done.exit_code == 0, done.output
    for part in PARTS:
        assert f"===== {part}." in done.stdout


def test_programs_that_fail_or_are_missing(tmp_path: Path) -> None:
    with pytest.raises(CtlError, match="there is no program"):
        doctor_module._run(["sac-no-such-program"])
    with pytest.raises(CtlError, match="exit code 3"):
        doctor_module._run(["sh", "-c", "exit 3"])
    assert doctor_module._run(["sh", "-c", "echo a; echo b; exit 3"], (3,)) == ["a", "b"]


def test_nothing_is_written(machine: Path) -> None:
    before = sorted(p.name for p in machine.iterdir())
    report()
    assert sorted(p.name for p in machine.iterdir()) == before
