# SPDX-License-Identifier: Apache-2.0
"""The daemon's main: ``sacctl daemon run``.

Order at the start: run directory, server (which takes the directory's lock and reads the
roster), every pool there is (from files that the service manager kept, where it did; this
adopts the tables that living clients have of it), and only then serving: before that nothing
may be reserved, evicted or dropped.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from libsac.errors import BusyError as NativeBusy
from libsac.errors import SacError
from libsac.server import Server
from sacctl import paths
from sacctl.daemon.admin import Admin
from sacctl.daemon.fdstore import FdStore
from sacctl.daemon.log import log, setup
from sacctl.daemon.measure import metrics_text
from sacctl.daemon.metrics import MetricsListener, listen_or_log
from sacctl.daemon.notify import Notifier, take_handed
from sacctl.daemon.ops import HANDLERS
from sacctl.daemon.service import Service
from sacctl.daemon.signals import Signals
from sacctl.daemon.watch import Watcher
from sacctl.errors import BusyError, CtlError, from_libsac
from sacctl.settings import Settings, group_id

__all__ = ["run"]

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TURN = 1.0  # seconds between looks at the heartbeat
JOIN = 10.0  # seconds a worker has to end its operation at the stop


def run(settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code 0 then, with every pool marked
    clean. SIGHUP reloads.

    To be called in the main thread, once a process. Raises BusyError where another daemon
    has the run directory, CtlError where it cannot begin to serve.
    """
    setup(settings.log.level, settings.log.format)
    raise_limit()
    try:
        with Signals(SIGNALS) as signals, ExitStack() as stack:
            return _run(settings, signals, stack)
    except SacError as error:
        raise from_libsac(error) from None


def raise_limit() -> None:
    """Open files up to the hard limit: an index and a table each, and a socket a client."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning(f"open files stay limited to {soft}: {error}")


def make_server(settings: Settings, state: Path, listening: int | None) -> Server:
    """Takes the run directory; serves nobody yet. Raises BusyError, SacError."""
    daemon = settings.daemon
    try:
        return Server(
            state,
            daemon.socket,
            listen_fd=listening,
            socket_mode=daemon.socket_mode,
            socket_gid=group_id(daemon.socket_group) if daemon.socket_group else None,
            creators_gid=group_id(daemon.creators_group) if daemon.creators_group else None,
            max_clients=daemon.max_clients,
        )
    except NativeBusy as error:
        raise BusyError(
            f"another daemon runs in {daemon.run_dir}: {error}",
            object=str(daemon.run_dir),
            hint="sacctl daemon status; a second daemon needs a run_dir of its own",
        ) from None


def _run(settings: Settings, signals: Signals, stack: ExitStack) -> int:
    notifier = Notifier()
    stack.callback(notifier.close)
    handed = take_handed()
    if handed.odd:
        log.warning(f"of what the service manager passed: {handed.odd}")
    listening = handed.listening
    if listening is not None:
        settings = replace(
            settings, daemon=replace(settings.daemon, socket=Path(_address(listening)))
        )
    notifier.status("opening pools")
    state = paths.make_run_dirs(settings.daemon.run_dir)
    started = time.monotonic()
    server = make_server(settings, state, listening)
    stack.callback(server.close)
    store = FdStore(notifier, state, handed.stored)
    stack.callback(store.close)
    activated = listening is not None
    service = Service(settings, server, activated=activated, store=store)
    stack.callback(service.pools.close)
    service.pools.load(settings.pools.dir)
    store.settle()
    # stop() comes before the pools are closed, whatever happens from here on.
    stack.callback(server.stop)
    server.serve()
    admin = Admin(service, HANDLERS)
    admin.start()
    metrics = MetricsListener(lambda: metrics_text(service))
    stack.callback(metrics.close)
    listen_or_log(metrics, settings.metrics.listen)
    _wire(service, notifier, metrics)
    watcher = Watcher(service.sysfs, service.losses.look)
    stack.callback(watcher.close)
    watcher.start()
    service.state = "serving"
    notifier.ready(service.summary())
    log.info(
        f"serving at {settings.daemon.socket} after {time.monotonic() - started:.2f} s: "
        f"{service.summary()}"
    )
    _serve(service, notifier, signals)
    service.state = "stopping"
    notifier.stopping()
    metrics.close()
    watcher.close()
    server.stop()
    if not admin.join(JOIN):
        # Its pool stays open until it has ended; it is marked clean all the same.
        log.warning("an administration request is still at work")
    service.pools.close()
    log.info("stopped; every pool is marked clean")
    return 0


def _address(listening: int) -> str:
    with socket.socket(fileno=os.dup(listening)) as given:
        name: str | bytes = given.getsockname()
    return os.fsdecode(name)


def _wire(service: Service, notifier: Notifier, metrics: MetricsListener) -> None:
    """What a reload does outside the service."""

    def on_state() -> None:
        if service.state == "reloading":
            notifier.reloading()
        else:
            notifier.ready(service.summary())

    def on_reload(old: Settings, new: Settings) -> None:
        if old.metrics.listen != new.metrics.listen:
            metrics.listen(new.metrics.listen)

    service.on_state, service.on_reload = on_state, on_reload


def _serve(service: Service, notifier: Notifier, signals: Signals) -> None:
    """Until a signal to end: heartbeat, watchdog, status, reloads."""
    turn = min(TURN, notifier.watchdog / 3) if notifier.watchdog else TURN
    said, moved = time.monotonic(), True
    looking: threading.Thread | None = None
    while True:
        caught = signals.wait(turn)
        if caught is signal.SIGHUP:
            # Not here: a pool that is opened may take longer than the watchdog waits.
            threading.Thread(target=service.reload, name="reload", daemon=True).start()
        elif caught is not None:
            log.info(f"{caught.name}: stopping")
            return
        if service.beat():
            notifier.alive()
            if not moved:
                log.warning("the serving thread goes on")
            moved = True
        elif moved and service.stuck_for() > 5.0:
            moved = False
            log.error("the serving thread stands still")
        if looking is not None and not looking.is_alive():
            looking = None
        now = time.monotonic()
        if now - said >= service.settings.daemon.status_interval:
            said = now
            _look(service, notifier)
            # Beside the loop, as opening a pool may take longer than the watchdog waits.
            if looking is None:
                looking = threading.Thread(
                    target=service.pools.refresh, name="refresh", daemon=True
                )
                looking.start()


def _look(service: Service, notifier: Notifier) -> None:
    try:
        service.clients.follow()
        notifier.status(service.summary())
    except (SacError, CtlError, OSError) as error:
        log.warning(f"cannot look at the clients: {error}")
