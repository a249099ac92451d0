# SPDX-License-Identifier: Apache-2.0
"""What the scenarios of units and of the package share: users, the daemon, a client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from vm.guest.kit import equal, sacctl, sh, until

__all__ = [
    "CLIENT",
    "Client",
    "ask_as",
    "daemon_pid",
    "devices_of_pool",
    "engine",
    "pool_state",
    "property_of",
    "system_files",
    "wait_for_daemon",
]

PAYLOAD = Path("/payload")
CLIENT = "/payload/tests/vm/guest/engine.py"
PYTHON = "/usr/bin/python3"


def system_files() -> None:
    """Units, users and rules as an installation places them; sacctl is the payload's."""
    lib = Path("/usr/lib")
    for unit in (PAYLOAD / "systemd").glob("sac*.*"):
        shutil.copy(unit, lib / "systemd/system" / unit.name)
    for kind in ("sysusers.d", "tmpfiles.d"):
        shutil.copy(PAYLOAD / "systemd" / kind / "sac.conf", lib / kind / "sac.conf")
    for rules in (PAYLOAD / "udev").glob("*.rules"):
        shutil.copy(rules, lib / "udev/rules.d" / rules.name)
    shutil.copy("/usr/local/bin/sacctl", "/usr/bin/sacctl")
    sh("systemd-sysusers", "sac.conf")
    sh("systemd-tmpfiles", "--create", "sac.conf")
    sh("systemctl", "daemon-reload")
    sh("udevadm", "control", "--reload")


def engine(name: str, *groups: str) -> None:
    """A user that is no administrator."""
    more = ("--groups", ",".join(groups)) if groups else ()
    sh("useradd", "--no-create-home", *more, name)


def property_of(unit: str, name: str) -> str:
    return sh("systemctl", "show", unit, "--value", "--property", name).out.strip()


def daemon_pid() -> int:
    return int(property_of("sacd.service", "MainPID"))


def wait_for_daemon(after: int = 0, seconds: float = 180) -> int:
    """The process of a daemon that serves, other than the one before."""

    def found() -> int:
        pid = daemon_pid()
        active = property_of("sacd.service", "ActiveState") == "active"
        return pid if active and pid not in (0, after) else 0

    return until("a daemon that serves", found, seconds)


def pool_state(name: str) -> str:
    """ "serving", "lost", ...; "" where the daemon does not know it."""
    for pool in sacctl("pool", "list", "-o", "json").json["pools"]:
        if pool["name"] == name:
            return str(pool["state"])
    return ""


def ask_as(user: str, *words: str, code: int = 0) -> str:
    return sh("runuser", "-u", user, "--", *words, code=code, limit=90).out


def devices_of_pool() -> list[Path]:
    """/dev/dax* that the daemon's group may open."""
    return [p for p in sorted(Path("/dev").glob("dax*")) if p.group() == "sac"]


class Client:
    """An engine's process that writes a page, holds a pin, and reads it over and over.

    python: the interpreter that has libsac.
    """

    def __init__(self, user: str, python: str = PYTHON) -> None:
        self._out = Path(f"/run/engine-{user}-{os.getpid()}-{time.monotonic_ns()}")
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(
                ["runuser", "-u", user, "--", python, "-u", CLIENT],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        until("the client's first round", lambda: self.rounds() > 0, 180)

    def said(self) -> list[dict[str, Any]]:
        lines = self._out.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def rounds(self) -> int:
        assert self._process.poll() is None, self._out.read_text(errors="replace")
        return sum("round" in line for line in self.said())

    def goes_on(self, seconds: float = 90) -> None:
        """Waits for two rounds that begin after now; every one so far was as it must be."""
        have = self.rounds()
        until("the client to go on", lambda: self.rounds() >= have + 2, seconds)
        equal([line for line in self.said() if "error" in line], [], "the client's errors")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)
