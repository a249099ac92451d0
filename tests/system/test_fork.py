# SPDX-License-Identifier: Apache-2.0
"""fork(): the child gets a clear error from its parent's handles and may open anew."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from conformance.content import RICH, check, check_stored, put
from system.run import line, python, started

import libsac
from libsac import errors


def in_child(work: Callable[[], object]) -> str:
    """What work returns, as text, from a forked child that ends without clearing up."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        signal.alarm(60)
        try:
            text = repr(work())
        except BaseException:
            text = traceback.format_exc()
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text


def failure(call: Callable[[], object]) -> str:
    try:
        call()
    except errors.SacError as error:
        return type(error).__name__ if "parent" in str(error) else str(error)
    return "nothing"


@pytest.mark.parametrize("on_disk", [False, True])
def test_handles_of_the_parent(on_disk: bool, tmp_path: Path) -> None:
    pool = libsac.embedded("16M", tmp_path / "pool" if on_disk else None)
    ns = pool.namespace("n", layout=RICH)
    keys = ns.keys(range(96))
    put(ns, keys)
    prefix, seq, batch = ns.pin(keys), ns.sequence(range(32)), ns.put(ns.keys(range(500, 532)))
    events = ns.events()

    def child() -> list[str]:
        calls: list[Callable[[], object]] = [
            lambda: pool.info,
            lambda: pool.namespaces(),
            lambda: pool.namespace("n"),
            lambda: pool.drop("n"),
            lambda: ns.lookup(keys),
            lambda: ns.longest(keys),
            lambda: ns.pin(keys),
            lambda: ns.put(keys),
            lambda: ns.sequence(),
            lambda: ns.stats(),
            lambda: ns.evict(1),
            lambda: ns.verify(),
            lambda: events.poll(),
            lambda: prefix.tokens,
            lambda: prefix.gather("latent", 0, [0]),
            lambda: prefix.view("latent", 0, 0),
            lambda: seq.extend([1]),
            lambda: seq.flush(),
            lambda: seq.tokens,
            lambda: batch.commit(),
            lambda: batch.view("latent", 0, 0),
        ]
        return sorted({failure(call) for call in calls})

    assert in_child(child) == "['ForkedError']"

    def ends() -> str:
        for handle in (prefix, seq, batch, pool):
            handle.close()
        return "ended"

    assert in_child(ends) == "'ended'"
    # Nothing of it reached the parent.
    stats = ns.stats()
    assert stats.pinned == 8
    assert stats.reserved == 4
    check(prefix, keys, RICH, 6)
    seq.extend([1])
    batch.close()
    prefix.close()
    check_stored(ns, keys)


def test_the_child_opens_anew(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    pool = libsac.embedded("16M", path)
    ns = pool.namespace("n", layout=RICH)
    keys = ns.keys(range(64))
    put(ns, keys)

    def own() -> str:
        mine = libsac.embedded("16M").namespace("n", layout=RICH)
        put(mine, mine.keys(range(64)))
        check_stored(mine, keys)
        try:
            libsac.embedded(None, path)
        except errors.BusyError as error:
            return "busy" if str(os.getppid()) in str(error) else str(error)
        return "open"

    assert in_child(own) == "'busy'"
    check_stored(ns, keys)
    pool.close()

    def again() -> str:
        with libsac.embedded(None, path) as opened:
            check_stored(opened.namespace("n"), keys)
            return f"incarnation {opened.info.incarnation}"

    assert in_child(again) == "'incarnation 2'"
    assert in_child(again) == "'incarnation 3'"


def test_a_living_child_keeps_no_lock(tmp_path: Path) -> None:
    """Neither when the parent closes the pool, nor when it is killed."""
    path = tmp_path / "pool"
    pool = libsac.embedded("16M", path)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    pool.close()
    with libsac.embedded(None, path) as again:
        assert again.info.incarnation == 2
    os.write(write, b"x")
    os.waitpid(pid, 0)
    os.close(read)
    os.close(write)
    with started("hold_and_fork", tmp_path / "second") as parent:
        child = int(line(parent)[1])
        try:
            parent.kill()
            parent.wait()
            os.kill(child, 0)  # it lives
            with libsac.embedded(None, tmp_path / "second") as pool:
                assert pool.info.recovered
                check_stored(pool.namespace("n"), pool.namespace("n").keys(range(64)))
        finally:
            os.kill(child, signal.SIGKILL)


FORK_WHILE_BUSY = """
import os, signal, sys, threading
import libsac, numpy as np
from conformance.content import RICH, put, check_stored
pool = libsac.embedded("16M")
ns = pool.namespace("n", layout=RICH)
keys = ns.keys(range(640))
put(ns, keys)
prefix = ns.pin(keys)
index = np.random.default_rng(0).integers(0, 640, 20000)
stop = threading.Event()
def read():
    while not stop.is_set():
        prefix.gather("latent", 1, index, threads=2)
def write():
    while not stop.is_set():
        put(ns, ns.keys(range(5000, 5320)))
        ns.evict(20)
        ns.stats()
threads = [threading.Thread(target=f, daemon=True) for f in (read, read, write)]
for t in threads: t.start()
for i in range(15):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            prefix.gather("latent", 1, index)
        except libsac.errors.ForkedError:
            prefix.close(); pool.close()
            mine = libsac.embedded("16M").namespace("n", layout=RICH)
            put(mine, mine.keys(range(160)))
            check_stored(mine, mine.keys(range(160)))
            with mine.pin(mine.keys(range(160))) as p:
                p.gather("latent", 1, index % 160, threads=2)
            sys.exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7, i
stop.set()
for t in threads: t.join()
check_stored(ns, keys)
print("done")
"""


def test_fork_while_threads_are_busy() -> None:
    assert python(FORK_WHILE_BUSY) == "done\n"
