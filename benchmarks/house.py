# SPDX-License-Identifier: Apache-2.0
"""A daemon of one's own for a benchmark: settings, run directory and pools in one folder."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import libsac
from libsac.closing import Closing

START_S = 120.0
STOP_S = 30.0


@contextmanager
def shm() -> Iterator[Path]:
    """A folder on /dev/shm, removed at the end."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="sac-bench-") as folder:
        yield Path(folder)


def pool_size(data: int) -> int:
    """Bytes of a pool that holds so much in one or two namespaces."""
    return (data + data // 32 + (64 << 20)) >> 21 << 21


class House(Closing):
    """A daemon that serves pools whose files lie in ``folder`` (on /dev/shm, for memory).

    A context manager: leaving it stops the daemon and removes the folder, which must not have
    been there. Raises RuntimeError with the daemon's last words where it does not start.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "run" / "sacd.sock"
        self.started_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "daemon.log"
        folder.mkdir(mode=0o700, parents=True)
        config = folder / "sac.toml"
        config.write_text(
            f'[daemon]\nrun_dir = "{folder / "run"}"\nsocket = "{self.socket}"\n'
            f'[pools]\ndir = "{folder / "pools.d"}"\n[log]\nformat = "text"\n'
        )
        self._env = {
            **os.environ,
            "SAC_CONFIG": str(config),
            "SAC_SOCKET": str(self.socket),
            "PYTHONSAFEPATH": "1",
        }

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stops the daemon, if it runs, and removes the folder."""
        try:
            if self._process is not None:
                self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def ctl(self, *words: str) -> str:
        """Runs sacctl against this daemon; what it prints. Raises RuntimeError."""
        command = [sys.executable, "-m", "sacctl", *words]
        done = subprocess.run(
            command, env=self._env, cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"sacctl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def pool(self, name: str, sizes: list[int]) -> None:
        """Creates an emulated pool with an extent a size; sizes are alike."""
        spec = f"{len(sizes)}x{sizes[0]}"
        self.ctl("pool", "create", name, "--emulate", spec, "--path", str(self.folder / name))

    def destroy(self, name: str) -> None:
        self.ctl("pool", "destroy", name, "--yes")

    def connect(self, pool: str) -> libsac.Pool:
        return libsac.connect(pool, socket=str(self.socket))

    def start(self) -> float:
        """Starts the daemon; seconds until it said that it is ready (also in started_s)."""
        ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ready, self._log.open("ab") as log:
            name = "\0" + f"sac-benchmarks-{os.getpid()}-{time.monotonic_ns()}"
            ready.bind(name)
            begin = time.perf_counter()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sacctl", "daemon", "run"],
                env=self._env | {"NOTIFY_SOCKET": "@" + name[1:]},
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
            watch, told = os.pidfd_open(self._process.pid), ready.fileno()
            try:
                while True:
                    left = begin + START_S - time.perf_counter()
                    found, _, _ = select.select([told, watch], [], [], max(left, 0.0))
                    if told in found and b"READY=1" in ready.recv(4096).split(b"\n"):
                        break
                    if watch in found or not found:
                        raise RuntimeError(f"the daemon did not start: {self._last_words()}")
            finally:
                os.close(watch)
            self.started_s = time.perf_counter() - begin
        return self.started_s

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:].strip() or "it said nothing"

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends the daemon and waits for it; kills it where it does not go."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the daemon did not stop: {self._last_words()}") from None
