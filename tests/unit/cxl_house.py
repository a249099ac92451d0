# SPDX-License-Identifier: Apache-2.0
"""A simulated machine with pools on it, and ways to fail or be killed at each of its writes."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cxlsim
import pytest
from unit.pool_house import killed
from unit.pool_kit import FakeCore, FakeDaemon, File, picture

from sacctl.cxl.read import read
from sacctl.pool import native, superblock
from sacctl.pool.create import Created
from sacctl.pool.cxl_adopt import adopt
from sacctl.pool.cxl_assemble import Assembled, assemble
from sacctl.pool.cxl_create import create
from sacctl.pool.cxl_destroy import CxlDestroyed, destroy
from sacctl.pool.cxl_spec import CxlSpec
from sacctl.pool.record import Record, Records

M = 1 << 20


class Core(FakeCore):
    """Writes the data extents' superblocks too."""

    def format_pool(self, meta: File, data: Sequence[File]) -> native.Opened:
        opened = super().format_pool(meta, data)
        for position, (fd, _) in enumerate(data):
            block = bytearray(4096)
            uuid = bytes.fromhex(opened.uuid)
            struct.pack_into("<8sII16sQII", block, 0, b"SACPOOL\0", 1, 1, uuid, 1, 2, position)
            struct.pack_into("<I", block, 4092, superblock.crc32c(bytes(block[:-4])))
            os.pwrite(fd, block, 4096)
        return opened


class Daemon(FakeDaemon):
    """Makes namespaces too. namespaces: pool and name of each."""

    def __init__(self, core: FakeCore) -> None:
        super().__init__(core)
        self.namespaces: set[tuple[str, str]] = set()

    def _namespace_create(
        self, fds: list[int], pool: str, name: str, **more: Any
    ) -> dict[str, Any]:
        assert pool in self.pools
        self.namespaces.add((pool, name))
        return {}

    def _namespace_destroy(self, fds: list[int], pool: str, name: str) -> dict[str, Any]:
        self.namespaces.discard((pool, name))
        return {}


class CxlHouse:
    """The machine, records, a core in Python and a daemon. A context manager."""

    def __init__(
        self,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        topology: str = "2hb2",
        **options: Any,
    ) -> None:
        self.root, self.topology, self.options = root, topology, options
        self.machine = cxlsim.Machine(root / "m", topology, seed=1, **options)
        self.records = Records(root / "pools.d")
        self.core = Core()
        self.daemon = Daemon(self.core)
        for name in ("format_pool", "inspect_pool", "extend_pool"):
            monkeypatch.setattr(native, name, getattr(self.core, name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.daemon.stop()
        self.machine.__exit__(kind, value, trace)

    def reboot(self) -> None:
        """Another machine over the same memory: new names, nothing assembled."""
        self.daemon.stop()
        self.machine.kernel.media.keep()
        self.machine.close()
        self.machine = cxlsim.Machine(self.root / "m", self.topology, seed=2, **self.options)

    def devices(self) -> tuple[str, ...]:
        return tuple(m.identity for m in read(self.machine.sysfs).memdevs)

    def create(
        self, *devices: str, daemon: bool = False, name: str = "kv", **more: Any
    ) -> Created:
        keys = ("bytes", "granularity", "mode", "room")
        asked = {key: more.pop(key) for key in keys if key in more}
        spec = CxlSpec(name, devices or self.devices(), **asked)
        given = self.daemon if daemon else None
        uid = os.geteuid()
        return create(
            spec, self.machine.sysfs, self.records, daemon=given, owner=uid, **more
        ).made

    def adopt(
        self, target: str, daemon: bool = False, name: str = "kv", **more: Any
    ) -> Created:
        given = self.daemon if daemon else None
        uid = os.geteuid()
        sysfs = self.machine.sysfs
        return adopt(name, target, sysfs, self.records, daemon=given, owner=uid, **more)

    def assemble(self, daemon: bool = False, name: str = "kv", **more: Any) -> Assembled:
        given = self.daemon if daemon else None
        return assemble(name, self.machine.sysfs, self.records, daemon=given, **more)

    def destroy(self, daemon: bool = False, name: str = "kv", **more: Any) -> CxlDestroyed:
        given = self.daemon if daemon else None
        return destroy(name, self.machine.sysfs, self.records, daemon=given, **more)

    def look(self) -> dict[str, object]:
        """The machine and the records, to compare: but for what a kernel shows of its past."""
        shown = self.machine.snapshot()
        passing = [path for path in shown if path.endswith(("/dax_region/create", "boot_id"))]
        for path in passing:
            del shown[path]
        return {**shown, **picture(self.records.folder)}

    def record(self) -> Record:
        return self.records.get("kv")

    def writes(self, work: Callable[[], object]) -> int:
        """How many writes the kernel got of it."""
        before = len(self.machine.writes)
        work()
        return len(self.machine.writes) - before

    def kill_at(self, number: int, work: Callable[[], object]) -> bool:
        """Does work in a process that is killed before its number-th write; whether it came
        so far. The kernel stays in this one."""

        def child() -> None:
            left = number
            sysfs = self.machine.sysfs
            write = sysfs.write

            def counted(path: str, value: str) -> None:
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                write(path, value)

            sysfs.write = counted  # type: ignore[method-assign]
            work()

        return killed(child)
