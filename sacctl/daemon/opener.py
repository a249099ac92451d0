# SPDX-License-Identifier: Apache-2.0
"""Opens pools and hands them to the server; keeps their files over a restart."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress

from libsac.errors import BusyError as NativeBusy
from libsac.errors import SacError
from libsac.server import Server, SharedPool
from sacctl.cxl.sysfs import Sysfs
from sacctl.daemon.extents import Mark, marks
from sacctl.daemon.fdstore import FdStore
from sacctl.daemon.log import log
from sacctl.errors import BusyError, CtlError
from sacctl.pool.opening import open_files, open_record
from sacctl.pool.record import Record

__all__ = ["Opener"]

PATIENCE = 2.0  # seconds in which the service manager closes files that it is to forget
TURN = 0.02


class Opener:
    """The way from a record to a pool that is served.

    store: None keeps nothing. sysfs: where devices are looked at.
    """

    def __init__(self, server: Server, store: FdStore | None, sysfs: Sysfs) -> None:
        self._server = server
        self.store = store
        self.sysfs = sysfs

    def serve(
        self, record: Record, fds: Sequence[int] | None = None
    ) -> tuple[SharedPool, tuple[Mark, ...]]:
        """Opens the pool and serves it; what its dax devices are.

        fds: of meta and data, which stay the caller's; None takes those that the service
        manager kept, and else opens the files by their paths. Raises CtlError, SacError,
        OSError.
        """
        if fds is not None:
            return self._serve(record, fds, new=True)
        if self.store is None or not self.store.there:
            return self._serve(record, None, new=False)
        came = self.store.came(record)
        kept = self.store.take(record)
        if kept is not None:
            try:
                return self._serve(record, kept, new=False)
            except (CtlError, SacError, OSError) as error:
                log.warning(f"kept files cannot be served: {error}", pool=record.name)
                self.forget(record.name)
            finally:
                _close(kept)
        # The manager has been told to let go of what came, and has it locked until it does.
        until = time.monotonic() + (PATIENCE if came else 0.0)
        while True:
            own = open_files(record, self.sysfs)
            try:
                return self._serve(record, own, new=True)
            except (BusyError, NativeBusy):
                if time.monotonic() >= until:
                    raise
            finally:
                _close(own)
            time.sleep(TURN)

    def _serve(
        self, record: Record, fds: Sequence[int] | None, *, new: bool
    ) -> tuple[SharedPool, tuple[Mark, ...]]:
        # Before it is opened: what changes from here on is noticed.
        seen = marks(self.sysfs, record, fds or ())
        pool = open_record(record, fds, self.sysfs)
        try:
            uuid = pool.info.uuid.hex()
            if record.uuid and uuid != record.uuid:
                raise CtlError(
                    f"the files of pool '{record.name}' are of another pool: {uuid}, and the "
                    f"record says {record.uuid}",
                    object=record.name,
                    hint=f"sacctl pool show {record.name}",
                )
            self._server.add_pool(record.name, pool)
        except BaseException:
            pool.close()
            raise
        if new and fds is not None and self.store:
            self.store.keep(record, fds)
        return pool, seen

    def added(self, record: Record, index: int, fd: int) -> None:
        """A data extent was added to a served pool: its file is kept, too."""
        if self.store:
            self.store.keep_more(record, index, fd)

    def forget(self, name: str) -> None:
        """The pool's files are kept no more."""
        if self.store:
            self.store.drop(name)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)
