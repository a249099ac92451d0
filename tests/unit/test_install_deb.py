# SPDX-License-Identifier: Apache-2.0
"""`make deb`: the package, built and looked into. That it installs, upgrades and goes again is
tests/vm/scenarios/package.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = ROOT / "packaging" / "debian"


def output(*words: str | Path, **more: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=ROOT,
        env=os.environ | more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def version() -> str:
    found = re.search(
        r'#define SAC_VERSION "([^"]+)"', (ROOT / "libsac/include/sac.h").read_text()
    )
    assert found
    return found[1]


@pytest.fixture(scope="module")
def package() -> Path:
    """Built once, and only where something has changed: build/deb keeps root and compiler
    cache."""
    if os.geteuid() != 0:
        pytest.skip("a root folder to build in is made by root")
    for program in ("mmdebstrap", "dpkg-deb"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    said = output("packaging/deb.sh", PYTHON=sys.executable)
    (path,) = re.findall(r"^dist/sacctl_\S+\.deb$", said, re.M)
    return ROOT / str(path)


@pytest.fixture(scope="module")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deb") / "all"
    output("dpkg-deb", "-R", package, folder)
    return folder


def fields(unpacked: Path) -> dict[str, str]:
    text = (unpacked / "DEBIAN/control").read_text()
    return dict(re.findall(r"^([A-Z][\w-]+): (.*)$", text, re.M))


pytestmark = pytest.mark.timeout(2400)


def test_version_and_dependencies(unpacked: Path) -> None:
    found = fields(unpacked)
    assert (found["Package"], found["Version"]) == ("sacctl", version())
    depends = found["Depends"]
    for name in (
        "python3-numpy",
        "python3-rich",
        "python3-pyudev",
        "libstdc++6",
        "libc6",
        "udev",
    ):
        assert re.search(rf"(^|, ){re.escape(name)}( |,|$)", depends), name
    (module,) = unpacked.rglob("_core.cpython-*.so")
    minor = re.search(r"cpython-3(\d+)-", module.name)
    assert minor
    assert f"python3 (>= 3.{minor[1]}~), python3 (<< 3.{int(minor[1]) + 1}~)" in depends
    assert "${" not in (unpacked / "DEBIAN/control").read_text()


def test_what_trixie_is_too_old_for_is_bundled(unpacked: Path) -> None:
    site = next((unpacked / "usr/lib/sac/lib").glob("python3.*/site-packages"))
    names = {path.name for path in site.iterdir()}
    pin = re.search(r"^click==(\S+)$", (ROOT / "requirements/build.txt").read_text(), re.M)
    assert pin
    assert f"click-{pin[1]}.dist-info" in names
    assert {name for name in names if ".dist-info" not in name} == {"click", "libsac", "sacctl"}
    settings = (unpacked / "usr/lib/sac/pyvenv.cfg").read_text()
    assert "include-system-site-packages = true\n" in settings


def test_contents(package: Path, unpacked: Path) -> None:
    listed = output("dpkg-deb", "-c", package)
    lines = [line.split(None, 5) for line in listed.splitlines()]
    for mode, owner, *_, name in lines:
        assert owner == "root/root", name
        assert mode[0] == "l" or mode[8] != "w", name
    names = {line[5].split(" -> ")[0].removeprefix(".") for line in lines}
    for unit in (ROOT / "systemd").glob("sac*.*"):
        assert f"/usr/lib/systemd/system/{unit.name}" in names
    for wanted in (
        "/etc/sac/sac.toml",
        "/etc/sac/pools.d/",
        "/usr/bin/sacctl",
        "/usr/lib/sysusers.d/sac.conf",
        "/usr/lib/tmpfiles.d/sac.conf",
        "/usr/lib/udev/rules.d/90-sac.rules",
        "/usr/share/doc/sacctl/copyright",
        "/usr/share/bash-completion/completions/sacctl",
    ):
        assert wanted in names
    pages = {f"/usr/share/man/man1/{p.name}.gz" for p in (ROOT / "docs/man").glob("*.1")}
    assert pages <= names
    lib = r"sac|systemd/system/sac|sysusers\.d|tmpfiles\.d|udev"
    places = rf"/(etc/sac|usr/(bin/sacctl|lib/({lib})|share))"
    assert [n for n in names if not n.endswith("/") and not re.match(places, n)] == []
    assert not [name for name in names if "__pycache__" in name]
    assert (unpacked / "DEBIAN/conffiles").read_text() == "/etc/sac/sac.toml\n"


def test_the_link_to_the_systems_python(package: Path) -> None:
    data = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=True
    ).stdout
    path = ROOT / "build/deb/data.tar"
    path.write_bytes(data)
    try:
        with tarfile.open(path) as tar:
            member = tar.getmember("./usr/lib/sac/bin/python3")
    finally:
        path.unlink()
    assert member.issym()
    assert os.path.normpath(f"/usr/lib/sac/bin/{member.linkname}").startswith(
        "/usr/bin/python3."
    )


def test_scripts(unpacked: Path) -> None:
    for name in ("postinst", "prerm", "postrm"):
        script = unpacked / "DEBIAN" / name
        text = script.read_text()
        output("sh", "-n", script)
        assert text.startswith("#!/bin/sh\n")
        assert "\nset -e\n" in text
        assert "#DEBHELPER#" not in text
        assert "exit 1" not in text  # none of them refuses
    install = (unpacked / "DEBIAN/postinst").read_text()
    for part in ("systemd-sysusers", "systemd-tmpfiles", "daemon-reload", "py3compile"):
        assert part in install, part
    # Users before the units that run as them.
    assert install.index("systemd-sysusers") < install.index("deb-systemd-invoke")
    # Restarted where it was upgraded: the service manager keeps the pools meanwhile.
    assert "_dh_action=restart" in install
    # The socket is started only: clients of an upgrade wait at it.
    assert re.search(r"deb-systemd-invoke start .*'sacd\.socket'", install)
    assert not re.search(r"invoke \$_dh_action .*'sacd\.socket'", install)
    # An upgrade stops nothing.
    for stop in re.findall(
        r"if (.*)\n\s*deb-systemd-invoke stop", (unpacked / "DEBIAN/prerm").read_text()
    ):
        assert '"$1" = remove' in stop


def test_only_a_purge_takes_pools() -> None:
    text = (DEBIAN / "sacctl.postrm").read_text()
    before, purge = text.split('if [ "$1" = purge ]; then')
    assert "rm " not in before
    guarded = purge.split("\nfi\n")[0]
    for place in ("/etc/sac/pools.d", "/run/sac", "/var/lib/sac", "/dev/shm/sac-"):
        assert place in guarded
    assert "rm " not in purge.split("\nfi\n", 1)[1]
    prerm = (DEBIAN / "sacctl.prerm").read_text()
    assert "rm " not in prerm


def test_purge_without_a_user_removes_nobody_elses_memory(tmp_path: Path) -> None:
    """The script as dpkg runs it, with commands that only say what they would do."""
    for name, text in {
        "id": "exit 1",
        "rm": 'echo "rm $*"',
        "systemctl": "exit 0",
        "deb-systemd-helper": "exit 0",
    }.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    script = (DEBIAN / "sacctl.postrm").read_text().replace("#DEBHELPER#", "")
    done = subprocess.run(
        ["/bin/sh", "-c", script, "postrm", "purge"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "/dev/shm" not in done.stdout
    assert "/etc/sac/pools.d" in done.stdout
    for action in ("remove", "upgrade", "abort-install"):
        done = subprocess.run(
            ["/bin/sh", "-c", script, "postrm", action],
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "", action
