# SPDX-License-Identifier: Apache-2.0
"""Daemon and clients are killed under a load that checks every byte (load.py).

After each kill: nothing committed is lost, no foreign byte is read, no pin, reservation or slot
stays behind, no reader waits longer than a second.

    SAC_KILLS=1000 pytest tests/system/test_daemon_kill.py     so many kills
    SAC_SOAK_SECONDS=600 pytest ... -k soak                    for so long
    SAC_TEST_SEED=7 pytest ...                                 other moments

At stop points it is native programs that are killed, of the build with stop points in which
SAC_KILL_CHILD lies.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from system import load
from system.daemon import Daemon, DaemonSaidError, folder
from system.daemon import daemon as a_daemon
from system.run import environment

from libsac import Pool, errors

KILLS = int(os.environ.get("SAC_KILLS", "100"))
SOAK = float(os.environ.get("SAC_SOAK_SECONDS", "6"))
BLOCKED = float(os.environ.get("SAC_BLOCKED_SECONDS", "1"))
BUILD = Path(os.environ.get("SAC_KILL_CHILD", "none")).parent
CHILD, DAEMON = BUILD / "kill_child", BUILD / "daemon_child"
has_stop_points = pytest.mark.skipif(
    not DAEMON.exists(), reason="SAC_KILL_CHILD names no build with stop points"
)
# Of a daemon: as it starts over living clients, and as it serves them.
STARTING = (
    "superblock.written",
    "server.roster_read",
    "server.adopting",
    "adopt.revoked",
    "adopt.end",
    "server.adopted",
)
SERVING = (
    "server.hello",
    "server.table_made",
    "roster.written",
    "server.attached",
    "server.before_reply",
    "reserve.begin",
    "reserve.granted",
    "reserve.end",
    "server.granted",
    "slab.assigned",
    "header.half",
    "server.commit",
    "commit.begin",
    "commit.header",
    "commit.end",
    "server.committed",
    "server.renew",
    "abort.ended",
    "server.detach",
    "detach.end",
    "server.detached",
    "server.client_gone",
    "server.session_closed",
    "evict.begin",
    "evict.marked",
    "evict.raised",
    "header.cleared",
    "evict.end",
)
CLIENT = (
    "client.reserve",
    "client.reserved",
    "put.written",
    "put.commit",
    "client.commit",
    "client.committed",
    "client.abort",
    "sequence.commit",
)
WORKERS = 3
BETWEEN = 12  # kills from one look at everything to the next


class Load:
    """The workers, and what they said."""

    def __init__(self, daemon: Daemon, seed: int) -> None:
        self.daemon = daemon
        self.next = seed % 1_000_000 * 1000
        self.folder = daemon.root / "ledgers"
        self.folder.mkdir(exist_ok=True)
        self.pids: list[int] = []
        self.seen: dict[str, int] = {}  # pages found, by namespace
        self.worst = 0.0
        command = [sys.executable, "-m", "system.load", daemon.socket, str(self.folder)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment()
        )

    def tell(self, *words: object) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline().split()
        assert said[:1] == ["ok"], said
        return said[1:]

    def spawn(self) -> None:
        self.next += 1
        self.pids.append(int(self.tell("spawn", self.next)[0]))

    def kill(self, which: int) -> None:
        # One that ended by itself has said why.
        assert self.tell("kill", self.pids.pop(which)) == ["-9"], self.faults()

    def stop(self) -> None:
        codes = self.tell("stop")
        assert set(codes) <= {"0"}, (codes, self.faults())
        self.pids.clear()

    def lines(self) -> Iterator[str]:
        for file in sorted(self.folder.iterdir()):
            # A kill may have cut the last line off.
            yield from file.read_text().split("\n")[:-1]

    def faults(self) -> str:
        text = "\n".join(file.read_text() for file in sorted(self.folder.iterdir()))
        return text[text.find("fault") :] if "fault" in text else ""

    def pages(self) -> list[tuple[int, int]]:
        """Chains that were acknowledged in the namespace from which nothing leaves."""
        said = [line.split() for line in self.lines()]
        return [(int(w[1]), int(w[2])) for w in said if w[0] == "page"]

    def slowest(self) -> float:
        """Of all reads, less what the machine kept their process from running."""
        said = [line.split() for line in self.lines()]
        return max((float(w[1]) - float(w[2]) for w in said if w[0] == "slowest"), default=0.0)

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


@contextmanager
def loaded(seed: int) -> Iterator[tuple[Daemon, Load]]:
    daemon = Daemon(folder())
    try:
        daemon.start()
        daemon.create(load.POOL, load.POOL_BYTES, 2)
        with daemon.connect(load.POOL) as pool:
            load.open_spaces(pool)
        work = Load(daemon, seed)
        try:
            yield daemon, work
        finally:
            work.close()
    finally:
        daemon.close()


def until_only(daemon: Daemon, clients: int) -> None:
    """The daemon learns of a process' end a moment later."""
    end = time.monotonic() + 10
    while (left := daemon.clients()).clients != clients:
        assert time.monotonic() < end, left
        time.sleep(0.005)


def capacity(pool: Pool, name: str) -> int:
    """How many pages can be reserved at once where nothing is stored."""
    ns = pool.namespace(name)
    ns.evict(1 << 30)
    low, high = 0, 1 << 14
    while low < high:
        middle = (low + high + 1) // 2
        keys = load.keys_of(2, middle, middle)
        try:
            ns.put(keys, first_tail=middle).close()
            low = middle
        except errors.NoSpaceError:
            high = middle - 1
    return low


def look(daemon: Daemon, work: Load, room: dict[str, int], blocked: float = BLOCKED) -> None:
    """All workers have ended: everything is as it must be, and is made empty."""
    work.stop()
    assert not work.faults()
    until_only(daemon, 0)
    work.worst = max(work.worst, work.slowest())
    assert work.slowest() < blocked
    with daemon.connect(load.POOL) as pool:
        for name in pool.namespaces():
            ns = pool.namespace(name)
            stats = ns.stats()
            work.seen[name] = work.seen.get(name, 0) + stats.pages
            assert (stats.reserved, stats.pinned, stats.quarantined) == (0, 0, 0), name
            checked, dropped = ns.verify()
            assert (checked, dropped) == (stats.pages + stats.tails, 0)
        kept = pool.namespace(load.KEPT_NAME)
        for chain, pages in work.pages():
            keys = load.keys_of(1, chain, pages)
            with kept.pin(keys) as prefix:
                assert prefix.pages == pages, (chain, pages)
                load.check(prefix, keys, pages)
        kept.evict(1 << 30)
        assert kept.stats().pages == 0
        for name in (load.CROWDED, "tokens"):
            if name in pool.namespaces():
                found = capacity(pool, name) if name == load.CROWDED else 0
                assert room.setdefault(name, found) == found
    until_only(daemon, 0)
    shutil.rmtree(work.folder)
    work.folder.mkdir()


def run(seed: int, kills: int, seconds: float) -> None:
    """So many kills, or as many as there are in so many seconds."""
    rng = random.Random(seed)
    room: dict[str, int] = {}
    end = time.monotonic() + seconds if seconds else float("inf")
    done = 0
    with loaded(seed) as (daemon, work):
        while done < kills and time.monotonic() < end:
            while len(work.pids) < WORKERS:
                work.spawn()
            for _ in range(min(BETWEEN, kills - done)):
                time.sleep(rng.uniform(0.005, 0.15))
                if rng.random() < 0.6:
                    daemon.restart(kill=rng.random() < 0.9)
                else:
                    work.kill(rng.randrange(len(work.pids)))
                    work.spawn()
                done += 1
            time.sleep(0.05)
            look(daemon, work, room)
        print(f"{done} kills; pages found: {work.seen}; slowest read {work.worst:.3f} s")
        assert all(work.seen.values())


@pytest.mark.timeout(KILLS + 200)
def test_kills(seed: int) -> None:
    run(seed, KILLS, 0)


@pytest.mark.timeout(SOAK + 120)
def test_soak(seed: int) -> None:
    run(seed, 1 << 30, SOAK)


def test_many_clients(seed: int) -> None:
    """64 processes at once, more than the machine has cores by far; the daemon is replaced."""
    with loaded(seed) as (daemon, work):
        for _ in range(64):
            work.spawn()
        end = time.monotonic() + 60
        while daemon.clients().tables < 64 * 2:
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(1)
        daemon.restart(kill=True)
        time.sleep(1)
        look(daemon, work, {}, blocked=30)
        assert all(work.seen.values())


@has_stop_points
@pytest.mark.timeout(600)
def test_the_daemon_at_its_stop_points(seed: int) -> None:
    rng = random.Random(seed)
    room: dict[str, int] = {}
    reached: set[str] = set()
    points = [(point, n) for point in STARTING + SERVING for n in (1, rng.randint(2, 20))]
    rng.shuffle(points)
    with loaded(seed) as (daemon, work):
        for i, (point, n) in enumerate(points):
            while len(work.pids) < WORKERS:
                work.spawn()
            daemon.stop()
            try:
                daemon.start(SAC_DAEMON=str(DAEMON), SAC_STOP_AT=f"{point}:{n}")
            except DaemonSaidError:
                assert daemon.wait(10) == 9, point
                reached.add(point)
            else:
                work.kill(0)
                work.spawn()
                if daemon.wait(0.5) == 9:
                    reached.add(point)
                else:
                    daemon.kill()
            daemon.start()
            if i % BETWEEN == BETWEEN - 1 or i + 1 == len(points):
                look(daemon, work, room)
    print(f"not reached: {set(STARTING + SERVING) - reached}")
    assert len(reached) > 25


@has_stop_points
@pytest.mark.timeout(600)
def test_a_client_at_its_stop_points(seed: int) -> None:
    rng = random.Random(seed)

    def client(stop: str, pages: int) -> int:
        done = subprocess.run(
            [CHILD, "--connect", daemon.socket, str(rng.getrandbits(30)), str(pages)],
            env={**os.environ, "SAC_STOP_AT": stop},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        return done.returncode

    with a_daemon("doomed", 24 << 20) as daemon, daemon.connect() as pool:
        for point in CLIENT:
            for n in (1, 2, rng.randint(3, 40)):
                assert client(f"{point}:{n}", 2000) == -9, point
                until_only(daemon, 1)
                ns = pool.namespace("main")
                stats = ns.stats()
                assert (stats.pinned, stats.reserved, stats.quarantined) == (0, 0, 0), point
                assert ns.verify() == (stats.pages + stats.tails, 0)
                if "other" in pool.namespaces():
                    pool.drop("other")
                assert client("none:1", 20) == 0
                until_only(daemon, 1)
