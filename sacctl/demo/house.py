# SPDX-License-Identifier: Apache-2.0
"""A daemon of a demonstration's own: settings, socket and records in one temporary folder,
its pool in another, and nothing of it left at the end."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn, Self

from sacctl.daemon.link import Link
from sacctl.errors import CtlError, NotFoundError
from sacctl.pool.create import create
from sacctl.pool.destroy import destroy
from sacctl.pool.record import Records
from sacctl.pool.spec import SLAB, Spec, round_up

__all__ = ["POOL", "House", "ending_signals", "undisturbed"]

POOL = "demo"
SHM = Path("/dev/shm")
START = 60.0  # seconds: on a busy machine Python alone takes some
STOP = 15.0
PARTS = 10.0  # seconds that a part has to end after Ctrl-C


@contextmanager
def ending_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that it cleans up."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    with _handlers((signal.SIGTERM, signal.SIGHUP), end):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that would end the block end it when it is through: else a process just started
    would be nobody's, or a second Ctrl-C would leave half of all behind."""
    came: list[int] = []
    with _handlers((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda n, _: came.append(n)):
        yield
    for number in came[:1]:
        handler = signal.getsignal(number)
        if callable(handler):
            handler(number, None)


@contextmanager
def _handlers(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """What is ignored, as under nohup, stays so."""
    before = {n: signal.getsignal(n) for n in numbers}
    for number, old in before.items():
        if old is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class House:
    """A running daemon with one pool, POOL. A context manager; leaving it removes all.

    size: bytes that the pool's namespaces can be given, over extents files. Raises CtlError
    where the daemon does not start or the pool finds no room.

    Attributes:
        socket: of the daemon. where: folder of the pool's files.
    """

    def __init__(self, size: int, extents: int = 2) -> None:
        share = round_up(-(-size // extents), SLAB)
        self._sizes = (share,) * extents
        self._daemon: subprocess.Popen[bytes] | None = None
        self._memory: Path | None = None
        try:
            with undisturbed():
                self._root = Path(tempfile.mkdtemp(prefix="sac-demo-"))
        except (KeyboardInterrupt, SystemExit):
            self._root.rmdir()
            raise
        self.where = self._root / "pool"
        self.socket = self._root / "run" / "sacd.sock"
        self._records = Records(self._root / "pools.d")

    def __enter__(self) -> Self:
        try:
            config = self._root / "sac.toml"
            config.write_text(
                f'[daemon]\nrun_dir = "{self.socket.parent}"\nsocket = "{self.socket}"\n'
                f'[pools]\ndir = "{self._records.folder}"\n'
                '[log]\nlevel = "warning"\nformat = "text"\n'
            )
            self._command = [sys.executable, "-P", "-m", "sacctl", "--config", str(config)]
            self.start()
            self._create()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    @property
    def pid(self) -> int:
        """Of the daemon."""
        return self._daemon.pid if self._daemon else 0

    def start(self) -> float:
        """Starts the daemon; returns the seconds until it answered."""
        begin = time.monotonic()
        with (self._root / "log").open("ab") as log, undisturbed():
            # A session of its own: Ctrl-C is for this process, which then ends the daemon.
            self._daemon = subprocess.Popen(
                [*self._command, "daemon", "run"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while True:
            with suppress(NotFoundError), Link(self.socket, timeout=START):
                return time.monotonic() - begin
            if self._daemon.poll() is not None or time.monotonic() > begin + START:
                said = (self._root / "log").read_text(errors="replace").strip()
                raise CtlError(f"the daemon did not start: {said[-500:] or 'it said nothing'}")
            time.sleep(0.01)

    def kill(self) -> None:
        """Kills the daemon as a fault would (SIGKILL)."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()

    def part(self, module: str, *words: object) -> int:
        """Runs ``python -m module words`` with this daemon's socket in its environment; its
        exit code."""
        return self._run(module, words, None)[0]

    def ask(self, module: str, *words: object) -> tuple[int, str]:
        """As part, with what it wrote on stdout."""
        return self._run(module, words, subprocess.PIPE)

    def _run(self, module: str, words: Sequence[object], stdout: int | None) -> tuple[int, str]:
        command = [sys.executable, "-P", "-m", module, *map(str, words)]
        sys.stdout.flush()
        environment = {**os.environ, "SAC_SOCKET": str(self.socket)}
        process: subprocess.Popen[str] | None = None
        try:
            with undisturbed():
                process = subprocess.Popen(command, env=environment, stdout=stdout, text=True)
            text, _ = process.communicate()
            return process.returncode, text or ""
        except BaseException:
            if process is not None:
                _end(process)
            raise

    def _create(self) -> None:
        """Makes the pool in memory, or where there is not enough, on disk."""
        with Link(self.socket) as link:
            if SHM.is_dir() and os.access(SHM, os.W_OK):
                with undisturbed():
                    self._memory = Path(tempfile.mkdtemp(prefix="sac-demo-", dir=SHM))
                self.where = self._memory / "pool"
                try:
                    self._create_in(link)
                    return
                except CtlError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
            self.where = self._root / "pool"
            self._create_in(link)

    def _create_in(self, link: Link) -> None:
        spec = Spec(POOL, self._sizes, path=str(self.where))
        create(spec, self._records, daemon=link)

    def _remove(self) -> None:
        with undisturbed():
            try:
                self._stop()
                with suppress(NotFoundError):
                    destroy(POOL, self._records)
            finally:
                for folder in (self._memory, self._root):
                    if folder is not None:
                        shutil.rmtree(folder, ignore_errors=True)

    def _stop(self) -> None:
        if self._daemon is None:
            return
        if self._daemon.poll() is None:
            self._daemon.terminate()
            try:
                self._daemon.wait(STOP)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
        self._daemon.wait()


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a part. Ctrl-C went to it as well; other signals came to this process alone."""
    with undisturbed():
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PARTS)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
