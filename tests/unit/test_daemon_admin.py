# SPDX-License-Identifier: Apache-2.0
"""Administration requests over stand-ins: answers, permissions, hostile input."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.fake_daemon import LAYOUT, SLAB, Desk, FakePool, client, desk, record, table

from libsac.errors import CorruptError, SystemCallError
from libsac.server import AdminRequest
from sacctl.daemon import opener as opener_module
from sacctl.daemon.ops import HANDLERS
from sacctl.errors import RefusedError

OWNER, GROUP, STRANGER = 1001, 2002, 1999


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    # The daemon's own user must be nobody else who asks.
    monkeypatch.setattr(os, "geteuid", lambda: 77)
    return desk(tmp_path, admin_group="4242")


@pytest.fixture
def pool(here: Desk) -> FakePool:
    pool = here.serve(FakePool())
    pool.put("chat", uid=OWNER, gid=GROUP, mode=0o640)
    return pool


# --------------------------------------------------------------------- each operation


def test_status(here: Desk, pool: FakePool) -> None:
    here.server.held = [table(1, "kv", "chat")]
    here.server.attached = [client(1)]
    result = here.ask("status", uid=STRANGER)
    assert result["daemon"]["pid"] == os.getpid()
    assert (result["daemon"]["pools"], result["daemon"]["namespaces"]) == (1, 1)
    assert result["daemon"]["state"] == "serving"
    assert result["daemon"]["open_files"] > 0
    assert result["daemon"]["memory_bytes"] > 1 << 20
    assert [p["name"] for p in result["pools"]] == ["kv"]
    assert result["pools"][0]["clients"] == 1


def test_create_belongs_to_who_asks(here: Desk, pool: FakePool) -> None:
    args: dict[str, Any] = {
        "pool": "kv",
        "name": "new",
        "layout": LAYOUT,
        "quota": "64M",
        "mode": "0640",
    }
    result = here.ask("namespace.create", uid=OWNER, gid=GROUP, **args)
    made = result["namespace"]
    assert result["created"] is True
    assert (made["uid"], made["gid"], made["mode"]) == (OWNER, GROUP, "0640")
    assert made["quota_bytes"] == 64 << 20
    # The same again is there already; another specification is refused.
    assert here.ask("namespace.create", uid=OWNER, **args)["created"] is False
    error = here.error("namespace.create", uid=OWNER, **{**args, "quota": "128M"})
    assert error["kind"] == "failed"
    assert "quota" in error["message"]
    error = here.error("namespace.create", uid=OWNER, **{**args, "mode": 0o600})
    assert "its mode is 0640, not 0600" in error["message"]


def test_the_only_pool_needs_no_name(here: Desk, pool: FakePool) -> None:
    assert here.ask("namespace.show", name="chat")["namespace"]["pool"] == "kv"
    here.serve(FakePool(uuid="cd" * 16), "other")
    error = here.error("namespace.show", name="chat")
    assert error["kind"] == "usage"
    assert "kv, other" in error["message"]


def test_show_has_layout_and_holders(here: Desk, pool: FakePool) -> None:
    here.server.attached = [client(1), client(2)]
    here.server.held = [
        table(1, "kv", "chat", pinned=2),
        table(2, "kv", "chat", pinned=3, reservations=1),
        table(2, "kv", "other", pinned=9),
    ]
    result = here.ask("namespace.show", pool="kv", name="chat")
    assert result["namespace"]["layout"]["page_tokens"] == LAYOUT["page_tokens"]
    assert [(h["pid"], h["pinned"]) for h in result["clients"]] == [(1002, 3), (1001, 2)]


def test_flush_says_what_stayed_and_why(here: Desk, pool: FakePool) -> None:
    pool.count("chat", pages=10, pinned=3)
    here.server.attached = [client(1)]
    here.server.held = [table(1, "kv", "chat", pinned=3)]
    result = here.ask("namespace.flush", uid=OWNER, pool="kv", name="chat")
    assert (result["evicted"], result["pages"], result["pinned"]) == (7, 3, 3)
    assert [h["client"] for h in result["holders"]] == [(1).to_bytes(16, "big").hex()]


def test_resize_verify_destroy(here: Desk, pool: FakePool) -> None:
    resized = here.ask("namespace.resize", uid=OWNER, pool="kv", name="chat", quota=SLAB)
    assert resized["namespace"]["quota_bytes"] == SLAB
    assert here.ask("namespace.verify", uid=OWNER, pool="kv", name="chat")["dropped"] == 0
    pool.count("chat", pages=1, pinned=1)
    assert here.error("namespace.destroy", pool="kv", name="chat")["kind"] == "busy"
    pool.count("chat", pinned=0)
    here.ask("namespace.destroy", uid=OWNER, pool="kv", name="chat")
    assert here.error("namespace.show", pool="kv", name="chat")["kind"] == "not_found"


def test_a_damaged_namespace_is_listed_and_can_go(here: Desk, pool: FakePool) -> None:
    pool.damaged.add("bad")
    listed = here.ask("namespace.list")["namespaces"]
    assert [(n["name"], n["state"]) for n in listed] == [
        ("bad", "damaged"),
        ("chat", "serving"),
    ]
    assert "damaged" in listed[0]["reason"]
    assert set(listed[0]) == set(listed[1])
    assert here.error("namespace.destroy", uid=STRANGER, pool="kv", name="bad")
    here.ask("namespace.destroy", uid=0, pool="kv", name="bad")


def test_clients(here: Desk) -> None:
    here.server.attached = [client(2, connected=False), client(1)]
    here.server.held = [table(1, "kv", "chat", pinned=4, reservations=2, writable=False)]
    clients = here.ask("client.list", uid=STRANGER)["clients"]
    assert [c["pid"] for c in clients] == [1001, 1002]
    assert (clients[0]["pinned"], clients[0]["reservations"]) == (4, 2)
    assert clients[0]["tables"][0]["writable"] is False
    assert clients[0]["lost_ms"] == 0
    time.sleep(0.02)
    assert here.ask("client.list")["clients"][1]["lost_ms"] >= 10
    gone = here.ask("client.evict", id=clients[0]["id"], kill=True)
    assert gone == {"client": clients[0]["id"], "pid": 1001, "killed": True}
    assert here.server.evicted == [(bytes.fromhex(clients[0]["id"]), True)]


def test_client_by_the_beginning_of_its_id(here: Desk) -> None:
    here.server.attached = [client(1), client(2), client(3, id=bytes([0xAB] * 16))]
    assert here.ask("client.evict", id="ABAB")["pid"] == 1003
    assert "2 clients" in here.error("client.evict", id="0000")["message"]
    assert here.error("client.evict", id="ffff")["kind"] == "not_found"
    assert here.error("client.evict", id="xyz!")["kind"] == "usage"


def test_stats(here: Desk, pool: FakePool) -> None:
    pool.count("chat", pages=4, lookups=10, hits=7, evictions=2)
    latency = np.zeros((4, 128), np.uint64)
    latency[0, 40] = 5  # lookups of 2^10 ns
    here.server.attached = [client(1)]
    here.server.held = [table(1, "kv", "chat", lookups=10, hits=7, latency=latency)]
    result = here.ask("stats")
    assert result["stats"]["namespaces"] == []  # they follow
    assert result["stats"]["clients"][0]["misses"] == 3
    assert result["stats"]["pools"][0]["hits"] == 7
    spaces = here.ask("stats", after="")["stats"]["namespaces"]
    assert spaces[0]["misses"] == 3
    assert spaces[0]["clients"] == 1
    assert spaces[0]["latency"]["lookup"]["count"] == 5
    assert spaces[0]["latency"]["lookup"]["p50_ns"] == 1280
    only = here.ask("stats", client="ffff")["stats"]
    assert only["clients"] == []
    assert here.error("stats", pool="none")["kind"] == "not_found"


def test_metrics_and_health(here: Desk, pool: FakePool) -> None:
    text = here.ask("metrics")["text"]
    assert 'sac_namespace_pages{pool="kv",namespace="chat"} 0' in text
    assert here.ask("health") == {
        "status": "ok", "checks": here.ask("health")["checks"], "findings": [],
    }  # fmt: skip


# ------------------------------------------------------------------------- permissions


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("reload", {}),
        ("pool.add", {"record": record().to_dict()}),
        ("pool.extend", {"name": "kv", "record": record(extents=2).to_dict()}),
        ("pool.remove", {"name": "kv"}),
        ("client.evict", {"id": "00" * 16}),
    ],
)
def test_administrators_only(here: Desk, pool: FakePool, op: str, args: dict[str, Any]) -> None:
    error = here.error(op, uid=OWNER, gid=GROUP, groups=[7], **args)
    assert error["kind"] == "permission"
    assert str(OWNER) in error["message"]
    # The group's members, root and the daemon's user get past that.
    for who in ({"uid": OWNER, "groups": [4242]}, {"uid": OWNER, "gid": 4242}, {"uid": 77}):
        answer = here.raw(json.dumps({"op": op, **args}).encode(), **who)
        assert answer.get("error", {}).get("kind") != "permission"
        here.serve(pool)


@pytest.mark.parametrize("op", ["namespace.resize", "namespace.destroy"])
def test_owners_only(here: Desk, pool: FakePool, op: str) -> None:
    args: dict[str, Any] = {"pool": "kv", "name": "chat"} | (
        {"quota": 0} if op.endswith("resize") else {}
    )
    error = here.error(op, uid=STRANGER, gid=GROUP, groups=[4242], **args)
    assert error["kind"] == "permission"
    assert error["object"] == "chat"
    here.ask(op, uid=OWNER, **args)


@pytest.mark.parametrize("op", ["namespace.flush", "namespace.verify"])
@pytest.mark.parametrize(
    ("mode", "who", "allowed"),
    [
        (0o640, {"uid": STRANGER, "gid": GROUP}, False),
        (0o660, {"uid": STRANGER, "gid": GROUP}, True),
        (0o660, {"uid": STRANGER, "gid": 1, "groups": [5, GROUP]}, True),
        (0o660, {"uid": STRANGER, "gid": 1}, False),
        (0o602, {"uid": STRANGER, "gid": 1}, True),
        (0o602, {"uid": STRANGER, "gid": GROUP}, False),  # the group's bits count for it
        (0o400, {"uid": OWNER}, True),
        (0o600, {"uid": 0}, True),
    ],
)
def test_writers(
    here: Desk, pool: FakePool, op: str, mode: int, who: dict[str, Any], allowed: bool
) -> None:
    pool.put("ns", uid=OWNER, gid=GROUP, mode=mode)
    if allowed:
        here.ask(op, pool="kv", name="ns", **who)
    else:
        assert here.error(op, pool="kv", name="ns", **who)["kind"] == "permission"


def test_creators(tmp_path: Path) -> None:
    here = desk(tmp_path, creators_group="3003")
    here.serve(FakePool())
    args: dict[str, Any] = {"pool": "kv", "name": "n", "layout": LAYOUT}
    assert here.error("namespace.create", uid=STRANGER, **args)["kind"] == "permission"
    here.ask("namespace.create", uid=STRANGER, groups=[3003], **args)


# ------------------------------------------------------------------------------- pools


def test_add_opens_serves_and_closes_the_fds(
    here: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[Any] = []

    def open_(record: Any, fds: Any = None, *_: Any) -> FakePool:
        got.append([os.fstat(fd).st_ino for fd in fds])
        return FakePool()

    monkeypatch.setattr(opener_module, "open_record", open_)
    fds = [os.memfd_create(name) for name in ("meta", "data")]
    nodes = [os.fstat(fd).st_ino for fd in fds]
    result = here.ask("pool.add", fds=fds, record=record().to_dict())
    assert (result["added"], result["pool"]["state"]) == (True, "serving")
    assert got == [nodes]
    assert "kv" in here.server.pools
    for fd in fds:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)
    assert here.ask("pool.add", record=record().to_dict())["added"] is False
    error = here.error("pool.add", record=record(uuid="cd" * 16).to_dict())
    assert error["kind"] == "refused"


def test_files_of_another_pool_are_refused(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = FakePool(uuid="ee" * 16)
    monkeypatch.setattr(opener_module, "open_record", lambda record, *_: opened)
    error = here.error("pool.add", record=record().to_dict())
    assert "of another pool" in error["message"]
    assert opened.closed
    assert here.error("pool.show", name="kv")["kind"] == "not_found"


def test_a_wrong_number_of_fds(here: Desk) -> None:
    fds = [os.memfd_create("one")]
    error = here.error("pool.add", fds=fds, record=record().to_dict())
    assert error["kind"] == "usage"
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fds[0])


def test_extend(here: Desk, pool: FakePool, tmp_path: Path) -> None:
    # A file with a name: one without, such as a memfd, counts as removed meanwhile.
    fd = os.open(tmp_path / "data.1", os.O_RDWR | os.O_CREAT)
    result = here.ask("pool.extend", fds=[fd], name="kv", record=record(extents=2).to_dict())
    assert [e["path"] for e in result["pool"]["extents"]][-1].endswith("data.1")
    error = here.error("pool.extend", name="kv", record=record(extents=1).to_dict())
    assert error["kind"] == "usage"
    assert "added at its end" in error["message"]


def test_remove_is_refused_while_clients_are_attached(here: Desk, pool: FakePool) -> None:
    here.server.held = [table(1, "kv", "chat")]
    error = here.error("pool.remove", name="kv")
    assert error["kind"] == "refused"
    assert not pool.closed
    here.server.held = []
    here.ask("pool.remove", name="kv")
    assert pool.closed
    assert here.ask("pool.list")["pools"] == []


def test_pools_that_cannot_be_opened(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = here.service.settings.pools.dir
    folder.mkdir()
    from sacctl.pool.record import Records

    names = ("bad", "denied", "gone", "good", "half", "odd", "other")
    for name in names:
        state = "creating" if name == "half" else "ready"
        Records(folder).write(record(name).with_(state=state))
    (folder / "torn.toml").write_text("name = ")

    def open_(record: Any, fds: Any = None, *_: Any) -> FakePool:
        if record.name == "bad":
            raise CorruptError("no valid superblock", object="meta", offset=0)
        if record.name == "denied":
            raise PermissionError(13, "Permission denied", record.meta)
        if record.name == "gone":
            raise SystemCallError("cannot open meta", object="meta", errno=2)
        if record.name == "odd":
            raise RuntimeError("a bug")
        if record.name == "other":
            raise RefusedError("others may write")
        return FakePool()

    monkeypatch.setattr(opener_module, "open_record", open_)
    assert here.service.pools.load(folder) == ["good"]
    pools = {p["name"]: p for p in here.ask("pool.list")["pools"]}
    assert set(pools) == {*names, "torn"}
    assert {n: p["state"] for n, p in pools.items() if p["state"] != "absent"} == {
        "good": "serving",
        "bad": "damaged",
    }
    assert "same spec again" in pools["denied"]["hint"]
    assert "half made" in pools["half"]["reason"]
    assert "a bug" in pools["odd"]["reason"]
    for name, found in pools.items():
        assert name == "good" or found["reason"], name
    assert here.error("namespace.list", pool="gone")["kind"] == "not_found"
    status = here.ask("status")["daemon"]
    assert (status["pools"], status["absent_pools"]) == (1, 7)
    codes = {f["code"] for f in here.ask("health")["findings"]}
    assert codes == {"SAC201", "SAC202"}
    # A reload tries them again.
    monkeypatch.setattr(opener_module, "open_record", lambda record, *_: FakePool())
    assert set(here.ask("reload")["pools"]) == set(names) - {"good", "half"}


# ------------------------------------------------------------------------------ reload


def test_reload_takes_over_and_names_the_rest(here: Desk, tmp_path: Path) -> None:
    file = tmp_path / "sac.toml"
    base = f"[pools]\ndir = '{tmp_path}/pools.d'\n[daemon]\nrun_dir = '{tmp_path}/run'\n"
    changed: list[str] = []
    here.service.on_reload = lambda old, new: changed.append(new.metrics.listen)
    file.write_text(
        base + "max_clients = 9\nadmin_group = '5555'\n[metrics]\nlisten = '127.0.0.1:1'\n"
    )
    result = here.ask("reload")
    assert result["restart"] == ["daemon.max_clients"]
    assert result["applied"] == ["daemon.admin_group", "metrics.listen"]
    assert result["errors"] == []
    assert changed == ["127.0.0.1:1"]
    assert here.service.settings.daemon.max_clients == 1024
    assert here.service.access.admin_gid == 5555
    file.write_text("[daemon]\nnonsense = 1\n")
    result = here.ask("reload")
    assert "daemon.nonsense" in result["errors"][0]
    assert here.service.access.admin_gid == 5555
    assert here.service.state == "serving"


# ----------------------------------------------------------------------------- hostile


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"3", b"null", b"{}", b'{"op": 3}', b'{"op": null}', b"\xff\xfe",
        b'{"op": "no.such"}', b'{"op": "' + b"x" * 100_000 + b'"}', b"[" * 200_000,
        b'{"op": ' + b"9" * 10_000 + b"}", b'{"op": "status", "extra": 1}',
        b'{"op": "namespace.show"}', b'{"op": "namespace.show", "name": 7}',
        b'{"op": "namespace.show", "name": ""}',
        b'{"op": "namespace.show", "name": "a\\u0000"}',
        b'{"op": "namespace.show", "name": "\\ud800"}',
        b'{"op": "namespace.resize", "name": "chat", "quota": -1}',
        b'{"op": "namespace.resize", "name": "chat", "quota": 1e99}',
        b'{"op": "namespace.resize", "name": "chat", "quota": true}',
        b'{"op": "namespace.resize", "name": "chat", "quota": "2 parsecs"}',
        b'{"op": "namespace.create", "name": "x", "layout": []}',
        b'{"op": "namespace.create", "name": "x", "layout": {}}',
        b'{"op": "namespace.create", "name": "x", "layout": {"page_tokens": 1, "planes": 3}}',
        b'{"op": "pool.add", "record": {}}', b'{"op": "pool.add", "record": 7}',
        b'{"op": "client.evict", "id": {}}', b'{"op": "metrics", "after": -1}',
        b'{"op": "client.evict", "id": "0000", "kill": "yes"}',
    ],
    ids=lambda b: b[:50].decode(errors="replace"),
)  # fmt: skip
def test_hostile_requests_get_an_error(here: Desk, pool: FakePool, body: bytes) -> None:
    fds = [os.memfd_create("x")]
    error = here.raw(body, fds=fds)["error"]
    assert error["message"]
    assert len(error["message"]) < 2000
    assert "internal" not in error["message"]
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fds[0])


def test_unknown_arguments_name_the_nearest(here: Desk, pool: FakePool) -> None:
    error = here.error("namespace.list", poll="kv")
    assert error["kind"] == "usage"
    assert "pool" in error["message"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["pool", "name", "record", "layout", "quota", "id", "kill", "mode", "after", "model"]
)
_DESKS: list[Desk] = []


@given(op=st.sampled_from(sorted(HANDLERS)), args=st.dictionaries(NAMES, JSON))
def test_any_arguments_get_an_answer(
    tmp_path_factory: pytest.TempPathFactory, op: str, args: dict[str, Any]
) -> None:
    if not _DESKS:
        _DESKS.append(desk(tmp_path_factory.mktemp("any")))
    here = _DESKS[0]
    here.serve(FakePool()).put("chat")
    answer = here.raw(json.dumps({"op": op, **args}).encode())
    assert ("result" in answer) != ("error" in answer)
    if "error" in answer:
        assert "see the daemon's log" not in answer["error"]["hint"], answer


def test_a_handler_that_fails_is_an_error_and_no_end(here: Desk, pool: FakePool) -> None:
    def broken(call: Any) -> dict[str, Any]:
        raise ZeroDivisionError("division by zero")

    here.admin._handlers = {**here.admin._handlers, "status": broken}
    error = here.error("status")
    assert error["kind"] == "failed"
    assert "ZeroDivisionError" in error["message"]
    assert here.ask("pool.list")["pools"]


def test_workers_answer_and_end(here: Desk, pool: FakePool) -> None:
    here.admin.start()
    for number in range(20):
        body = b'{"op": "pool.list"}' if number % 2 else b"nonsense"
        here.server.requests.put(AdminRequest(number + 1, 1, 0, 0, (), (), body))
    answers = [here.server.answers.get(timeout=10) for _ in range(20)]
    assert sum("result" in a for a in answers) == 10
    here.server.stop()
    assert here.admin.join(10)


# -------------------------------------------------------------------------- many of them


def test_thousands_of_namespaces_come_in_parts(here: Desk, pool: FakePool) -> None:
    for number in range(9000):
        pool.put(f"n{number:05d}")
    seen, after, parts = [], "", 0
    started = time.monotonic()
    while True:
        body = json.dumps({"op": "namespace.list", "after": after}).encode()
        answer = here.raw(body)
        seen += [n["name"] for n in answer["result"]["namespaces"]]
        parts += 1
        if "next" not in answer:
            break
        after = answer["next"]
    assert time.monotonic() - started < 10
    assert parts == 3
    assert seen == sorted(pool.spaces)
    shown = here.raw(b'{"op": "pool.show", "name": "kv"}')
    assert len(shown["result"]["namespaces"]) == 4000
    again = here.raw(
        json.dumps({"op": "pool.show", "name": "kv", "after": shown["next"]}).encode()
    )
    assert again["result"]["namespaces"][0]["name"] > shown["result"]["namespaces"][-1]["name"]


def test_many_tables_come_in_parts(here: Desk) -> None:
    here.server.attached = [client(n) for n in range(5)]
    here.server.held = [table(n, "kv", f"s{i}") for n in range(5) for i in range(9000)]
    first = here.raw(b'{"op": "client.list"}')
    rest = here.raw(json.dumps({"op": "client.list", "after": first["next"]}).encode())
    pids = [c["pid"] for part in (first, rest) for c in part["result"]["clients"]]
    assert pids == [1000, 1001, 1002, 1003, 1004]
    assert "next" not in rest
