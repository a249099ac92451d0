# SPDX-License-Identifier: Apache-2.0
"""Several processes over one daemon: who sees what, who may what, what is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance.content import LARGE, PLAIN, RICH, assert_idle, check, check_stored, put, write
from system.daemon import Clients, Daemon, daemon
from system.puppet import puppet

import libsac
from libsac import Namespace, errors

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture
def one() -> Iterator[Daemon]:
    with daemon() as running:
        yield running


def until(what: Any, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def only(daemon: Daemon, clients: int) -> None:
    """So many clients are left."""
    until(lambda: daemon.clients().clients == clients)


def test_what_one_writes_the_other_reads(one: Daemon) -> None:
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", RICH, checksum=True)
        other.do("ns = pool.namespace('n')\nkeys = ns.keys(range(160))")
        assert other.do("result = int(ns.lookup(keys).sum())") == 0
        keys = ns.keys(range(160))
        put(ns, keys[:6])
        other.do("check_stored(ns, keys, 6)")
        other.do("put(ns, keys)")
        check_stored(ns, keys)
        # The same pages at once: one is first, both are told what is there.
        more = ns.keys(range(10**6, 10**6 + 320))
        mine = ns.put(more)
        write(mine, more, RICH)
        assert other.do(f"result = put(ns, ns.keys(range({10**6}, {10**6 + 320})))") == 20
        assert mine.commit() == 0
        mine.close()
        check_stored(ns, more)
        other.do("pool.close()")
        only(one, 1)
        assert_idle(ns)


def test_counters_of_all_clients(one: Daemon) -> None:
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", PLAIN)
        keys = ns.keys(range(64))
        put(ns, keys)
        before = ns.stats()
        other.do("ns = pool.namespace('n')\ncheck_stored(ns, ns.keys(range(64)))")
        after = ns.stats()
        assert after.rows_gathered - before.rows_gathered == 64 * 2
        other.kill()
        only(one, 1)
        assert ns.stats().rows_gathered == after.rows_gathered


def test_events_reach_everybody(one: Daemon) -> None:
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", PLAIN)
        events = ns.events()
        other.do("ns = pool.namespace('n')\nput(ns, ns.keys(range(48)))\nns.evict(1)")
        assert [e.kind for e in events] == ["stored"] * 3 + ["removed"]


def test_everything_pinned_by_another(one: Daemon) -> None:
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", LARGE, quota="6M")
        room = (6 << 20) // LARGE.page_bytes
        keys, fresh = ns.keys(range(16 * room)), ns.keys(range(10**6, 10**6 + 16))
        put(ns, keys)
        other.do(f"ns = pool.namespace('n')\nheld = ns.pin(ns.keys(range({16 * room})))")
        begin = time.monotonic()
        with pytest.raises(errors.NoSpaceError, match=f"{room} are pinned"):
            put(ns, fresh)
        assert time.monotonic() - begin < 1
        with pytest.raises(errors.NoSpaceError):
            put(ns, fresh, timeout=0.05)
        threading.Timer(0.1, other.do, ["held.close()"]).start()
        assert put(ns, fresh, timeout=30) == 1
        check_stored(ns, fresh)


def test_a_dead_clients_pins_and_reservations_come_back(one: Daemon) -> None:
    with one.connect() as pool:
        ns = pool.namespace("n", LARGE, quota="6M")
        room = (6 << 20) // LARGE.page_bytes
        keys = ns.keys(range(16 * 10))
        put(ns, keys)
        with puppet(one.socket) as other:
            other.do(
                "ns = pool.namespace('n')\nheld = ns.pin(ns.keys(range(160)))\n"
                f"batch = ns.put(ns.keys(range({10**6}, {10**6 + 16 * (room - 10)})))\n"
                "seq = ns.sequence(range(160))"
            )
            stats = ns.stats()
            assert (stats.pinned, stats.reserved) == (10, room - 10)
            other.kill()
        only(one, 1)
        assert_idle(ns)
        assert put(ns, ns.keys(range(2 * 10**6, 2 * 10**6 + 16 * room))) == room


def test_an_evicted_client(one: Daemon) -> None:
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", LARGE)
        keys = ns.keys(range(64))
        put(ns, keys)
        other.do(
            "ns = pool.namespace('n')\nkeys = ns.keys(range(64))\nheld = ns.pin(keys)\n"
            "fresh = ns.keys(range(1000, 1032))\nbatch = ns.put(fresh)\n"
            "write(batch, fresh, LARGE)"
        )
        assert ns.stats().reserved == 2
        one.tell("evict", other.pid)
        stats = ns.stats()  # whoever may still be writing has the room until it lets go
        assert stats.reserved == 2
        for call in ("ns.lookup(keys)", "put(ns, keys)", "ns.stats()", "batch.commit()"):
            kind, _ = other.fails(call)
            assert kind in ("AccessError", "ReservationError"), (call, kind)
        assert ns.stats().pinned == 4
        other.do("held.close()\nbatch.close()")
        assert_idle(ns)
        check_stored(ns, keys)
        # It may come again, as another client.
        other.do(f"pool.close()\npool = libsac.connect(socket={one.socket!r})")
        other.do("ns = pool.namespace('n')\ncheck_stored(ns, keys)")


def test_nothing_stays_of_clients_that_close(one: Daemon) -> None:
    with one.connect() as pool:
        put(ns := pool.namespace("n", PLAIN), ns.keys(range(64)))
    until(lambda: one.clients() == Clients(0, 0, 0, 0))
    for _ in range(300):
        with one.connect() as pool:
            check_stored(ns := pool.namespace("n"), ns.keys(range(64)))
    until(lambda: one.clients() == Clients(0, 0, 0, 0))
    pool = one.connect()
    for _ in range(300):
        pool.namespace("n")
    assert one.clients().tables == 0
    prefix = (ns := pool.namespace("n")).pin(ns.keys(range(64)))
    pool.close()
    check_after = one.clients()
    assert (check_after.tables, check_after.pinned) == (1, 4)
    prefix.close()
    del prefix, ns
    until(lambda: one.clients() == Clients(0, 0, 0, 0))
    one.remove("p")


def test_dropped_by_another(one: Daemon) -> None:
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", PLAIN)
        keys = ns.keys(range(64))
        put(ns, keys)
        held = ns.pin(keys)
        assert other.fails("pool.drop('n')")[0] == "BusyError"
        held.close()
        other.do("pool.drop('n')")
        for call in (
            lambda: ns.lookup(keys),
            lambda: ns.pin(keys),
            lambda: ns.put(keys),
            lambda: ns.stats(),
        ):
            with pytest.raises(errors.ClosedError, match="dropped"):
                call()
        other.do("again = pool.namespace('n', LARGE)")
        with pytest.raises(errors.ClosedError, match="dropped"):
            ns.lookup(keys)
        assert pool.namespace("n").layout == LARGE


# ------------------------------------------------------------------------------- access


@as_root
def test_a_client_without_room_for_files_leaves_no_tables(one: Daemon) -> None:
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", PLAIN)
        put(ns, ns.keys(range(64)))
        other.do(
            "import os, resource\n"
            "before = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
            "free = os.dup(0)\n"
            "os.close(free)\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, before[1]))"
        )
        for _ in range(3):
            kind, text = other.fails("pool.namespace('n')")
            assert (kind, "ulimit -n" in text) == ("OutOfMemoryError", True), text
        until(lambda: one.clients().tables == 1)
        other.do(
            "resource.setrlimit(resource.RLIMIT_NOFILE, before)\n"
            "check_stored(pool.namespace('n'), pool.namespace('n').keys(range(64)))"
        )


def test_access_lists(one: Daemon) -> None:
    with one.connect() as pool, puppet(one.socket, uid=NOBODY) as other:
        put(open_ := pool.namespace("open", PLAIN, mode=0o604), open_.keys(range(64)))
        put(shut := pool.namespace("shut", PLAIN), shut.keys(range(64)))
        pool.namespace("drop-box", PLAIN, mode=0o606)
        assert other.fails("pool.namespace('shut')")[0] == "AccessError"
        assert other.fails("pool.drop('open')")[0] == "AccessError"
        other.do("ns = pool.namespace('open')\nkeys = ns.keys(range(64))")
        other.do("check_stored(ns, keys)")
        for call in (
            "put(ns, ns.keys(range(1000, 1016)))",
            "ns.evict(1)",
            "ns.verify()",
            "ns.sequence().extend([1])",
        ):
            assert other.fails(call)[0] == "AccessError", call
        # What it has for reading cannot be made writable: neither in place nor anew.
        assert other.do(
            "import os\nresult = 0\n"
            "for fd in os.listdir('/proc/self/fd'):\n"
            "    try: path = os.readlink(f'/proc/self/fd/{fd}')\n"
            "    except OSError: continue\n"
            "    if 'data.' in path or 'memfd' in path:\n"
            "        result += 1\n"
            "        assert os.get_inheritable(int(fd)) is False\n"
            "        for how in (os.O_RDWR, os.O_WRONLY):\n"
            "            try: os.open(f'/proc/self/fd/{fd}', how)\n"
            "            except PermissionError: pass\n"
            "            else: raise AssertionError(path)\n"
            "        try: mmap.mmap(int(fd), 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)\n"
            "        except PermissionError: pass\n"
            "        else: raise AssertionError(path)\n"
        )
        other.do("box = pool.namespace('drop-box')\nput(box, box.keys(range(16)))")
        # One process, both kinds: what is open to read stays so.
        assert other.fails("put(ns, ns.keys(range(1000, 1016)))")[0] == "AccessError"
        other.do("own = pool.namespace('own', PLAIN)\nput(own, own.keys(range(32)))")
        assert pool.namespace("own").info.uid == NOBODY
        check_stored(own := pool.namespace("own"), own.keys(range(32)))  # root may
        other.do("pool.drop('own')")


@as_root
def test_a_socket_that_is_not_for_everybody(one: Daemon) -> None:
    Path(one.socket).chmod(0o600)
    with puppet(one.socket, None, NOBODY) as other:
        kind, text = other.fails(f"libsac.connect(socket={one.socket!r})")
        assert kind == "AccessError"
        assert "administrator" in text


# ------------------------------------------------------------------------------- connect


def test_which_pool(one: Daemon) -> None:
    assert one.connect().info.data_bytes == 16 << 20
    with pytest.raises(errors.NotFoundError, match=r"no pool 'other'.*It serves: p"):
        one.connect("other")
    one.create("q", 8 << 20)
    with pytest.raises(errors.NotFoundError, match="p, q"):
        one.connect()
    with one.connect("p") as p, one.connect("q") as q:
        a, b = p.namespace("n", PLAIN), q.namespace("n", PLAIN)
        put(a, a.keys(range(64)))
        assert not b.lookup(a.keys(range(64))).any()
        assert q.info.data_bytes == 8 << 20
        with pytest.raises(errors.AccessError, match="sacctl"):
            p.resize("n", 1 << 20)


def test_no_daemon(one: Daemon) -> None:
    pool = one.connect(reconnect=0.2)
    ns = pool.namespace("n", PLAIN)
    keys = ns.keys(range(64))
    put(ns, keys)
    held = ns.pin(keys)
    one.kill()
    # Reading needs no daemon.
    check_stored(ns, keys)
    check(held, keys, PLAIN, 4)
    for _ in range(2):
        with pytest.raises(errors.DaemonError, match="sacctl daemon run") as caught:
            put(ns, ns.keys(range(1000, 1016)))
        assert isinstance(caught.value, ConnectionError)
        assert caught.value.status == 18
    with pytest.raises(errors.DaemonError, match="sacctl daemon run"):
        libsac.connect(socket=one.socket, timeout=0.05)
    one.start()
    put(ns, ns.keys(range(1000, 1016)))
    check_stored(ns, keys)
    held.close()
    assert_idle(ns)


def test_times(one: Daemon) -> None:
    """Attaching and closing do not depend on what there is."""
    one.create("large", 1 << 30, 4)
    with one.connect("large") as pool:
        put(ns := pool.namespace("n", LARGE), ns.keys(range(16 * 100)))
    attach, close = [], []
    for _ in range(20):
        pool = one.connect("large")
        begin = time.perf_counter()
        ns = pool.namespace("n")
        attach.append(time.perf_counter() - begin)
        assert ns.longest(ns.keys(range(1600))) == 100
        begin = time.perf_counter()
        pool.close()
        close.append(time.perf_counter() - begin)
    assert min(attach) < 0.010
    assert min(close) < 0.005


# ---------------------------------------------------------------------------- one process


def test_threads_of_one_client(one: Daemon) -> None:
    with one.connect() as pool:
        ns = pool.namespace("n", RICH)
        wrong: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for i in range(15):
                    keys = ns.keys(
                        range(number * 10**6 + i * 200, number * 10**6 + i * 200 + 96)
                    )
                    put(ns, keys)
                    check_stored(ns, keys)
                    with ns.sequence(range(i * 200, i * 200 + 96)) as seq:
                        seq.extend([1])
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert_idle(ns)


def in_child(what: Any) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = what()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_fork(one: Daemon) -> None:
    with one.connect() as pool:
        ns = pool.namespace("n", PLAIN)
        keys = ns.keys(range(64))
        put(ns, keys)
        held, batch = ns.pin(keys), ns.put(ns.keys(range(1000, 1016)))

        def child() -> int:
            for call in (
                lambda: ns.lookup(keys),
                lambda: ns.stats(),
                lambda: ns.put(keys),
                lambda: pool.namespace("n"),
                lambda: pool.info,
                lambda: held.gather("kv", 0),
                lambda: batch.commit(),
            ):
                try:
                    call()
                except errors.ForkedError:
                    continue
                return 2
            held.close()
            batch.close()
            with one.connect() as anew:
                check_stored(anew.namespace("n"), keys)
                put(own := anew.namespace("n"), own.keys(range(5000, 5016)))
            return 0

        assert in_child(child) == 0
        only(one, 1)
        stats = ns.stats()
        assert (stats.pinned, stats.reserved) == (4, 1)
        check(held, keys, PLAIN, 4)
        check_stored(ns, ns.keys(range(5000, 5016)))
        held.close()
        batch.close()
        assert_idle(ns)


def test_fork_while_threads_ask(one: Daemon) -> None:
    with one.connect() as pool:
        ns = pool.namespace("n", PLAIN)
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                ns.stats()

        thread = threading.Thread(target=ask)
        thread.start()

        def child() -> int:
            try:
                ns.stats()
            except errors.ForkedError:
                pool.close()
                return 0
            return 2

        assert [in_child(child) for _ in range(30)] == [0] * 30
        ended.set()
        thread.join()
        only(one, 1)


def test_a_forked_child_holds_nothing(one: Daemon) -> None:
    """A child that lives on keeps neither the connection nor pins of its dead parent."""
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", PLAIN)
        put(ns, ns.keys(range(64)))
        child = other.do(
            "import os, time\nns = pool.namespace('n')\nheld = ns.pin(ns.keys(range(64)))\n"
            "result = os.fork()\nif result == 0: time.sleep(60)"
        )
        assert ns.stats().pinned == 4
        other.kill()
        only(one, 1)
        assert_idle(ns)
        os.kill(child, signal.SIGKILL)


def test_multiprocessing(one: Daemon) -> None:
    """Each worker connects for itself; the start method does not matter."""
    with puppet(one.socket) as other:
        other.do("ns = pool.namespace('n', PLAIN)\nput(ns, ns.keys(range(64)))")
        for method in ("spawn", "fork", "forkserver"):
            assert (
                other.do(
                    "import multiprocessing\nfrom system.test_clients import reader\n"
                    f"with multiprocessing.get_context({method!r}).Pool(2) as workers:\n"
                    f"    result = workers.map(reader, [{one.socket!r}] * 4)"
                )
                == [4] * 4
            )


def reader(socket: str) -> int:
    with libsac.connect(socket=socket) as pool:
        ns = pool.namespace("n")
        keys = ns.keys(range(64))
        check_stored(ns, keys)
        return len(keys)


def test_ranks(one: Daemon) -> None:
    with one.connect() as pool, puppet(one.socket) as other:
        ranks = pool.ranks("model", 4, PLAIN)
        tokens = range(160)
        for i, keys in enumerate(ranks.keys(tokens)):
            put(ranks.rank(i), keys[: 10 - i])
        assert ranks.longest(tokens) == 7
        assert other.do("r = pool.ranks('model', 4)\nresult = r.longest(range(160))") == 7
        other.do("put(r.rank(3), r.keys(range(160))[3])")
        assert ranks.longest(tokens) == 8


def test_in_place(one: Daemon) -> None:
    """Rows that one writes in place, and the other views in place."""
    with one.connect() as pool, puppet(one.socket) as other:
        ns = pool.namespace("n", PLAIN)
        keys = ns.keys(range(16))
        with ns.put(keys) as batch:
            for layer in (0, 1):
                batch.view("kv", layer, 0)[:] = np.arange(16, dtype=np.uint8)[:, None]
        assert other.do(
            "ns = pool.namespace('n')\nheld = ns.pin(ns.keys(range(16)))\n"
            "view = held.view('kv', 1, 0)\nresult = view[:, 5].tolist()"
        ) == list(range(16))


def test_many_namespaces(one: Daemon) -> None:
    with one.connect() as pool:
        spaces: list[Namespace] = [pool.namespace(f"n{i}", PLAIN) for i in range(200)]
        assert one.clients().tables == 200
        keys = [ns.keys(range(16)) for ns in spaces]
        for ns, k in zip(spaces[::50], keys[::50], strict=True):
            put(ns, k)
            check_stored(ns, k)
