# SPDX-License-Identifier: Apache-2.0
"""A machine for tests of sacctl.pool, and steps that fail or are killed on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.pool_kit import FakeCore, FakeDaemon, picture

from sacctl import paths
from sacctl.pool import native, steps
from sacctl.pool.create import Created, create
from sacctl.pool.record import Records
from sacctl.pool.spec import Spec

M = 1 << 20


class House:
    """A machine in a temporary folder: /dev/shm, records, a core, a daemon."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.shm = root / "shm"
        self.shm.mkdir()
        monkeypatch.setattr(paths, "SHM", self.shm)
        self.records = Records(root / "etc" / "pools.d")
        self.core = FakeCore()
        self.daemon = FakeDaemon(self.core)
        for name in ("format_pool", "inspect_pool", "extend_pool"):
            monkeypatch.setattr(native, name, getattr(self.core, name))
        self.folder = self.shm / f"sac-{os.geteuid()}" / "kv"

    def create(self, *sizes: int, daemon: bool = False, **more: Any) -> Created:
        spec = Spec("kv", sizes or (4 * M,) * 2, path=more.pop("path", ""))
        return create(spec, self.records, daemon=self.daemon if daemon else None, **more)

    def picture(self) -> dict[str, object]:
        return picture(self.root)

    def whole(self) -> None:
        """The pool is there as asked for, and nothing beside it."""
        record = self.records.get("kv")
        assert record.state == "ready"
        files = {path.name for path in self.folder.iterdir()}
        assert files == {"meta", *(Path(path).name for path in record.data)}
        self.daemon.stop()
        fds = {path: os.open(path, os.O_RDWR) for path in (record.meta, *record.data)}
        try:
            opened = self.core.inspect_pool(
                (fds[record.meta], record.meta), [(fds[path], path) for path in record.data]
            )
        finally:
            for fd in fds.values():
                os.close(fd)
        assert opened.uuid == record.uuid

    def gone(self) -> None:
        assert list(self.shm.iterdir()) == []
        assert self.records.names() == []


def fail_at(
    monkeypatch: pytest.MonkeyPatch, number: int, after: bool, how: Callable[[], None]
) -> list[str]:
    """Makes the step of that number, counted over all that is carried out, fail before or
    after its work. Returns a list that gets the step's name when it has come."""
    count, hit = 0, []
    original = steps.carry_out

    class Failing(steps.Step):
        def __init__(self, inner: steps.Step) -> None:
            self.inner = inner

        @property
        def final(self) -> bool:  # type: ignore[override]
            return self.inner.final

        @property
        def cut(self) -> bool:  # type: ignore[override]
            return self.inner.cut or (after and self.inner.final)

        @property
        def what(self) -> str:
            return self.inner.what

        def apply(self) -> None:
            hit.append(self.inner.what)
            if after:
                self.inner.apply()
            how()

        def undo(self) -> None:
            self.inner.undo()

    def carry_out(todo: Any, say: Any, **more: Any) -> None:
        nonlocal count
        todo = list(todo)
        at = number - count
        count += len(todo)
        if 0 <= at < len(todo):
            todo[at] = Failing(todo[at])
        original(todo, say, **more)

    for module in ("create", "destroy", "extend", "recordsteps"):
        monkeypatch.setattr(f"sacctl.pool.{module}.carry_out", carry_out)
    return hit


def disk_full() -> None:
    raise OSError(28, "No space left on device")


def interrupt() -> None:
    raise KeyboardInterrupt


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(work: Callable[[], object]) -> bool:
    """Does work in a child; whether it was killed there."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])
