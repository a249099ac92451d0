# SPDX-License-Identifier: Apache-2.0
"""The systemd units: valid, as closed as docs/systemd.md says, and of this product."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from unit.tool_kit import tool

from sacctl.cli import root
from sacctl.health import EXIT

ROOT = Path(__file__).resolve().parents[2]
place = tool("place")
UNITS = sorted(
    file
    for pattern in ("*.service", "*.socket", "*.timer")
    for file in (ROOT / "systemd").glob(pattern)
)
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
# Exposure in tenths, as `systemd-analyze security --threshold` takes it: the most that a
# service may have. 252 counts a tenth or two more than 257.
EXPOSURE = {
    "sacd.service": 19,
    "sac-monitor.service": 20,
    "sac-health.service": 20,
    "sac-health-critical@.service": 20,
    "sac-pools.service": 51,
    "sac-pool@.service": 51,
}

analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def read(unit: Path) -> dict[str, list[tuple[str, str]]]:
    """Sections with their settings, in order; a setting may come several times."""
    found: dict[str, list[tuple[str, str]]] = {}
    section: list[tuple[str, str]] = []
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.append((key, value))
    return found


def values(unit: Path, section: str, key: str) -> list[str]:
    return [value for name, value in read(unit).get(section, []) if name == key]


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units as an installation has them, with a program where they look for it."""
    prefix = tmp_path_factory.mktemp("units")
    place.system_files(
        place.Target(Path("/"), prefix, Path("/usr/bin/python3"), False), prefix / "etc"
    )
    program = prefix / "bin" / "sacctl"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return prefix / "lib" / "systemd" / "system"


@analyze
def test_verify(placed: Path) -> None:
    files = [str(file) for file in sorted(placed.iterdir())]
    assert len(files) == len(UNITS)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@analyze
@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_exposure(unit: Path, placed: Path) -> None:
    done = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--offline=yes",
            f"--threshold={EXPOSURE[unit.name]}",
            str(placed / unit.name),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Overall exposure level" in done.stdout


def test_exposure_is_what_the_docs_say() -> None:
    text = (ROOT / "docs" / "systemd.md").read_text()
    stated = re.findall(r"^\| `(sac[^`]+\.service)` \|.*\| ([0-9]\.[0-9]) \|$", text, re.M)
    assert {name for name, _ in stated} == set(EXPOSURE)
    for name, score in stated:
        # systemd 257's score, which is never above what a test with 252 allows.
        assert float(score) * 10 <= EXPOSURE[name] <= float(score) * 10 + 3


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_commands_are_sacctls(unit: Path) -> None:
    lines = [
        value
        for key in ("ExecStart", "ExecReload", "ExecStartPre", "ExecStop")
        for value in values(unit, "Service", key)
    ]
    assert lines
    for line in lines:
        program, *words = shlex.split(line.replace("%i", "kv"))
        assert program == "/usr/bin/sacctl"
        parse(words)


def parse(words: list[str]) -> None:
    """Raises click.UsageError for words that sacctl does not take. Runs nothing."""
    command: click.Command = root
    context = click.Context(root, info_name="sacctl")
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        context = click.Context(command, info_name=name, parent=context)
    command.parse_args(context, words)


def test_a_wrong_command_is_seen() -> None:
    with pytest.raises(click.UsageError):
        parse(["pool", "assemble", "--al"])
    with pytest.raises(click.UsageError):
        parse(["daemon", "start"])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_man_pages_are_there(unit: Path) -> None:
    pages = " ".join(values(unit, "Unit", "Documentation")).split()
    assert pages
    for page in pages:
        name = page.removeprefix("man:").removesuffix("(1)")
        assert (ROOT / "docs" / "man" / f"{name}.1").is_file(), page


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_other_units_are_there(unit: Path) -> None:
    """A misspelt name in After= or Wants= is nothing to systemd."""
    known = {file.name for file in UNITS}
    for key in ("Requires", "Wants", "After", "Before", "OnFailure", "Also"):
        for name in " ".join(values(unit, "Unit", key)).split():
            if name.startswith("sac"):
                assert re.sub(r"@[^.]+", "@", name) in known, name


def test_users_and_groups_are_made() -> None:
    lines = (ROOT / "systemd" / "sysusers.d" / "sac.conf").read_text().splitlines()
    made = {tuple(line.split()[:2]) for line in lines if line and not line.startswith("#")}
    assert made == {("u", "sac"), ("g", "sac-clients")}
    names = {name for _, name in made} | {"root"}
    used: set[str] = set()
    for unit in UNITS:
        for section, key in (
            ("Service", "User"),
            ("Service", "Group"),
            ("Service", "SupplementaryGroups"),
            ("Socket", "SocketUser"),
            ("Socket", "SocketGroup"),
        ):
            used.update(" ".join(values(unit, section, key)).split())
    rules = (ROOT / "udev" / "90-sac.rules").read_text()
    used.update(re.findall(r'(?:GROUP|OWNER)="([^"]+)"', rules))
    for line in (ROOT / "systemd" / "tmpfiles.d" / "sac.conf").read_text().splitlines():
        if line.startswith("d "):
            used.update(line.split()[3:5])
    assert used == names


def test_clients_do_not_own_devices() -> None:
    """An open DAX device grants all of it: the group that may connect has none."""
    rules = (ROOT / "udev" / "90-sac.rules").read_text()
    (clients,) = values(ROOT / "systemd" / "sacd.socket", "Socket", "SocketGroup")
    assert clients == "sac-clients"
    assert clients not in rules
    for line in rules.splitlines():
        if "GROUP=" in line or "MODE=" in line:
            assert 'SUBSYSTEM=="dax"' in line  # never /dev/cxl/mem*
            assert "ENV{SAC_POOL}" in line  # never the devices of others


def test_health_codes_are_mapped() -> None:
    (fine,) = values(ROOT / "systemd" / "sac-health.service", "Service", "SuccessExitStatus")
    assert int(fine) == EXIT["degraded"]
    assert EXIT["critical"] not in (0, int(fine))
    (alarm,) = values(ROOT / "systemd" / "sac-health.service", "Unit", "OnFailure")
    assert alarm == "sac-health-critical@%p.service"
    plugin = values(
        ROOT / "systemd" / "sac-health-critical@.service", "Service", "SuccessExitStatus"
    )
    assert plugin == ["1 2 3"]


def test_what_a_restart_must_keep() -> None:
    service = dict(read(ROOT / "systemd" / "sacd.service")["Service"])
    assert service["RuntimeDirectoryPreserve"] == "yes"
    assert service["RemoveIPC"] == "no"
    assert int(service["FileDescriptorStoreMax"]) >= 1024
    # Kept when it is stopped, too, a device could never be destroyed: the service manager
    # would have it open.
    assert "FileDescriptorStorePreserve" not in service
    for hides in (
        "PrivateDevices",
        "PrivateNetwork",
        "PrivateIPC",
        "PrivateUsers",
        "ProtectProc",
    ):
        assert hides not in service


def test_a_pool_can_be_assembled_twice() -> None:
    """udev starts the unit again when a device comes back: it must not stay active."""
    one = dict(read(ROOT / "systemd" / "sac-pool@.service")["Service"])
    every = dict(read(ROOT / "systemd" / "sac-pools.service")["Service"])
    assert "RemainAfterExit" not in one
    assert every["RemainAfterExit"] == "yes"
    for service in (one, every):
        # A mount namespace would hide the mounts that pools in system RAM need.
        for hides in ("ProtectSystem", "PrivateTmp", "ProtectHome", "PrivateDevices"):
            assert hides not in service


def test_the_example_settings_are_the_defaults(tmp_path: Path) -> None:
    """Every key of the file is one, and what stands behind the # is its default."""
    from sacctl.settings import Settings, load

    text = (ROOT / "packaging" / "sac.toml").read_text()
    given = tmp_path / "sac.toml"
    given.write_text(text)
    assert load(given).values() == Settings().values()
    given.write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.M))
    shown = load(given)
    expected = Settings().values() | {"pools.dir": Path("/etc/sac/pools.d")}
    assert shown.values() == expected
