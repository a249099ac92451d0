# SPDX-License-Identifier: Apache-2.0
"""What the parts of a running daemon share: settings, server, pools, and how it fares."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import libsac
from libsac.server import Server
from sacctl import paths
from sacctl import settings as settings_module
from sacctl.cxl.condition import History
from sacctl.cxl.sysfs import Sysfs
from sacctl.daemon.access import Access
from sacctl.daemon.clients import Clients
from sacctl.daemon.fdstore import FdStore
from sacctl.daemon.frames import VERSION
from sacctl.daemon.log import log, setup
from sacctl.daemon.losses import Losses
from sacctl.daemon.served import Pools
from sacctl.errors import CtlError, from_os
from sacctl.records import DaemonRecord, ReloadRecord
from sacctl.settings import RELOADABLE, Settings, group_id

__all__ = ["Service", "access_of"]


def access_of(settings: Settings) -> Access:
    """The rules that the settings make. The groups were looked up when they were read."""

    def gid(name: str) -> int | None:
        return group_id(name) if name else None

    return Access(gid(settings.daemon.admin_group), gid(settings.daemon.creators_group))


class Service:
    """A daemon at work. Thread-safe but for what run.py alone calls.

    Attributes:
        state: "starting", "serving", "reloading" or "stopping".
        access: who may do what, as the settings say now.
        on_reload: called with old and new settings, in the reloading thread; what it raises
            (CtlError) is in the reload's errors.
        losses: what is done about memory that dies. history: of the devices' errors.
        creating: held while a namespace is created, so that "there already" is known.
    """

    def __init__(
        self,
        settings: Settings,
        server: Server,
        *,
        activated: bool = False,
        store: FdStore | None = None,
    ) -> None:
        self.settings = settings
        self.server = server
        self.activated = activated  # the service manager made the socket
        # The other root is for tests: docs/simulator.md.
        self.sysfs = Sysfs(os.environ.get("SAC_SYSROOT") or "/")
        own = paths.own_records(settings.daemon.run_dir)
        self.pools = Pools(server, own, store, self.sysfs)
        self.losses = Losses(self.pools, self.sysfs)
        self.history = History()
        self.clients = Clients(server)
        self.access = access_of(settings)
        self.state = "starting"
        self.since_ms = int(time.time() * 1000)
        self.on_reload: Callable[[Settings, Settings], None] = lambda old, new: None
        self.on_state: Callable[[], None] = lambda: None
        self.creating = threading.Lock()
        self._reloading = threading.Lock()
        self._file = _of_file(settings)
        self._turns = 0
        self._moved = time.monotonic()

    # ------------------------------------------------------------------ how it fares

    def beat(self) -> bool:
        """Looks at the heartbeat; True: it has moved since the last call."""
        turns = self.server.heartbeat()
        if turns == self._turns:
            return False
        self._turns, self._moved = turns, time.monotonic()
        return True

    def stuck_for(self) -> float:
        """Seconds since beat() last saw the heartbeat move."""
        return time.monotonic() - self._moved

    def summary(self) -> str:
        """For the service manager and the log: "2 pools, 5 namespaces, 3 clients"."""
        pools = self.pools.all()
        serving = [s.pool for s in pools if s.pool is not None and s.state == "serving"]
        parts = [
            _count(len(serving), "pool"),
            _count(sum(len(pool.namespaces()) for pool in serving), "namespace"),
            _count(len(self.server.clients()), "client"),
        ]
        if len(serving) < len(pools):
            parts.append(f"{_count(len(pools) - len(serving), 'pool')} not served")
        return ", ".join(parts)

    def record(self) -> DaemonRecord:
        """The daemon as it is now."""
        pools = self.pools.all()
        serving = [s.pool for s in pools if s.pool is not None and s.state == "serving"]
        settings = self.settings
        turns = self.server.heartbeat()
        age = 0 if turns != self._turns else int((time.monotonic() - self._moved) * 1000)
        return {
            "pid": os.getpid(),
            "uid": os.geteuid(),
            "version": libsac.__version__,
            "protocol": VERSION,
            "since_ms": self.since_ms,
            "state": self.state,
            "config": "" if settings.file is None else str(settings.file),
            "run_dir": str(settings.daemon.run_dir),
            "socket": str(settings.daemon.socket),
            "metrics": settings.metrics.listen,
            "pools": len(serving),
            "absent_pools": len(pools) - len(serving),
            "namespaces": sum(len(pool.namespaces()) for pool in serving),
            "clients": len(self.server.clients()),
            "max_clients": settings.daemon.max_clients,
            "heartbeat": turns,
            "heartbeat_age_ms": age,
            "open_files": _open_files(),
            "memory_bytes": _memory_bytes(),
        }

    # ------------------------------------------------------------------------ reload

    def reload(self) -> ReloadRecord:
        """Reads the settings and the pool records again.

        Settings that are wrong change nothing; those that need a restart keep their values
        and are named. Pools that are not served are tried again. Raises nothing.
        """
        with self._reloading:
            before, self.state = self.state, "reloading"
            self.on_state()
            done: ReloadRecord = {"applied": [], "restart": [], "pools": [], "errors": []}
            try:
                self._reload_settings(done)
                done["pools"] = self.pools.load(self.settings.pools.dir)
            except CtlError as error:
                done["errors"].append(error.sentence())
            finally:
                self.state = before
                self.on_state()
        for text in done["errors"]:
            log.error(f"reload: {text}")
        changed = ", ".join(done["applied"] + done["pools"]) or "nothing new"
        log.info(f"reloaded: {changed}")
        if done["restart"]:
            log.warning(f"a restart is needed for {', '.join(done['restart'])}")
        return done

    def _reload_settings(self, done: ReloadRecord) -> None:
        old = self.settings
        # Without a file yet, one may have come to the usual place. What differs from the last
        # time counts: some settings may have been given on the command line.
        new = settings_module.load(old.file)
        names = self._file.changed(new)
        self._file = new
        done["restart"] = [name for name in names if name not in RELOADABLE]
        done["applied"] = [name for name in names if name in RELOADABLE]
        self.settings = merged = _only(old, new, done["applied"])
        self.access = access_of(merged)
        if {"log.level", "log.format"} & set(names):
            setup(merged.log.level, merged.log.format)
        if {"daemon.socket_mode", "daemon.socket_group"} & set(names) and not self.activated:
            self._change_socket(done)
        try:
            self.on_reload(old, merged)
        except CtlError as error:
            done["errors"].append(error.sentence())

    def _change_socket(self, done: ReloadRecord) -> None:
        path, wanted = self.settings.daemon.socket, self.settings.daemon
        try:
            if wanted.socket_group:
                os.chown(path, -1, group_id(wanted.socket_group))
            path.chmod(wanted.socket_mode)
        except OSError as error:
            done["errors"].append(from_os(error, "cannot change the socket").sentence())


def _of_file(settings: Settings) -> Settings:
    """What the settings file says, without what the command line changed."""
    try:
        return settings_module.load(settings.file)
    except CtlError:
        return settings


def _only(old: Settings, new: Settings, names: list[str]) -> Settings:
    """old with the named settings of new, and new's file."""
    values = new.values()
    sections = {
        section: dataclasses.replace(
            getattr(old, section),
            **{
                name.partition(".")[2]: values[name]
                for name in names
                if name.startswith(section + ".")
            },
        )
        for section in ("daemon", "log", "metrics", "pools")
    }
    return Settings(**sections, file=new.file)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _open_files() -> int:
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    return 0


def _memory_bytes() -> int:
    """Resident and not shared: pools and indexes are shared memory, and not ours alone."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    return 0
