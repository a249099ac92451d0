# SPDX-License-Identifier: Apache-2.0
"""Emulated pools on real memory: the command line, a daemon, clients, kills, other users."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from system.daemon_kit import Place

import libsac
from libsac import Layout, Plane
from sacctl import paths
from sacctl.daemon.link import Link
from sacctl.errors import CtlError, RefusedError
from sacctl.pool import mounts
from sacctl.pool.create import create
from sacctl.pool.destroy import destroy
from sacctl.pool.extend import extend, present
from sacctl.pool.opening import open_record
from sacctl.pool.spec import Spec, parse_sizes

M = 1 << 20
ROW = 4096
LAYOUT = Layout([Plane("k", range(16), ROW)], 16)  # a page has 1 MiB
NOBODY = 65534
BECOME = """
import ctypes, os, sys
import sacctl.daemon.log, sacctl.daemon.run, sacctl.pool.opening
user = int(sys.argv[1])
os.setgroups([]), os.setgid(user), os.setuid(user)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is this user's again
from sacctl.settings import load
sys.exit(sacctl.daemon.run.run(load()))
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path)
    with tempfile.TemporaryDirectory(prefix="sac-test-", dir="/dev/shm") as shm:
        monkeypatch.setattr(paths, "SHM", Path(shm))
        yield made
        made.close()


def sacctl(place: Place, *words: str, code: int = 0) -> Any:
    """What a command says as JSON; where code is not 0, on stderr as text."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sacctl", "-o", "json", *words],
        env=place.env(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def make(place: Place, size: str = "2x8M", **more: Any) -> Any:
    return create(Spec("kv", parse_sizes(size)), place.records, **more)


def put(space: libsac.Namespace, first: int, pages: int, **more: Any) -> libsac.Keys:
    """Pages that carry their number."""
    keys = space.keys(range((first + pages) * 16))[first:]
    with space.put(keys, **more) as writing:
        for number in writing.missing:
            page = first + int(number)
            at = list(writing.missing).index(number)
            for layer in range(16):
                writing.view("k", layer, at)[:] = (page + layer) % 251
    return keys


def check(prefix: libsac.Prefix) -> None:
    for page in range(prefix.pages):
        for layer in (0, 15):
            rows = prefix.gather("k", layer, np.arange(page * 16, page * 16 + 16))
            assert np.all(rows == (page + layer) % 251), page


def test_the_life_of_a_pool_on_the_command_line(place: Place, tmp_path: Path) -> None:
    where = str(tmp_path / "pool")
    steps = sacctl(place, "pool", "create", "p", "--emulate", "2x4M", "--path", where)
    assert steps["created"]
    assert not steps["served"]
    assert sorted(os.listdir(where)) == ["data.0", "data.1", "meta"]  # noqa: PTH208
    again = sacctl(place, "pool", "create", "p", "--emulate", "2x4M", "--path", where)
    assert not again["created"]
    said = sacctl(place, "pool", "create", "p", "--emulate", "8M", "--path", where, code=1)
    assert "it has 2x4M, asked is 1x8M" in said
    sacctl(place, "pool", "extend", "p", "--emulate", "4M")
    assert [p["name"] for p in sacctl(place, "pool", "list")["pools"]] == ["p"]
    with libsac.embedded(path=where) as pool:  # the same files, without a daemon
        assert pool.info.data_bytes == 12 * M
        assert "in use" in sacctl(place, "pool", "destroy", "p", "--yes", code=6)
    sacctl(place, "pool", "destroy", "p", "--yes")
    assert not Path(where).exists()
    assert sacctl(place, "pool", "list")["pools"] == []
    assert "no pool 'p'" in sacctl(place, "pool", "destroy", "p", "--yes", code=3)


def test_pages_outlive_the_daemon(place: Place) -> None:
    place.start()
    with Link(place.socket) as link:
        assert make(place, daemon=link).served
    with libsac.connect("kv", socket=place.socket) as pool:
        space = pool.namespace("n", LAYOUT)
        keys = put(space, 0, 6)
        with space.pin(keys) as before:
            place.stop(signal.SIGKILL)
            place.start()
            check(before)
            assert space.longest(keys) == 6
        put(space, 6, 2)
    with libsac.connect("kv", socket=place.socket) as pool:
        space = pool.namespace("n")
        with space.pin(space.keys(range(8 * 16))) as prefix:
            assert prefix.pages == 8
            check(prefix)


def destroy_soon(place: Place, link: Link) -> None:
    """The client has left when the daemon has seen it."""
    for _ in range(100):
        try:
            destroy("kv", place.records, daemon=link)
            return
        except RefusedError:
            time.sleep(0.05)


def test_extended_under_a_client_that_needs_it(place: Place) -> None:
    place.start()
    with Link(place.socket) as link:
        make(place, "8M", daemon=link)
        with libsac.connect("kv", socket=place.socket) as pool:
            space = pool.namespace("n", LAYOUT)
            with pytest.raises(libsac.errors.NoSpaceError):
                put(space, 0, 12)
            done = extend("kv", parse_sizes("2x8M"), place.records, daemon=link)
            assert done.served
            keys = put(space, 0, 12)
            with space.pin(keys) as prefix:
                assert prefix.pages == 12
                check(prefix)
            with pytest.raises(RefusedError):
                destroy("kv", place.records, daemon=link)
            assert place.records.get("kv").state == "ready"
            assert space.longest(keys) == 12
        destroy_soon(place, link)
        assert link.call("pool.list")["pools"] == []
    assert list(paths.SHM.iterdir()) == []


def killed(work: Callable[[], object], after: float) -> None:
    """Does work in a child that is killed after so many seconds, if it still runs."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_killed_at_random_moments(place: Place, seed: int) -> None:
    luck = random.Random(seed)
    for _ in range(12):
        killed(lambda: make(place), luck.uniform(0, 0.02))
        make(place)
        with open_record(place.records.get("kv")) as pool:
            keys = put(pool.namespace("n", LAYOUT), 0, 5)
        killed(lambda: extend("kv", (8 * M,), place.records), luck.uniform(0, 0.02))
        held = present(place.records.get("kv"))
        with open_record(place.records.get("kv")) as pool:
            assert pool.info.extents == len(held.data) in (2, 3)
            with pool.namespace("n").pin(keys) as prefix:
                assert prefix.pages == 5
                check(prefix)
        extend("kv", (8 * M,), place.records)
        killed(lambda: destroy("kv", place.records), luck.uniform(0, 0.02))
        if place.records.names():
            destroy("kv", place.records)
        assert list(paths.SHM.iterdir()) == []
        assert place.records.names() == []


def test_extending_killed_at_random_moments_under_a_daemon(place: Place, seed: int) -> None:
    luck = random.Random(seed)

    def lengthen() -> None:
        with Link(place.socket) as link:
            extend("kv", (2 * M,), place.records, daemon=link)

    place.start()
    with Link(place.socket) as link:
        make(place, "8M", daemon=link)
    with libsac.connect("kv", socket=place.socket) as pool:
        keys = put(pool.namespace("n", LAYOUT), 0, 5)
    for turn in range(8):
        killed(lengthen, luck.uniform(0, 0.02))
        if turn % 2:
            place.stop(signal.SIGKILL)
            place.start()
        lengthen()
        record = place.records.get("kv")
        with Link(place.socket) as link:
            shown = link.call("pool.show", name="kv")["pool"]
        assert [extent["path"] for extent in shown["extents"]] == list(record.data)
        assert record.state == "ready"
        files = {path.name for path in Path(record.meta).parent.iterdir()}
        assert files == {"meta", *(Path(path).name for path in record.data)}
    with (
        libsac.connect("kv", socket=place.socket) as pool,
        pool.namespace("n").pin(keys) as prefix,
    ):
        assert prefix.pages == 5
        check(prefix)
    place.stop()
    destroy("kv", place.records)


def test_limits_are_named(place: Place) -> None:
    with pytest.raises(CtlError, match=r"needs \d+ MiB"):
        make(place, "1024T")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * M, hard))
    try:
        with pytest.raises(CtlError, match="RLIMIT_FSIZE"):
            make(place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(paths.SHM.iterdir()) == []


def test_huge_pages(place: Place) -> None:
    try:
        mount = Path(mounts.huge_mount("2M"))
    except CtlError as error:
        pytest.skip(f"{error}")
    if (mounts.free_huge_pages("2M") or 0) < 5:
        pytest.skip("no five huge pages are free")
    spec = Spec("kv", (8 * M,), huge="2M")
    record = create(spec, place.records).record
    assert Path(record.data[0]).is_relative_to(mount)
    with open_record(record) as pool:
        assert pool.info.page_size_obtained == 2 * M
        space = pool.namespace("n", LAYOUT)
        with space.pin(put(space, 0, 4)) as prefix:
            check(prefix)
    destroy("kv", place.records)
    assert not Path(record.data[0]).parent.exists()


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place that nobody (the user) can run a daemon in."""
    with tempfile.TemporaryDirectory(prefix="sac-test-", dir="/dev/shm") as name:
        root = Path(name)
        root.chmod(0o755)
        monkeypatch.setattr(paths, "SHM", root / "shm")
        (root / "shm").mkdir(mode=0o777)
        (root / "shm").chmod(0o1777)
        made = Place(root)
        (root / "run").mkdir(mode=0o755)
        for path in (root / "run", root / "notify"):
            shutil.chown(path, NOBODY, NOBODY)
        monkeypatch.setattr(made, "spawn", lambda user, **_: spawn_as(made, user))
        yield made
        made.close()


def spawn_as(place: Place, user: int) -> subprocess.Popen[bytes]:
    """The daemon, which becomes another user once all is imported: this Python may lie where
    only root can read it."""
    with place.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", BECOME, str(user)],
            env=place.env(),
            stderr=log,
            stdout=log,
        )


@as_root
def test_daemon_of_another_user_takes_a_pool_and_finds_it_again(others: Place) -> None:
    others.start(user=NOBODY)
    with Link(others.socket) as link:
        assert link.peer.uid == NOBODY
        made = make(others, daemon=link, owner=link.peer.uid)
        assert made.served
        assert {Path(path).stat().st_uid for path in made.record.data} == {NOBODY}
    others.stop(signal.SIGKILL)
    others.start(user=NOBODY)
    with Link(others.socket) as link:
        assert link.call("pool.show", name="kv")["pool"]["state"] == "serving"
        destroy("kv", others.records, daemon=link)
    assert list(paths.SHM.iterdir()) == []


@as_root
def test_files_that_the_daemon_may_not_open_are_handed_over(others: Place) -> None:
    others.start(user=NOBODY)
    with Link(others.socket) as link:
        assert make(others, daemon=link).served  # root's own files
    others.stop(signal.SIGKILL)
    others.start(user=NOBODY)
    with Link(others.socket) as link:
        shown = link.call("pool.show", name="kv")["pool"]
        assert shown["state"] == "absent"
        assert "sacctl pool create" in shown["hint"]
        again = make(others, daemon=link)
        assert (again.created, again.served) == (False, True)
        assert link.call("pool.show", name="kv")["pool"]["state"] == "serving"
        with libsac.connect("kv", socket=others.socket) as pool:
            space = pool.namespace("n", LAYOUT)
            put(space, 0, 6)
            extend("kv", (8 * M,), others.records, daemon=link)
            assert len(link.call("pool.show", name="kv")["pool"]["extents"]) == 3
            put(space, 6, 14)  # the daemon has opened the new file for its client
            with space.pin(space.keys(range(20 * 16))) as prefix:
                assert prefix.pages == 20
                check(prefix)
        destroy_soon(others, link)
    assert list(paths.SHM.iterdir()) == []
