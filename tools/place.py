# SPDX-License-Identifier: Apache-2.0
"""Places the system's part below a folder: ``make install DESTDIR=...`` and the Debian package.

The product lies in a private virtual environment, PREFIX/lib/sac, beside which nothing of the
system's Python changes; units, udev rules, users, man pages and completions where their
programs look for them. docs/install.md has the list. Nothing is started or enabled.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHELLS = {
    "bash": "share/bash-completion/completions/sacctl",
    "zsh": "share/zsh/vendor-completions/_sacctl",
    "fish": "share/fish/vendor_completions.d/sacctl.fish",
}
HOMES = ("/root", "/home", "/run/user")  # what ProtectHome= hides
UNITS = ("*.service", "*.socket", "*.timer")
NEXT = (
    "systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload && "
    "udevadm control --reload && "
    "systemctl enable --now sacd.socket sacd sac-pools sac-monitor sac-health.timer"
)
# The daemon's Python sees neither variables nor folders of whoever starts it.
LAUNCHER = """\
#!{python} -I
# SPDX-License-Identifier: Apache-2.0
import sys

from sacctl.cli import main

sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Target:
    """Where all goes.

    Attributes:
        destdir: the folder that stands for / ("/" for the running system).
        prefix: "/usr" or "/usr/local", without destdir.
        python: the interpreter that the product was built for, as it is on the target.
        system_packages: whether the distribution's Python packages are used, too.
    """

    destdir: Path
    prefix: Path
    python: Path
    system_packages: bool

    def real(self, path: Path) -> Path:
        """Where a path of the target lies now."""
        return self.destdir / path.relative_to("/")

    @property
    def home(self) -> Path:
        """The virtual environment."""
        return self.prefix / "lib" / "sac"

    @property
    def site(self) -> Path:
        version = "{}.{}".format(*sys.version_info[:2])
        return self.home / "lib" / f"python{version}" / "site-packages"


def main(arguments: Sequence[str] | None = None) -> int:
    """Places everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--destdir", type=Path, default=Path("/"))
    parser.add_argument("--prefix", type=Path, default=Path("/usr"))
    parser.add_argument("--python", type=Path, help="on the target; this one is the default")
    parser.add_argument("--system-packages", action="store_true")
    parser.add_argument("wheels", nargs="+", help="the product's wheel, and what goes with it")
    parser.add_argument("--no-deps", action="store_true", help="what was named and no more")
    given = parser.parse_args(arguments)
    if not given.prefix.is_absolute():
        parser.error("--prefix begins with /")
    # Not sys.executable: that is the virtual environment that this runs in.
    python = given.python or Path(os.path.realpath(sys.executable))
    target = Target(given.destdir.absolute(), given.prefix, python, bool(given.system_packages))
    product(target, given.wheels, no_deps=given.no_deps)
    system_files(target)
    pages(target)
    completions(target)
    if note := out_of_reach(target):
        print(f"warning: {note}", file=sys.stderr)
    if target.destdir == Path("/"):
        print(f"next, as root: {NEXT}")
    else:
        print(
            f"{target.real(target.prefix / 'bin' / 'sacctl')} runs once it is at "
            f"{target.prefix}/bin/sacctl, not where it is now"
        )
    return 0


def out_of_reach(target: Target) -> str:
    """Why the units cannot run the target's Python; "" where they can."""
    if not any(target.python.is_relative_to(home) for home in HOMES):
        return ""
    return (
        f"{target.python} is in a home folder, which the units do not see (ProtectHome=yes, "
        "user sac): the daemon will not start. Choose another, such as "
        "PYTHON=/usr/bin/python3, after make clean"
    )


def product(target: Target, wheels: Sequence[str], *, no_deps: bool) -> None:
    """The virtual environment, made anew, and the command beside it."""
    home = target.real(target.home)
    shutil.rmtree(home, ignore_errors=True)
    (home / "bin").mkdir(parents=True)
    # What python -m venv writes: all of it is two links and this file, and so it can be made
    # for a place where it is not yet.
    (home / "bin" / "python3").symlink_to(target.python)
    wants = "true" if target.system_packages else "false"
    (home / "pyvenv.cfg").write_text(
        f"home = {target.python.parent}\ninclude-system-site-packages = {wants}\n"
        f"version = {'.'.join(map(str, sys.version_info[:3]))}\n"
    )
    site = target.real(target.site)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    command += ["--no-compile", "--no-warn-script-location", "--target", str(site)]
    # A target folder is no environment that a distribution looks after.
    command += ["--break-system-packages", "--root-user-action=ignore"]
    command += ["--no-deps"] if no_deps else []
    subprocess.run([*command, *wheels], check=True)
    shutil.rmtree(site / "bin", ignore_errors=True)  # scripts for pip's own Python
    for file in site.glob("*.dist-info/direct_url.json"):
        file.unlink()  # where it was built
    launcher = target.real(target.prefix / "bin" / "sacctl")
    launcher.parent.mkdir(parents=True, exist_ok=True)
    put(launcher, LAUNCHER.format(python=target.home / "bin" / "python3"), 0o755)


def system_files(target: Target, etc: Path = Path("/etc")) -> None:
    """Units, udev rules, users, folders, and the settings with comments."""
    lib = target.prefix / "lib"
    for file, folder in _sources():
        text = file.read_text().replace("/usr/bin/", f"{target.prefix}/bin/")
        put(target.real(lib / folder / file.name), text, 0o644)
    settings = target.real(etc / "sac" / "sac.toml")
    if not settings.exists():
        put(settings, (ROOT / "packaging" / "sac.toml").read_text(), 0o644)
    records = target.real(etc / "sac" / "pools.d")
    records.mkdir(mode=0o755, parents=True, exist_ok=True)


def _sources() -> Iterator[tuple[Path, str]]:
    systemd = ROOT / "systemd"
    for pattern in UNITS:
        for file in sorted(systemd.glob(pattern)):
            yield file, "systemd/system"
    yield systemd / "sysusers.d" / "sac.conf", "sysusers.d"
    yield systemd / "tmpfiles.d" / "sac.conf", "tmpfiles.d"
    for file in sorted((ROOT / "udev").glob("*.rules")):
        yield file, "udev/rules.d"


def pages(target: Target) -> None:
    """The man pages."""
    for page in sorted((ROOT / "docs" / "man").glob("*.1")):
        place = target.real(target.prefix / "share" / "man" / "man1" / page.name)
        put(place, page.read_text(), 0o644)


def completions(target: Target) -> None:
    """What the shells need, as the command that was just placed says it."""
    env = os.environ | {"PYTHONPATH": str(target.real(target.site)), "PYTHONSAFEPATH": "1"}
    for shell, place in SHELLS.items():
        words = [sys.executable, "-s", "-B", "-m", "sacctl", "completion", shell]
        done = subprocess.run(words, env=env, check=True, stdout=subprocess.PIPE, text=True)
        put(target.real(target.prefix / place), done.stdout, 0o644)


def put(path: Path, text: str, mode: int) -> None:
    """Writes a file, whole or not at all: a unit may be started meanwhile."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main())
