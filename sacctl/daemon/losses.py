# SPDX-License-Identifier: Apache-2.0
"""Memory of served pools that dies: a device that goes, a block that is poisoned."""

from __future__ import annotations

import threading

from libsac.errors import SacError
from libsac.server import SharedPool
from sacctl.cxl.sysfs import Sysfs
from sacctl.daemon.extents import META, gone, pages_gone
from sacctl.daemon.log import log
from sacctl.daemon.served import Pools
from sacctl.daemon.unserved import Served, not_served
from sacctl.errors import CtlError, UsageError

__all__ = ["BLOCK", "Losses"]

BLOCK = 2 << 20


class Losses:
    """What is done about it. Thread-safe; holds no lock while a pool is opened, so that a
    device that goes is seen to at once."""

    def __init__(self, pools: Pools, sysfs: Sysfs) -> None:
        self._pools = pools
        self._sysfs = sysfs
        self._lock = threading.Lock()

    def lose(self, name: str, extent: int | None, why: str) -> int:
        """A data extent has gone with its device; None or -1, the metadata: the whole pool.

        Returns the pages that left; 0 for what is lost already. Raises NotFoundError,
        UsageError for an extent that is not there, CtlError, SacError.
        """
        served, pool = self._served(name)
        count = len(pool.extents())
        _check_extent(name, extent, count)
        with self._lock:
            new = set(range(count)) if extent in (None, META) else {int(extent or 0)}
            new -= served.lost.keys()
            if not new:
                return 0
            served.lost |= dict.fromkeys(sorted(new), why)
            whole = len(served.lost) == count
            if whole:
                served.state, served.reason = "lost", why
                served.hint = f"when its devices are back: sacctl pool assemble {name}"
        left = pool.lose(None if whole else extent)
        self._pools.forget_files(name)  # open files of a device that went stay dead
        what = "all of its memory" if whole else f"extent {extent}"
        log.error(f"pool {name} has lost {what}: {why}; {pages_gone(left)}", pool=name)
        return left

    def quarantine(self, name: str, extent: int, offset: int, size: int) -> int:
        """Takes the blocks of 2 MiB that these bytes lie in out of use; extent -1: of the
        metadata. Doing it again changes nothing.

        Returns the pages that left. Raises as lose().
        """
        served, pool = self._served(name)
        _check_extent(name, extent, len(pool.extents()))
        left = pool.quarantine(extent, offset, size)
        first, last = offset // BLOCK, (offset + size - 1) // BLOCK
        with self._lock:
            new = {(extent, block) for block in range(first, last + 1)} - served.poisoned
            served.poisoned |= new
        if new:
            where = "the metadata" if extent == META else f"extent {extent}"
            blocks = f"{len(new)} block{'s' if len(new) > 1 else ''} of 2 MiB"
            log.warning(
                f"{blocks} of {where} of pool {name}, from byte {first * BLOCK}, out of use: "
                f"poisoned; {pages_gone(left)}",
                pool=name,
            )
        return left

    def look(self) -> list[str]:
        """Whether the devices of every pool are those that were opened; what is not is lost.

        Returns the names of pools that lost something. Raises nothing.
        """
        hit = []
        for served in self._pools.all():
            for mark in served.marks:
                if served.pool is None or mark.extent in served.lost or served.state == "lost":
                    continue
                try:
                    why = gone(self._sysfs, mark)
                    if why:
                        hit.append(served.name)
                        self.lose(served.name, mark.extent, why)
                except (CtlError, SacError, OSError) as error:
                    log.error(f"{mark.dax} cannot be looked at: {error}", pool=served.name)
        return sorted(set(hit))

    def _served(self, name: str) -> tuple[Served, SharedPool]:
        served = self._pools.get(name)
        if served.pool is None:
            raise not_served(served)
        return served, served.pool


def _check_extent(name: str, extent: int | None, count: int) -> None:
    if extent is not None and not META <= extent < count:
        raise UsageError(
            f"pool '{name}' has no extent {extent}; it has 0 to {count - 1}, and -1 is the "
            "metadata",
            object=name,
        )
