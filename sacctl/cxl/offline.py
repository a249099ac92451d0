# SPDX-License-Identifier: Apache-2.0
"""Memory blocks of a dax device under kmem: counted, and taken offline with a time limit."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from sacctl.cxl.meanings import failed
from sacctl.cxl.model import Block
from sacctl.cxl.read import read
from sacctl.cxl.read_blocks import blocks_of
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.writes import echo
from sacctl.errors import PartlyError, RefusedError
from sacctl.pool.steps import Step

__all__ = [
    "Offline",
    "RefuseOnline",
    "block_path",
    "online",
    "refusal",
    "refuse_online",
    "report",
    "zones_of",
]

BOOT_FIX = "boot with memhp_default_state=offline"
_ONLINE_AGAIN = {"Movable": "online_movable", "Normal": "online_kernel"}


def block_path(block: Block) -> str:
    return f"/sys/devices/system/memory/memory{block.number}/state"


def online(blocks: Sequence[Block]) -> list[Block]:
    """Those that are in use as memory; one that is just going offline still is."""
    return [block for block in blocks if block.state != "offline"]


def zones_of(blocks: Sequence[Block]) -> list[str]:
    """Zones of the blocks that are online, such as ["Normal", "Movable"]."""
    return list(dict.fromkeys(block.zones or "unknown" for block in online(blocks)))


def report(blocks: Sequence[Block]) -> str:
    """ "504 of 512 blocks online in zone Normal"."""
    there = online(blocks)
    if not there:
        return f"0 of {len(blocks)} blocks online"
    zones = zones_of(blocks)
    if len(zones) == 1:
        return f"{len(there)} of {len(blocks)} blocks online in zone {zones[0]}"
    counts = ", ".join(f"{sum(b.zones == z for b in there)} in {z}" for z in zones)
    return f"{len(there)} of {len(blocks)} blocks online ({counts})"


def refusal(name: str, blocks: Sequence[Block]) -> RefusedError:
    """Why the driver kmem may not be taken from a dax device with these blocks."""
    movable = all(zone == "Movable" for zone in zones_of(blocks))
    hint = (
        f"--force-offline takes them offline first; to keep them offline, {BOOT_FIX}"
        if movable
        else f"memory outside zone Movable stays until a reboot: {BOOT_FIX}"
    )
    return RefusedError(
        f"{name} is system RAM: {report(blocks)}; unbinding it now would lose the memory until "
        "the next reboot",
        object=name,
        hint=hint,
    )


def refuse_online(sysfs: Sysfs, name: str) -> None:
    """Raises RefusedError where a memory block of the dax device is online."""
    blocks = _blocks(sysfs, name)
    if online(blocks):
        raise refusal(name, blocks)


class RefuseOnline(Step):
    """Fails where a memory block of the dax device is online when its turn comes."""

    def __init__(self, sysfs: Sysfs, name: Callable[[], str]) -> None:
        self._sysfs, self._name = sysfs, name

    @property
    def what(self) -> str:
        return f"check that no memory block of {self._name()} is online"

    def apply(self) -> None:
        refuse_online(self._sysfs, self._name())


class Offline(Step):
    """Takes the blocks that are online offline, one after the other, each at most so many
    seconds. Those that cannot go stay, and it fails with their number; with leak it goes on,
    and says in done what remains.

    Attributes:
        lines: what became of each block.
    """

    def __init__(
        self,
        sysfs: Sysfs,
        name: Callable[[], str],
        *,
        seconds: float,
        leak: bool = False,
    ) -> None:
        self._sysfs, self._name, self._seconds, self._leak = sysfs, name, seconds, leak
        self.lines: list[str] = []
        self._moved: list[Block] = []

    @property
    def what(self) -> str:
        return (
            f"echo offline > each online memory block's state of {self._name()} (at most "
            f"{self._seconds:g} s a block)"
        )

    def apply(self) -> None:
        self.lines.clear()
        for block in online(_blocks(self._sysfs, self._name())):
            self._moved.append(block)
            code = _write_in_time(self._sysfs, block_path(block), "offline", self._seconds)
            said = "offline" if not code else f"stays online in {block.zones}: {_why(code)}"
            self.lines.append(f"memory{block.number}: {said}")
            if code:
                self._moved.pop()
        blocks = _blocks(self._sysfs, self._name())
        stay = online(blocks)
        if stay and not self._leak:
            raise RefusedError(
                f"{self._name()}: {report(blocks)}; "
                + "; ".join(line for line in self.lines if "stays" in line),
                object=self._name(),
                hint=f"end what uses the memory (numastat -p), or {BOOT_FIX}",
            )

    def undo(self) -> None:
        """Online again, in the zone where each was."""
        failures = []
        for block in reversed(self._moved):
            path, value = block_path(block), _ONLINE_AGAIN.get(block.zones, "online")
            if not self._sysfs.exists(path):
                continue
            try:
                if self._sysfs.get(path).strip() == "offline":
                    self._sysfs.write(path, value)
            except OSError as error:
                failures.append(str(failed(self._sysfs, "offline", echo(path, value), error)))
        self._moved.clear()
        if failures:
            raise PartlyError("; ".join(failures), object=self._name())


def _blocks(sysfs: Sysfs, name: str) -> tuple[Block, ...]:
    return blocks_of(sysfs, read(sysfs), name)


def _why(code: int) -> str:
    return {
        errno.EBUSY: "pages in use that cannot be moved",
        errno.ETIMEDOUT: "it took too long",
        errno.EAGAIN: "it took too long",
        errno.EINTR: "it took too long",
    }.get(code, os.strerror(code))


def _write_in_time(sysfs: Sysfs, path: str, value: str, seconds: float) -> int:
    """The errno, 0 if it went well. The kernel tries for as long as there is no signal: a
    child writes, and is killed when the time is over."""
    child = os.fork()
    if child == 0:
        code = errno.EIO
        try:
            sysfs.write(path, value)
            code = 0
        except OSError as error:
            code = error.errno or errno.EIO
        finally:
            os._exit(code & 0xFF)
    done: list[int] = []
    fd = os.pidfd_open(child)
    try:
        done = select.select([fd], [], [], seconds)[0]
    finally:
        if not done:  # too late, or Ctrl-C
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os.close(fd)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        # It may have been done in the last moment.
        return 0 if sysfs.get(path).strip() == value else errno.ETIMEDOUT
    return status
