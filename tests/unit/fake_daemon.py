# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for libsac.server's Server and SharedPool, for tests of what is above them."""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from libsac import Layout
from libsac.errors import BusyError, ClosedError, CorruptError, ExistsError, NotFoundError
from libsac.pool import PoolInfo
from libsac.server import AdminRequest, ClientInfo, ExtentInfo, OpInfo, Server, TableInfo
from libsac.store import NamespaceInfo, NamespaceStats
from sacctl.daemon.admin import Admin
from sacctl.daemon.ops import HANDLERS
from sacctl.daemon.service import Service
from sacctl.daemon.unserved import Served
from sacctl.pool.record import Record
from sacctl.settings import load

SLAB = 2 << 20
LAYOUT = Layout.preset("deepseek-v3.2-fp8", layers=2).to_dict()


def record(name: str = "kv", uuid: str = "ab" * 16, extents: int = 1) -> Record:
    return Record(
        name=name,
        uuid=uuid,
        created="2026-01-01T00:00:00Z",
        meta=f"/dev/shm/none/{name}/meta",
        data=tuple(f"/dev/shm/none/{name}/data.{i}" for i in range(extents)),
        sizes=(64 << 20,) * extents,
    )


@dataclass
class FakePool:
    uuid: str = "ab" * 16
    size: int = 64 << 20
    free: int = 64 << 20
    spaces: dict[str, tuple[NamespaceInfo, NamespaceStats]] = field(default_factory=dict)
    layouts: dict[str, dict[str, Any]] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    files: list[ExtentInfo] = field(default_factory=list)
    closed: bool = False
    free_metadata_bytes: int = 1 << 20
    dead_blocks: int = 0
    recovered: bool = False
    read_only: str = ""
    page_size: int = 4096
    bad: list[tuple[int, int, int]] = field(default_factory=list)
    lost: list[int | None] = field(default_factory=list)

    @property
    def info(self) -> PoolInfo:
        return PoolInfo(
            uuid=bytes.fromhex(self.uuid), data_bytes=self.size, free_bytes=self.free,
            metadata_bytes=1 << 20, slab_bytes=SLAB, incarnation=1, extents=1,
            namespaces=len(self.spaces) + len(self.damaged),
            page_size_obtained=self.page_size, recovered=self.recovered, rebooted=False,
            dead_blocks=self.dead_blocks,
        )  # fmt: skip

    def extents(self) -> list[ExtentInfo]:
        return self.files or [ExtentInfo("/dev/shm/none/data.0", self.size, self.free)]

    def two_extents(self) -> None:
        self.files = [ExtentInfo(f"/dev/shm/none/data.{i}", SLAB, SLAB) for i in range(2)]

    def quarantine(self, extent: int, offset: int, size: int) -> int:
        self.bad.append((extent, offset, size))
        return 3

    def lose(self, extent: int | None) -> int:
        self.lost.append(extent)
        return 5

    def extend(self, extent: Any) -> None:
        os.fstat(extent.fd)
        self.files.append(ExtentInfo(extent.name, SLAB, SLAB))

    def namespaces(self) -> list[str]:
        return sorted([*self.spaces, *self.damaged])

    def inspect(self, name: str) -> tuple[NamespaceInfo, NamespaceStats]:
        if name in self.damaged:
            raise CorruptError(f"namespace '{name}' is damaged", object=name)
        if name not in self.spaces:
            raise NotFoundError(f"there is no namespace '{name}'", object=name)
        return self.spaces[name]

    def layout(self, name: str) -> Layout:
        return Layout.from_dict(self.layouts[name])

    def create_for(self, name: str, layout: Layout, uid: int, gid: int, **options: Any) -> None:
        if name in self.spaces:
            if layout.difference(Layout.from_dict(self.layouts[name])):
                raise ExistsError(f"namespace '{name}' has another layout", object=name)
            return
        self.layouts[name] = layout.to_dict()
        self.put(name, uid=uid, gid=gid, **options)

    def put(self, name: str, uid: int = 0, gid: int = 0, **options: Any) -> None:
        quota = options.pop("quota", None) or 0
        values: dict[str, Any] = {
            "model": "", "checksum": False, "token_ids": False, "key_scheme": "sac",
            "mode": 0o600, "policy": "lru",
        } | options  # fmt: skip
        info = NamespaceInfo(
            name=name, page_tokens=64, body_bytes=4096, tail_bytes=0, tail_pages=0,
            layout_hash=bytes(32), quota_bytes=quota, assigned_bytes=0, index_bytes=4096,
            capacity_pages=0, uid=uid, gid=gid, **values,
        )  # fmt: skip
        zeros = dict.fromkeys(NamespaceStats.__dataclass_fields__, 0)
        self.spaces[name] = info, NamespaceStats(**zeros)
        self.layouts.setdefault(name, LAYOUT)

    def count(self, name: str, **counters: int) -> None:
        info, stats = self.spaces[name]
        self.spaces[name] = info, replace(stats, **counters)

    def resize(self, name: str, quota: int) -> None:
        info, stats = self.inspect(name)
        self.spaces[name] = replace(info, quota_bytes=quota), stats

    def evict(self, name: str, count: int) -> int:
        _, stats = self.inspect(name)
        gone = min(count, stats.pages - stats.pinned)
        self.count(name, pages=stats.pages - gone)
        return gone

    def verify(self, name: str) -> tuple[int, int]:
        return self.inspect(name)[1].pages, 0

    def drop(self, name: str) -> None:
        if name in self.damaged:
            self.damaged.remove(name)
            return
        if self.inspect(name)[1].pinned:
            raise BusyError(f"namespace '{name}' is in use", object=name)
        del self.spaces[name]

    def close(self) -> None:
        self.closed = True


class FakeServer:
    """Requests come from ``ask``; answers are in ``answers``."""

    def __init__(self) -> None:
        self.pools: dict[str, FakePool] = {}
        self.attached: list[ClientInfo] = []
        self.held: list[TableInfo] = []
        self.served: list[OpInfo] = []
        self.evicted: list[tuple[bytes, bool]] = []
        self.forced: list[str] = []
        self.requests: queue.Queue[AdminRequest | None] = queue.Queue()
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.turns = 0
        self.moving = True
        self.stopped = False

    def add_pool(self, name: str, pool: FakePool) -> None:
        self.pools[name] = pool

    def remove_pool(self, name: str, *, force: bool = False) -> None:
        if force:
            self.forced.append(name)
        elif any(t.pool == name for t in self.held):
            raise BusyError(f"pool '{name}' is used by a client", object=name)
        if self.pools.pop(name, None) is None:
            raise NotFoundError(f"there is no pool '{name}'", object=name)

    def heartbeat(self) -> int:
        self.turns += self.moving
        return self.turns

    def clients(self) -> list[ClientInfo]:
        return list(self.attached)

    def tables(self) -> list[TableInfo]:
        return list(self.held)

    def ops(self) -> list[OpInfo]:
        return list(self.served)

    def evict(self, client: bytes, *, kill: bool = False) -> None:
        self.evicted.append((client, kill))

    def next_request(self, timeout: float) -> AdminRequest | None:
        if self.stopped:
            raise ClosedError("the server has stopped")
        try:
            return self.requests.get(timeout=min(timeout, 0.05))
        except queue.Empty:
            return None

    def answer(self, id: int, body: bytes) -> None:  # noqa: A002
        self.answers.put(json.loads(body))

    def stop(self) -> None:
        self.stopped = True


def client(number: int, **values: Any) -> ClientInfo:
    known: dict[str, Any] = {
        "id": number.to_bytes(16, "big"), "pid": 1000 + number, "uid": 0, "gid": 0,
        "connected": True, "tables": 1, "evicted": False, "start_time": 5,
        "since_ms": 1_000_000 + number, "requests": 3, "name": f"engine{number}",
    } | values  # fmt: skip
    return ClientInfo(**known)


def table(number: int, pool: str, name: str, **values: Any) -> TableInfo:
    known: dict[str, Any] = {
        "client": number.to_bytes(16, "big"), "pool": pool, "name": name, "table": number,
        "writable": True, "revoked": False, "pinned": 0, "reservations": 0, "lookups": 0,
        "hits": 0, "rows_gathered": 0, "bytes_gathered": 0, "bytes_written": 0, "puts": 0,
        "gathers": 0, "pins": 0, "latency": np.zeros((4, 128), np.uint64),
    } | values  # fmt: skip
    return TableInfo(**known)


@dataclass
class Desk:
    """A service over the stand-ins, and a way to ask it."""

    service: Service
    server: FakeServer
    admin: Admin

    def serve(self, pool: FakePool, name: str = "kv") -> FakePool:
        """As if it had a record and had been opened."""
        served = Served(name, record(name, pool.uuid), cast(Any, pool), "serving")
        self.service.pools._known.put(served)
        self.server.pools[name] = pool
        return pool

    def raw(self, body: bytes, uid: int = 0, gid: int = 0, groups: Sequence[int] = (),
            fds: Sequence[int] = ()) -> dict[str, Any]:  # fmt: skip
        """The whole answer to a request of this peer."""
        request = AdminRequest(1, os.getpid(), uid, gid, tuple(groups), tuple(fds), body)
        answer = json.loads(self.admin.handle(request))
        assert isinstance(answer, dict)
        return answer

    def ask(self, op: str, uid: int = 0, gid: int = 0, groups: Sequence[int] = (),
            fds: Sequence[int] = (), **args: Any) -> dict[str, Any]:  # fmt: skip
        """The result; what goes on is asked for until the end is there."""
        answer = self.raw(json.dumps({"op": op, **args}).encode(), uid, gid, groups, fds)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def error(self, op: str, uid: int = 0, gid: int = 0, groups: Sequence[int] = (),
              fds: Sequence[int] = (), **args: Any) -> dict[str, Any]:  # fmt: skip
        answer = self.raw(json.dumps({"op": op, **args}).encode(), uid, gid, groups, fds)
        assert "error" in answer, answer
        error: dict[str, Any] = answer["error"]
        assert set(error) == {"kind", "message", "object", "errno", "hint"}
        return error


def desk(tmp_path: Path, **daemon: str) -> Desk:
    """A daemon without pools; keywords are settings of [daemon]."""
    file = tmp_path / "sac.toml"
    lines = [f"{key} = {value!r}" for key, value in daemon.items()]
    file.write_text(
        "\n".join([f"[daemon]\nrun_dir = '{tmp_path}/run'", *lines])
        + f"\n[pools]\ndir = '{tmp_path}/pools.d'\n"
    )
    server = FakeServer()
    service = Service(load(file), cast(Server, server))
    service.state = "serving"
    return Desk(service, server, Admin(service, HANDLERS))
