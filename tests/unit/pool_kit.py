# SPDX-License-Identifier: Apache-2.0
"""Pools without the native module: superblocks written as docs/format.md says, a daemon that
remembers, and a picture of a folder to compare with."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sacctl.daemon.link import Peer
from sacctl.errors import BusyError, CtlError, NotFoundError
from sacctl.pool import native, superblock
from sacctl.pool.spec import SLAB

File = tuple[int, str]


def write_superblock(fd: int, uuid: bytes, sizes: Sequence[int], sequence: int) -> None:
    block = bytearray(4096)
    struct.pack_into("<8sII16sQI", block, 0, b"SACPOOL\0", 1, 1, uuid, sequence, 1)
    struct.pack_into("<Q", block, 64, sequence)
    struct.pack_into("<II", block, 88, 1, len(sizes))
    for i, size in enumerate(sizes):
        struct.pack_into("<Q", block, 256 + 48 * i, size)
    struct.pack_into("<I", block, 4092, superblock.crc32c(bytes(block[:-4])))
    os.pwrite(fd, block, sequence % 2 * 4096)


class FakeCore:
    """In place of sacctl.pool.native's three functions. calls: what was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def format_pool(self, meta: File, data: Sequence[File]) -> native.Opened:
        self.calls.append("format")
        for fd, path in (meta, *data):
            assert os.pread(fd, 1 << 20, 0).strip(b"\0") == b"", path
        uuid = os.urandom(16)
        write_superblock(meta[0], uuid, [os.fstat(fd).st_size for fd, _ in data], 1)
        return self.inspect_pool(meta, data)

    def inspect_pool(self, meta: File, data: Sequence[File]) -> native.Opened:
        self.calls.append("inspect")
        for fd, path in (meta, *data):
            _flock(fd, path)
        found = superblock.read(meta[0])
        assert found is not None
        sizes = tuple(os.fstat(fd).st_size for fd, _ in data)
        assert found.extents == sizes
        for fd, _ in (meta, *data):
            fcntl.flock(fd, fcntl.LOCK_UN)
        return native.Opened(found.uuid, sum(sizes) - SLAB * len(sizes), len(sizes))

    def extend_pool(
        self, meta: File, data: Sequence[File], new: Sequence[File]
    ) -> native.Opened:
        self.calls.append("extend")
        old = superblock.read(meta[0])
        assert old is not None
        sizes = [*old.extents, *(os.fstat(fd).st_size for fd, _ in new)]
        write_superblock(meta[0], bytes.fromhex(old.uuid), sizes, old.incarnation + 1)
        return self.inspect_pool(meta, [*data, *new])


def _flock(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BusyError(f"{path} is open elsewhere", object=path) from error


class FakeDaemon:
    """Keeps the pools it was given, and locks on their files. core does its extending.

    refuse: error that the next call of an op raises. peer: it runs as this test's user.
    """

    def __init__(self, core: FakeCore) -> None:
        self.core = core
        self.peer = Peer(os.getpid(), os.geteuid(), os.getegid())
        self.pools: dict[str, dict[str, Any]] = {}
        self.fds: dict[str, list[File]] = {}
        self.refuse: dict[str, Exception] = {}
        self.lose_answer: dict[str, Exception] = {}
        self.dead = False

    def call(
        self, op: str, fds: Sequence[int] = (), *, timeout: float | None = None, **args: Any
    ) -> dict[str, Any]:
        if self.dead:
            raise CtlError("the daemon: the connection broke")
        if op in self.refuse:
            raise self.refuse.pop(op)
        method = getattr(self, "_" + op.replace(".", "_"))
        answer: dict[str, Any] = method([os.dup(fd) for fd in fds], **args)
        if op in self.lose_answer:
            raise self.lose_answer.pop(op)
        return answer

    def again(self) -> FakeDaemon:
        """As of a Link: itself, or NotFoundError once it was killed."""
        if self.dead:
            raise NotFoundError("no daemon listens")
        return self

    def die(self) -> None:
        """As one that is killed: it has let go of all, and its connections are broken."""
        self.stop()
        self.dead = True

    def _pool_add(self, fds: list[int], record: dict[str, Any]) -> dict[str, Any]:
        name = record["name"]
        if name in self.pools:
            for fd in fds:
                os.close(fd)
            return {"pool": self.pools[name], "added": False}
        files = list(zip(fds, [record["meta"], *record["data"]], strict=True))
        for file in files:
            _flock(*file)
        self.fds[name] = files
        self.pools[name] = {"name": name, "uuid": record["uuid"], "state": "serving"}
        return {"pool": self.pools[name], "added": True}

    def _pool_show(self, fds: list[int], name: str) -> dict[str, Any]:
        if name not in self.pools:
            raise NotFoundError(f"no pool {name}")
        return {"pool": self.pools[name]}

    def _pool_extend(self, fds: list[int], name: str, record: dict[str, Any]) -> dict[str, Any]:
        meta, *data = self.fds[name]
        new = list(zip(fds, record["data"][len(data) :], strict=True))
        self.core.extend_pool(meta, data, new)
        self.fds[name] = [meta, *data, *new]
        return {"pool": self.pools[name]}

    def _pool_remove(self, fds: list[int], name: str, lost: bool = False) -> dict[str, Any]:
        if name not in self.pools:
            raise NotFoundError(f"no pool {name}")
        if lost and not any(e.get("lost") for e in self.pools[name].get("extents", ())):
            return {"pool": name, "closed": False}
        del self.pools[name]
        for fd, _ in self.fds.pop(name):
            os.close(fd)
        return {"pool": name}

    def stop(self) -> None:
        for name in list(self.pools):
            self._pool_remove([], name)


def picture(*roots: Path) -> dict[str, object]:
    """All files and folders below roots: mode and size, records with their text."""
    found: dict[str, object] = {}
    for root in roots:
        for path in sorted(root.rglob("*")):
            info = path.lstat()
            text = path.read_text() if path.suffix == ".toml" else ""
            size = 0 if path.is_dir() else info.st_size
            found[str(path)] = (oct(info.st_mode), size, text)
    return found
