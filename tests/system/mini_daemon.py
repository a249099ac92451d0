# SPDX-License-Identifier: Apache-2.0
"""A daemon for tests: libsac.server over pool files in one directory, and nothing else.

The process that is started keeps the modules loaded and forks one daemon after the other, so
that a test can kill one and have the next within milliseconds. Lines on stdin, one answer each:

    start KEY=VALUE ...            forks a daemon; the words go into its environment, and
                                   SAC_DAEMON=PATH is a program that is run in its place
    create NAME BYTES EXTENTS      makes a pool's files and serves it
    remove NAME                    serves it no more, and removes its files
    extend NAME BYTES              adds a data file
    resize NAME NAMESPACE BYTES    changes a quota
    evict PID                      evicts the clients of a process
    clients                        how many clients there are, tables, pins, reservations
    stop                           ends the daemon as an administrator would
    kill                           SIGKILL to it
    wait SECONDS                   until it has died by itself; the signal, 0: it lives

Answers are ``ok ...`` or ``error TEXT``.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

from libsac import errors
from libsac.server import Extent, Server, SharedPool, open_pool

MIB = 1 << 20
SLAB = 2 * MIB


def answer(text: str) -> None:
    os.write(1, (text.replace("\n", " ") + "\n").encode())


def data_sizes(size: int, extents: int) -> list[int]:
    """Bytes of each data file, so that namespaces can be given size bytes."""
    slabs = -(-size // SLAB)
    return [(slabs // extents + (i < slabs % extents) + 1) * SLAB for i in range(extents)]


class Daemon:
    """One daemon's life, in a process of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        run = root / "run"
        run.mkdir(mode=0o700, exist_ok=True)
        self.server = Server(run, root / "sock", socket_mode=0o666)
        self.pools: dict[str, SharedPool] = {}
        for folder in sorted((root / "pools").iterdir()):
            self.open(folder.name, create=False)
        self.server.serve()

    def open(self, name: str, *, create: bool) -> None:
        folder = self.root / "pools" / name
        count = len(list(folder.glob("data.*")))
        paths = [folder / "meta", *(folder / f"data.{i}" for i in range(count))]
        fds = [os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in paths]
        try:
            extents = [Extent(*pair) for pair in zip(fds, map(str, paths), strict=True)]
            pool = open_pool(extents[0], extents[1:], create=create)
        finally:
            for fd in fds:
                os.close(fd)
        self.server.add_pool(name, pool)
        self.pools[name] = pool

    def create(self, name: str, size: int, extents: int) -> None:
        folder = self.root / "pools" / name
        folder.mkdir(mode=0o700)
        sizes = data_sizes(size, extents)
        files = {f"data.{i}": n for i, n in enumerate(sizes)}
        files["meta"] = (sum(sizes) // 32 + 17 * MIB) // 65536 * 65536
        for file, n in files.items():
            with (folder / file).open("wb") as new:
                new.truncate(n)
        self.open(name, create=True)

    def remove(self, name: str) -> None:
        self.server.remove_pool(name)
        self.pools.pop(name).close()
        shutil.rmtree(self.root / "pools" / name)

    def extend(self, name: str, size: int) -> None:
        folder = self.root / "pools" / name
        path = folder / f"data.{len(list(folder.glob('data.*')))}"
        with path.open("w+b") as new:
            new.truncate(data_sizes(size, 1)[0])
            self.pools[name].extend(Extent(new.fileno(), str(path)))

    def evict(self, pid: int) -> None:
        for client in self.server.clients():
            if client.pid == pid:
                self.server.evict(client.id)

    def clients(self) -> str:
        tables = self.server.tables()
        return (
            f"{len(self.server.clients())} {len(tables)} {sum(t.pinned for t in tables)} "
            f"{sum(t.reservations for t in tables)}"
        )

    def do(self, words: list[str]) -> str:
        if words[0] == "create":
            self.create(words[1], int(words[2]), int(words[3]))
        elif words[0] == "remove":
            self.remove(words[1])
        elif words[0] == "extend":
            self.extend(words[1], int(words[2]))
        elif words[0] == "resize":
            self.pools[words[1]].resize(words[2], int(words[3]))
        elif words[0] == "lose":
            return str(self.pools[words[1]].lose(int(words[2])))
        elif words[0] == "evict":
            self.evict(int(words[1]))
        elif words[0] == "clients":
            return self.clients()
        else:
            raise ValueError(f"what is {words[0]}?")
        return ""

    def run(self, commands: int) -> None:
        with os.fdopen(commands) as lines:
            for line in lines:
                try:
                    answer("ok " + self.do(line.split()))
                except (errors.SacError, OSError, ValueError) as error:
                    answer(f"error {type(error).__name__}: {error}")
        self.server.stop()
        self.server.close()
        for pool in self.pools.values():
            pool.close()


def serve(root: Path, commands: int, environment: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(word.partition("=")[::2] for word in environment)
    program = os.environ.get("SAC_DAEMON")
    if program:
        os.dup2(commands, 0)
        os.execv(program, [program, str(root)])
    daemon = Daemon(root)
    answer(f"ok {os.getpid()}")
    daemon.run(commands)


class Nursery:
    """Forks the daemons, and passes on what is said to them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pid = 0
        self.commands = -1
        self.answers: TextIO | None = None

    def start(self, environment: list[str]) -> str:
        (read, self.commands), (said, write) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.commands)
            os.close(said)
            os.dup2(write, 1)
            os.close(write)
            status = 1
            try:
                serve(self.root, read, environment)
                status = 0
            except BaseException as error:
                answer(f"error {type(error).__name__}: {error}")
            os._exit(status)
        os.close(read)
        os.close(write)
        self.answers = os.fdopen(said)
        return self.listen()

    def listen(self) -> str:
        assert self.answers is not None
        return self.answers.readline().strip() or "error: it has ended"

    def tell(self, line: str) -> str:
        try:
            os.write(self.commands, line.encode())
        except OSError as error:
            return f"error: {error}"
        return self.listen()

    def end(self, number: int, seconds: float = 60) -> str:
        """Waits for the daemon, after a signal where number is one; what ended it."""
        if not self.pid:
            return "ok 0"
        if number > 0:
            os.kill(self.pid, number)
        if number == 0:
            os.close(self.commands)
        end = time.monotonic() + seconds
        while (state := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > end:
                return "ok 0"
            time.sleep(0.0005)
        if number != 0:
            os.close(self.commands)
        if self.answers is not None:
            self.answers.close()
        self.pid, self.commands, self.answers = 0, -1, None
        return f"ok {-os.waitstatus_to_exitcode(state[1])}"

    def run(self) -> None:
        for line in sys.stdin:
            words = line.split()
            if words[0] == "start":
                answer(self.start(words[1:]))
            elif words[0] == "stop":
                answer(self.end(0))
            elif words[0] == "kill":
                answer(self.end(signal.SIGKILL))
            elif words[0] == "wait":
                answer(self.end(-1, float(words[1])))
            else:
                answer(self.tell(line))
        self.end(signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    Nursery(Path(sys.argv[1])).run()
