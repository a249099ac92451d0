# SPDX-License-Identifier: Apache-2.0
"""The main loop over stand-ins: watchdog, signals, status; pools that take long to open."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
from unit.fake_daemon import Desk, FakePool, client, desk, record, table

from sacctl.daemon import opener as opener_module
from sacctl.daemon import run as run_module
from sacctl.daemon.notify import Notifier
from sacctl.daemon.signals import Signals
from sacctl.errors import BusyError, CtlError
from sacctl.pool.record import Records


class Said(Notifier):
    """Keeps what it would say."""

    def __init__(self, watchdog: float = 0.0) -> None:
        super().__init__({})
        self.watchdog = watchdog
        self.said: list[str] = []

    def _send(self, *fields: str) -> None:
        self.said += fields


class Turns:
    """As Signals: gives what it was told to, one a turn, and does something between."""

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)
        self.timeouts: list[float] = []

    def wait(self, timeout: float) -> signal.Signals | None:
        self.timeouts.append(timeout)
        turn = self.turns.pop(0)
        if callable(turn):
            turn()
            return None
        return cast("signal.Signals | None", turn)


@pytest.fixture
def here(tmp_path: Path) -> Desk:
    return desk(tmp_path)


def serve(here: Desk, said: Said, *turns: Any) -> Turns:
    made = Turns(*turns)
    run_module._serve(here.service, said, cast(Signals, made))
    return made


def test_the_watchdog_hears_of_us_only_while_it_serves(here: Desk) -> None:
    said = Said(watchdog=1.5)

    def hang() -> None:
        here.server.moving = False

    def go_on() -> None:
        here.server.moving = True

    turns = serve(here, said, None, None, hang, None, None, signal.SIGTERM)
    # A turn in which the signal came ends it; one of the hanging ones moved before.
    assert said.said.count("WATCHDOG=1") == 2
    assert turns.timeouts[0] == 0.5
    here.server.moving = False
    serve(here, said, None, go_on, signal.SIGINT)
    assert said.said.count("WATCHDOG=1") == 3


def test_a_thread_that_stands_still_is_logged_once(
    here: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr("sacctl.daemon.run.log.error", lambda text, **_: logged.append(text))
    here.service.beat()
    here.server.moving = False
    here.service._moved -= 6
    serve(here, Said(), None, None, None, signal.SIGTERM)
    assert logged == ["the serving thread stands still"]
    assert here.service.record()["heartbeat_age_ms"] >= 6000
    assert {f["code"] for f in here.ask("health")["findings"]} == {"SAC103"}


def test_status_lines(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said()
    here.serve(FakePool()).put("chat")
    here.server.attached = [client(1)]
    clock = itertools.count(0.0, 11.0)
    monkeypatch.setattr("sacctl.daemon.run.time.monotonic", lambda: next(clock))
    serve(here, said, None, signal.SIGTERM)
    assert "STATUS=1 pool, 1 namespace, 1 client" in said.said


def test_hangup_reloads_beside_the_loop(here: Desk) -> None:
    begun, go = threading.Event(), threading.Event()

    def reload() -> None:
        begun.set()
        go.wait(10)

    here.service.reload = reload  # type: ignore[method-assign,assignment]
    serve(here, Said(), signal.SIGHUP, lambda: begun.wait(10), None, signal.SIGTERM)
    go.set()


def test_signals_are_taken_whatever_thread_gets_them() -> None:
    busy = threading.Event()
    thread = threading.Thread(target=busy.wait)
    thread.start()
    try:
        before = signal.getsignal(signal.SIGHUP)
        with Signals([signal.SIGHUP, signal.SIGUSR1]) as signals:
            assert signals.wait(0.01) is None
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.wait(5) is signal.SIGHUP
            assert thread.ident is not None
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
            assert signals.wait(5) is signal.SIGUSR1
            assert signals.wait(0) is None
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert {signals.wait(5), signals.wait(5)} == {signal.SIGHUP, signal.SIGUSR1}
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        busy.set()
        thread.join()


def test_who_looks_does_not_wait_for_a_pool_that_is_opened(
    here: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    here.serve(FakePool(uuid="cd" * 16), "other")

    def slowly(record: Any, *_: Any) -> FakePool:
        begun.set()
        assert go.wait(10)
        return FakePool()

    monkeypatch.setattr(opener_module, "open_record", slowly)
    adding = threading.Thread(target=lambda: here.ask("pool.add", record=record().to_dict()))
    adding.start()
    assert begun.wait(10)
    started = time.monotonic()
    assert [p["name"] for p in here.ask("pool.list")["pools"]] == ["other"]
    assert here.service.summary().startswith("1 pool,")
    assert time.monotonic() - started < 5
    go.set()
    adding.join()
    assert [p["name"] for p in here.ask("pool.list")["pools"]] == ["kv", "other"]


def test_nothing_is_opened_after_the_end(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = here.serve(FakePool())
    folder = here.service.settings.pools.dir
    folder.mkdir()
    Records(folder).write(record("late"))
    monkeypatch.setattr(opener_module, "open_record", lambda record, *_: FakePool())
    here.service.pools.close()
    assert pool.closed
    assert here.service.pools.load(folder) == []
    with pytest.raises(CtlError, match="stopping"):
        here.service.pools.add(record("late"), [], folder)


def test_clients_that_come_and_go_are_logged(
    here: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    clients = here.service.clients
    monkeypatch.setattr("sacctl.daemon.clients.log.info", lambda text, **_: logged.append(text))
    here.server.attached = [client(1, tables=0), client(2)]
    clients.follow()
    here.server.attached = [client(1, tables=1), client(2)]
    clients.follow()
    here.server.attached = [client(1, tables=1)]
    here.server.held = [table(1, "kv", "chat")]
    clients.follow()
    assert [text.split(" (")[0] for text in logged] == [
        "client engine2", "client engine1", "client engine2",
    ]  # fmt: skip
    assert logged[-1].endswith("has gone")


def test_a_pool_that_was_seen_half_made_is_tried_again(
    here: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that starts while a pool is created without it sees the record of the half."""
    folder = here.service.settings.pools.dir
    folder.mkdir()
    opened: list[str] = []

    def open_(record: Any, fds: Any = None, *_: Any) -> FakePool:
        opened.append(record.name)
        if record.name == "used" and len(opened) < 4:
            raise BusyError("another process has it locked")
        return FakePool(uuid=record.uuid)

    monkeypatch.setattr(opener_module, "open_record", open_)
    Records(folder).write(record().with_(state="creating"))
    assert here.service.pools.load(folder) == []
    assert here.error("namespace.list", pool="kv")["kind"] == "not_found"
    assert opened == []  # nothing has changed: not tried
    Records(folder).write(record())
    assert here.ask("namespace.list", pool="kv") == {"namespaces": []}
    # One that came later, and one that somebody else had for a moment.
    Records(folder).write(record("used", "cd" * 16))
    assert here.service.pools.refresh() == []
    assert here.error("namespace.list", pool="used")["kind"] == "not_found"
    assert here.ask("namespace.list", pool="used") == {"namespaces": []}
    assert opened == ["kv", "used", "used", "used"]
    # One that is being destroyed is nobody's business, and gone is gone.
    Records(folder).write(record("half").with_(state="destroying"))
    here.service.pools.refresh()
    assert [p["name"] for p in here.ask("pool.list")["pools"]] == ["kv", "used"]
    here.service.pools.load(folder)
    assert here.ask("pool.show", name="half")["pool"]["state"] == "absent"
    Records(folder).remove("half")
    here.service.pools.refresh()
    assert here.error("pool.show", name="half")["kind"] == "not_found"
