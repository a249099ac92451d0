# SPDX-License-Identifier: Apache-2.0
"""Pools by name: those that are served, and those that are not and why."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from libsac.errors import SacError
from libsac.server import Server, SharedPool
from sacctl.cxl.sysfs import Sysfs
from sacctl.daemon.fdstore import FdStore
from sacctl.daemon.growing import grow
from sacctl.daemon.known import Known
from sacctl.daemon.log import log
from sacctl.daemon.opener import Opener
from sacctl.daemon.unserved import (
    Served,
    gone,
    half_made,
    in_use,
    unserved,
)
from sacctl.errors import (
    CtlError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from sacctl.paths import own_dir
from sacctl.pool.extend import present
from sacctl.pool.record import Record, Records

__all__ = ["Pools", "Served"]


Keep = Callable[[str, Records], bool]


class Pools:
    """The pools of one daemon. Thread-safe.

    Opening a large pool takes a while; who only looks does not wait for that.

    Args:
        own: folder of the daemon's own records: of pools that were handed over by somebody
            whose records are elsewhere, so that they are known after a restart. Made when
            it is needed.
        store: keeps the files of pools over a restart. sysfs: where devices are looked at.
    """

    def __init__(
        self,
        server: Server,
        own: Path,
        store: FdStore | None = None,
        sysfs: Sysfs | None = None,
    ) -> None:
        self._server = server
        self._opener = Opener(server, store, sysfs or Sysfs())
        self._own = Records(own)
        self._changing = threading.Lock()  # while pools come, grow and go
        self._known = Known()
        self._closed = False
        self._folder: Path | None = None

    def load(self, folder: Path, keep: Keep = lambda name, records: True) -> list[str]:
        """Opens and serves every pool that has a record, in the folder or among the daemon's
        own, and is not served yet; only those that keep() wants.

        A pool that cannot be opened does not keep the others from being served: it is kept
        as absent or damaged, with the reason. Returns the names newly served. Raises
        CtlError where the folder cannot be read.
        """
        self._folder = folder
        others, new = Records(folder), []
        found = dict.fromkeys(self._own.names(), self._own)
        found |= dict.fromkeys(others.names(), others)
        self._known.drop_unserved(found)  # their records have gone
        for name, records in found.items():
            with self._changing:
                have = self._known.find(name)
                if self._closed or (have is not None and have.pool is not None):
                    continue
                if not keep(name, records):
                    continue
                served = self._open(name, records)
                if records is self._own and served.pool is None and gone(served):
                    self._own.remove(name)  # somebody destroyed it while no daemon ran
                    continue
                self._known.put(served)
            if served.pool is not None:
                new.append(name)
                log.info(f"pool {name} is served", pool=name)
            elif have is None or have.reason != served.reason:
                log.error(f"pool {name} is {served.state}: {served.reason}", pool=name)
        return new

    def refresh(self) -> list[str]:
        """As load(), for pools whose records are new or have changed since they were looked
        at, and for those that were in use: of a pool made beside a daemon that is starting,
        it may have seen the half only."""
        if self._folder is None:
            return []
        try:
            return self.load(self._folder, self._changed)
        except CtlError as error:
            log.warning(f"cannot look for new pools: {error}")
            return []

    def _changed(self, name: str, records: Records) -> bool:
        have = self._known.find(name)
        try:
            record = records.find(name)
        except CtlError:
            return False  # still not whole
        if have is None:  # and not what somebody makes or destroys at this moment
            return record is not None and record.state in ("ready", "extending")
        return have.again or record != have.record

    def _open(self, name: str, records: Records) -> Served:
        record: Record | None = None
        try:
            record = records.find(name)
            if record is None:
                return Served(name, None, reason="its record has just been removed")
            if record.state in ("creating", "destroying", "assembling"):
                return half_made(record)
            record = present(record)  # of an extension that was cut off
            pool, seen = self._opener.serve(record)
            return Served(name, present(record), pool, "serving", marks=seen)
        except Exception as error:
            return unserved(name, record, error)

    def add(self, record: Record, fds: Sequence[int], folder: Path) -> tuple[Served, bool]:
        """Serves a pool from now on; False: it was served already.

        Where the folder of records has none of it, the daemon keeps one of its own. The fds
        (meta, then data) stay the caller's; without any the files are opened by their paths.
        Raises RefusedError for another pool of that name, CtlError, SacError, OSError where
        it cannot be opened.
        """
        if fds and len(fds) != 1 + len(record.data):
            raise UsageError(
                f"pool.add got {len(fds)} descriptors for {1 + len(record.data)} files",
                object=record.name,
            )
        with self._changing:
            have = self._known.find(record.name)
            if self._closed:
                raise CtlError("the daemon is stopping", object=record.name)
            if have is not None and have.pool is not None:
                if not _replaces(record, have, have.pool.info.uuid.hex()):
                    return have, False
                self._let_go(have, have.pool)
            try:
                pool, seen = self._opener.serve(record, fds or None)
            except (CtlError, SacError, OSError) as error:
                if have is not None and have.pool is not None:
                    self._known.put(unserved(record.name, record, error))
                raise
            served = self._known.put(
                Served(record.name, present(record), pool, "serving", marks=seen)
            )
            self._keep(served, folder)
        log.info(f"pool {record.name} is served", pool=record.name)
        return served, True

    def _let_go(self, have: Served, pool: SharedPool) -> None:
        """Ends a pool that lost memory, for its successor: what is left of it is locked by
        us. Its clients attach anew."""
        self._server.remove_pool(have.name, force=True)
        pool.close()
        self._opener.forget(have.name)

    def let_go(self, name: str) -> bool:
        """Closes what is left of a pool that has lost memory, so that it can be assembled:
        its clients get errors, and attach anew when it is served again. False: there is
        nothing to let go of. Raises NotFoundError."""
        with self._changing:
            have = self.get(name)
            if have.pool is None or not have.lost:
                return False
            self._let_go(have, have.pool)
            why, hint = next(iter(have.lost.values())), f"sudo sacctl pool assemble {name}"
            self._known.put(Served(name, have.record, None, "lost", why, hint, lost=have.lost))
        log.info(f"what is left of pool {name} is closed, to be assembled", pool=name)
        return True

    def extend(self, name: str, record: Record, fds: Sequence[int]) -> Served:
        """Adds the data extents that record has at its end. fds as in :meth:`add`, of the new
        ones only. Raises UsageError where record is not the pool's with more at its end."""
        with self._changing:
            served = self.get(name)
            more = grow(served, record, fds, self._opener)
            if served.record is not None and name in self._own.names():
                self._own.write(served.record)
        log.info(f"pool {name} has {more} extents more", pool=name)
        return served

    def forget_files(self, name: str) -> None:
        """The pool's files are not to be kept over a restart any more."""
        self._opener.forget(name)

    def remove(self, name: str) -> None:
        """Serves the pool no more and closes it, which marks it clean. Its files and its
        record stay. Raises RefusedError while clients are attached."""
        with self._changing:
            served = self.get(name)
            try:
                # Also of one that is not served: the server may wait for its return.
                self._server.remove_pool(name)
            except SacError as error:
                if served.pool is not None:
                    raise in_use(name, error) from None
            self._known.drop(name)
            if served.pool is not None:
                served.pool.close()
            self._opener.forget(name)
            self._own.remove(name)
        log.info(f"pool {name} is served no more", pool=name)

    def _keep(self, served: Served, folder: Path) -> None:
        """A record of the daemon's own, where nobody else has one that it will find."""
        if served.record is None or served.name in Records(folder).names():
            return
        try:
            own_dir(self._own.folder, 0o700, 0o077, "run_dir")
            self._own.write(served.record)
        except CtlError as error:
            log.warning(
                f"the pool will not be known after a restart: {error}", pool=served.name
            )

    def get(self, name: str) -> Served:
        """Raises NotFoundError naming the pools there are."""
        return self._known.get(name)

    def pick(self, name: str | None) -> tuple[str, SharedPool]:
        """A served pool; None: the only one there is. Raises NotFoundError, UsageError where
        there are several."""
        try:
            return self._known.pick(name)
        except NotFoundError:
            if not self.refresh():
                raise
            return self._known.pick(name)

    def all(self) -> list[Served]:
        """By name."""
        return self._known.all()

    def close(self) -> None:
        """Closes every pool, which marks it clean. Only after the server has stopped."""
        with self._changing:
            self._closed = True
            for served in self.all():
                if served.pool is not None:
                    try:
                        served.pool.close()
                    except SacError as error:
                        log.error(f"cannot close the pool: {error}", pool=served.name)
            self._known.clear()


def _replaces(record: Record, have: Served, uuid: str) -> bool:
    """Whether a record that is added takes the place of what is served under its name: of a
    pool that has lost memory, when it is back. False: it is what is served. Raises
    RefusedError where it is another pool."""
    if record.uuid == uuid:
        return bool(have.lost)
    if have.state == "lost":  # what was on it has gone: it may have been made anew
        return True
    raise RefusedError(
        f"another pool is served as '{record.name}': {uuid}",
        object=record.name,
        hint=f"choose another name, or sacctl pool destroy {record.name}",
    )
