# SPDX-License-Identifier: Apache-2.0
"""The Debian package: installed, upgraded under an engine at work, removed, purged."""

from __future__ import annotations

import shutil
from pathlib import Path

from vm.guest.kit import Done, equal, sh, until
from vm.guest.system import (
    Client,
    daemon_pid,
    engine,
    property_of,
    wait_for_daemon,
)

INIT = "systemd"
KERNELS = ("6.12",)
TOPOLOGIES = ("1hb2",)
FILES = ("dist/sacctl_*.deb",)
LEAVES = "packages come and go"
LIMIT = 900

SACCTL = "/usr/bin/sacctl"
PYTHON = "/usr/lib/sac/bin/python3"
RECORDS = Path("/etc/sac/pools.d")
RUNNING = ("sacd.socket", "sacd.service", "sac-health.timer")


def test_package() -> None:
    """One story: each part begins with what the one before has left."""
    # The payload's product is not to be taken for the package's.
    Path("/usr/local/bin/sacctl").unlink(missing_ok=True)
    for path in Path("/usr/local/lib").glob("python3*/dist-packages"):
        shutil.rmtree(path)
    (package,) = Path("/payload/files").glob("sacctl_*.deb")
    _install(package)
    engine("engine", "sac-clients")
    sh(SACCTL, "pool", "create", "kv", "--emulate", "2x16M", limit=120)
    sh(
        *(SACCTL, "namespace", "create", "chat", "--layout", "deepseek-v3.2-fp8"),
        *("--layers", "2", "--quota", "16M", "--mode", "0666"),
        limit=120,
    )
    client = Client("engine", PYTHON)
    newer = _upgrade(package, client)
    client.stop()
    _remove()
    _again(newer)
    _purge()


def _install(package: Path) -> None:
    sh("dpkg", "-i", str(package), limit=400)
    for unit in RUNNING:
        equal(property_of(unit, "ActiveState"), "active", unit)
        equal(property_of(unit, "UnitFileState"), "enabled", unit)
    equal(sh("systemctl", "--failed", "--no-legend").out, "", "units that failed")
    status = Path(f"/proc/{wait_for_daemon()}/status").read_text()
    assert "\nUid:\t0" not in status
    sh(SACCTL, "--version")
    sh(SACCTL, "completion", "bash")
    _complete()


def _complete() -> None:
    """The package owns all of /usr/lib/sac but byte code, which goes with it."""
    listed = set(sh("dpkg", "-L", "sacctl").out.split("\n"))
    for path in Path("/usr/lib/sac").rglob("*"):
        if "__pycache__" not in path.parts:
            assert str(path) in listed, path


def _upgrade(package: Path, client: Client) -> Path:
    """A newer version comes; the engine waits and goes on, with the pool still there."""
    tree = Path("/var/tmp/newer")
    sh("dpkg-deb", "-R", str(package), str(tree), limit=120)
    control = tree / "DEBIAN/control"
    lines = control.read_text().splitlines(keepends=True)
    newer = [f"{li.rstrip()}+newer\n" if li.startswith("Version: ") else li for li in lines]
    control.write_text("".join(newer))
    made = Path("/var/tmp/newer.deb")
    sh("dpkg-deb", "-Znone", "-b", str(tree), str(made), limit=120)
    Path("/etc/sac/sac.toml").write_text('[log]\nlevel = "debug"\n')
    before, socket = daemon_pid(), property_of("sacd.socket", "ActiveEnterTimestampMonotonic")
    sh("dpkg", "--force-confold", "-i", str(made), limit=400)
    after = wait_for_daemon(before)
    assert after != before
    assert "+newer" in sh("dpkg-query", "-W", "sacctl").out
    equal(
        property_of("sacd.socket", "ActiveEnterTimestampMonotonic"),
        socket,
        "the socket, which must not have been closed",
    )
    equal(Path("/etc/sac/sac.toml").read_text(), '[log]\nlevel = "debug"\n', "the settings")
    client.goes_on(180)
    assert "kv" in sh(SACCTL, "pool", "list", limit=120).out
    return made


def _remove() -> None:
    """Pools, records and settings stay; nothing of the program does."""
    sh("dpkg", "-r", "sacctl", limit=400)
    equal(daemon_pid(), 0, "the daemon's process")
    for unit in RUNNING:
        equal(property_of(unit, "ActiveState"), "inactive", unit)
    for gone in ("/usr/lib/sac", "/usr/bin/sacctl", "/usr/lib/systemd/system/sacd.service"):
        assert not Path(gone).exists(), gone
    for kept in (RECORDS / "kv.toml", Path("/etc/sac/sac.toml")):
        assert kept.exists(), kept
    assert list(Path("/dev/shm").glob("sac-*/kv/data.*")), "the pool's memory"


def _again(package: Path) -> None:
    """Installed again, it serves what it served."""
    sh("dpkg", "-i", str(package), limit=400)
    wait_for_daemon()

    def shown() -> Done | None:
        words = (SACCTL, "namespace", "show", "chat", "-o", "json")
        done = sh(*words, code=None, limit=120)
        return done if done.code == 0 else None

    found = until("the namespace", shown, 120)
    assert found is not None
    space = found.json["namespace"]
    assert space["pages"] > 0, space


def _purge() -> None:
    sh("dpkg", "-P", "sacctl", limit=400)
    for path in ("/etc/sac", "/run/sac", "/var/lib/sac"):
        assert not Path(path).exists(), path
    equal(list(Path("/dev/shm").glob("sac-*")), [], "memory of pools")
    equal(sh("systemctl", "--failed", "--no-legend").out, "", "units that failed")
