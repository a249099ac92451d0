# SPDX-License-Identifier: Apache-2.0
"""Runs the real daemon in a folder of its own, for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libsac import Layout
from sacctl.daemon.link import Link
from sacctl.pool import superblock
from sacctl.pool.create import create
from sacctl.pool.record import Record, Records
from sacctl.pool.spec import Spec, parse_sizes

# Another user may not be able to run this interpreter, so the program changes to it itself.
MAIN = """
import os, sys
from sacctl.daemon.run import run
from sacctl.errors import CtlError
from sacctl.settings import load
user = int(os.environ.pop("TEST_USER", "-1"))
if user >= 0:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
try:
    sys.exit(run(load()))
except CtlError as error:
    sys.stderr.write(f"error: {error.sentence()}\\n")
    sys.exit(error.exit_code)
"""
PATIENCE = 30.0
LAYOUT = Layout.preset("deepseek-v3.2-fp8", layers=1, page_tokens=64).to_dict()


def open_files(pid: int) -> int:
    """How many a process has."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


class Place:
    """A folder with settings, records and pool files, and the daemon that runs in it.

    settings: lines for the settings file, "section.key = value" in TOML.
    """

    def __init__(self, folder: Path, settings: Sequence[str] = ()) -> None:
        self.folder = folder
        self.socket = folder / "run" / "sacd.sock"
        self.records = Records(folder / "pools.d")
        self.records.folder.mkdir(exist_ok=True)
        self.config = folder / "sac.toml"
        self.write(settings)
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(folder / "notify"))

    def write(self, settings: Sequence[str]) -> None:
        lines = [
            f"daemon.run_dir = '{self.folder}/run'",
            f"pools.dir = '{self.records.folder}'",
        ]
        self.config.write_text("\n".join([*lines, *settings]) + "\n")

    def env(self, **more: str) -> dict[str, str]:
        return os.environ | {
            "SAC_CONFIG": str(self.config),
            "SAC_SOCKET": str(self.socket),
            "NOTIFY_SOCKET": str(self.folder / "notify"),
        } | more  # fmt: skip

    # ------------------------------------------------------------------------- daemon

    def start(
        self, wait: bool = True, user: int | None = None, **more: str
    ) -> subprocess.Popen[bytes]:
        """The process, of this user; with wait it has said READY. more: its environment."""
        self.drain()
        self.process = self.spawn(user, **more)
        if wait:
            self.expect("READY=1")
        return self.process

    def spawn(self, user: int | None = None, **more: str) -> subprocess.Popen[bytes]:
        if user is not None:
            more["TEST_USER"] = str(user)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-c", MAIN], env=self.env(**more), stderr=log, stdout=log
            )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal and waits for the end; the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.process = None
        return code

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.notify.close()

    def expect(self, field: str) -> dict[str, str]:
        """Waits for the notification that has this field; all its fields."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.notify.settimeout(0.2)
            try:
                text = self.notify.recv(65536).decode()
            except TimeoutError:
                if self.process is not None and self.process.poll() is not None:
                    break
                continue
            if field in text.split("\n"):
                return dict(line.split("=", 1) for line in text.split("\n"))
        raise AssertionError(f"no {field}; the log:\n{self.log.read_text()}")

    def drain(self) -> None:
        self.notify.setblocking(False)
        try:
            while True:
                self.notify.recv(65536)
        except BlockingIOError:
            pass

    # -------------------------------------------------------------------------- asking

    def link(self, timeout: float = 30.0) -> Link:
        return Link(self.socket, timeout=timeout)

    def ask(self, op: str, **args: Any) -> dict[str, Any]:
        with self.link() as link:
            return link.call(op, **args)

    def make_pool(
        self,
        name: str = "kv",
        size: str = "64M",
        link: Link | None = None,
        records: Records | None = None,
    ) -> Record:
        """A pool in this folder; handed to the daemon behind link. records: of another."""
        spec = Spec(name, parse_sizes(size), path=str(self.folder / name))
        return create(spec, records or self.records, daemon=link).record


def clean(place: Place, name: str = "kv") -> bool:
    """Whether the pool was closed by its last owner."""
    found = superblock.read_file(place.records.get(name).meta)
    assert found is not None
    return found.clean
