# SPDX-License-Identifier: Apache-2.0
"""Operations on namespaces: list, show, create, resize, flush, verify, destroy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from libsac.errors import NotFoundError, SacError
from libsac.layout import Layout
from libsac.server import SharedPool
from libsac.store import KEY_SCHEMES, NamespaceInfo
from sacctl import errors
from sacctl.daemon.admin import Call, Handler, Part
from sacctl.daemon.describe import damaged_record, holders, namespace_record, namespaces
from sacctl.daemon.log import log
from sacctl.daemon.unserved import Served
from sacctl.errors import CtlError, UsageError
from sacctl.records import FlushRecord, NamespaceRecord

__all__ = ["HANDLERS", "page"]

PAGE = 4000  # namespaces an answer holds
POLICIES = ("lru",)
_MOST_ID = (1 << 32) - 2  # of users and groups
EVICT_AT_ONCE = 1 << 20


def page(served: Sequence[Served], after: str) -> Part:
    """{"namespaces": [...]} of the pools, those behind after ("pool/name") only."""
    pools = [(s.name, s.pool) for s in served if s.pool is not None]
    lost = {s.name: s.reason for s in served if s.state == "lost"}
    out: list[NamespaceRecord] = []
    after_pool, _, after_name = after.partition("/")
    for pool_name, pool in pools:
        if pool_name < after_pool:
            continue
        behind = after_name if pool_name == after_pool else ""
        for name, info, stats, damage in namespaces(pool, behind):
            if len(out) == PAGE:
                return Part({"namespaces": out}, f"{out[-1]['pool']}/{out[-1]['name']}")
            if info is None or stats is None:
                out.append(damaged_record(pool_name, name, damage))
            else:
                out.append(namespace_record(pool_name, info, stats))
            if pool_name in lost:
                out[-1]["state"], out[-1]["reason"] = "lost", lost[pool_name]
    return Part({"namespaces": out})


def list_(call: Call) -> Part:
    only, after = call.args.text("pool", None), call.args.text("after", "")
    call.args.done()
    pools = call.service.pools
    if only is not None:
        name, _ = pools.pick(only)
        return page([pools.get(name)], after)
    return page(pools.all(), after)


def show(call: Call) -> dict[str, Any]:
    pool_name, pool, name = _existing(call)
    call.args.done()
    record = _record(pool_name, pool, name)
    record["layout"] = pool.layout(name).to_dict()
    server = call.service.server
    return {
        "namespace": record,
        "clients": holders(server.clients(), server.tables(), pool_name, name),
    }


def create(call: Call) -> dict[str, Any]:
    args = call.args
    pool_name, pool, name = _named(call)
    layout = Layout.from_dict(args.table("layout"))
    model = args.text("model", "")
    quota = args.size("quota", 0)
    scheme = args.one_of("key_scheme", KEY_SCHEMES, "sac")
    policy = args.one_of("policy", POLICIES, "lru")
    mode = args.mode("mode", 0o600)
    checksum, token_ids = args.flag("checksum"), args.flag("token_ids")
    uid = args.whole("uid", call.peer.uid, high=_MOST_ID)
    gid = args.whole("gid", call.peer.gid, high=_MOST_ID)
    args.done()
    call.service.access.require_creator(call.peer)
    if (uid, gid) != (call.peer.uid, call.peer.gid):
        call.service.access.require_master(call.peer, "give a namespace to another owner")
    with call.service.creating:
        there = _is_there(pool, name)
        pool.create_for(
            name,
            layout,
            uid,
            gid,
            model=model,
            key_scheme=scheme,
            quota=quota or None,
            checksum=checksum,
            token_ids=token_ids,
            mode=mode,
            policy=policy,
        )
    if there:
        _same(pool.inspect(name)[0], pool.info.slab_bytes, quota, mode, policy)
    else:
        log.info(
            f"namespace {name} of user {uid} was created by user {call.peer.uid}",
            pool=pool_name,
            namespace=name,
        )
    return {"namespace": _record(pool_name, pool, name), "created": not there}


def _is_there(pool: SharedPool, name: str) -> bool:
    try:
        pool.inspect(name)  # of thousands, the list of names would take longer
    except NotFoundError:
        return False
    return True


def _same(info: NamespaceInfo, slab: int, quota: int, mode: int, policy: str) -> None:
    """The core compared layout, model, key scheme and flags; here is the rest."""
    differences = []
    # A quota counts in slabs.
    if -(-info.quota_bytes // slab) != -(-quota // slab):
        differences.append(f"its quota is {info.quota_bytes or 'none'}, not {quota or 'none'}")
    if info.mode != mode:
        differences.append(f"its mode is {info.mode:04o}, not {mode:04o}")
    if info.policy != policy:
        differences.append(f"its policy is {info.policy}, not {policy}")
    if differences:
        raise CtlError(
            f"namespace '{info.name}' is there already: {'; '.join(differences)}",
            object=info.name,
            hint=f"sacctl namespace show {info.name}",
        )


def resize(call: Call) -> dict[str, Any]:
    """quota: bytes; 0: none."""
    pool_name, pool, name = _existing(call)
    quota = call.args.size("quota")
    call.args.done()
    call.service.access.require_owner(call.peer, pool.inspect(name)[0], "resize")
    pool.resize(name, quota)
    log.info(
        f"quota of namespace {name} is now {quota or 'none'}", pool=pool_name, namespace=name
    )
    return {"namespace": _record(pool_name, pool, name)}


def flush(call: Call) -> dict[str, Any]:
    """Evicts all that is not pinned, and says what stayed because of whom."""
    pool_name, pool, name = _existing(call)
    call.args.done()
    call.service.access.require_writer(call.peer, pool.inspect(name)[0], "flush")
    evicted = 0
    while count := pool.evict(name, EVICT_AT_ONCE):
        evicted += count
    stats, server = pool.inspect(name)[1], call.service.server
    held = holders(server.clients(), server.tables(), pool_name, name)
    log.info(f"{evicted} page parts of {name} were flushed", pool=pool_name, namespace=name)
    result: FlushRecord = {
        "pool": pool_name,
        "namespace": name,
        "evicted": evicted,
        "pages": stats.pages,
        "tails": stats.tails,
        "pinned": stats.pinned,
        "reserved": stats.reserved,
        "holders": [h for h in held if h["pinned"] or h["reservations"]],
    }
    return dict(result)


def verify(call: Call) -> dict[str, Any]:
    pool_name, pool, name = _existing(call)
    call.args.done()
    call.service.access.require_writer(call.peer, pool.inspect(name)[0], "verify")
    checked, dropped = pool.verify(name)
    if dropped:
        log.warning(
            f"{dropped} of {checked} page parts of {name} did not verify and were dropped",
            pool=pool_name,
            namespace=name,
        )
    return {"pool": pool_name, "namespace": name, "checked": checked, "dropped": dropped}


def destroy(call: Call) -> dict[str, Any]:
    pool_name, pool, name = _existing(call)
    call.args.done()
    access = call.service.access
    if not access.is_master(call.peer):  # so that a damaged one, owned by nobody, can go
        access.require_owner(call.peer, pool.inspect(name)[0], "destroy")
    pool.drop(name)
    log.info(
        f"namespace {name} was destroyed by user {call.peer.uid}",
        pool=pool_name,
        namespace=name,
    )
    return {"pool": pool_name, "namespace": name}


def _named(call: Call) -> tuple[str, SharedPool, str]:
    """The pool (the only one, where none is named) and the namespace's name."""
    pool, name = call.args.text("pool", None), call.args.text("name")
    if not name:
        raise UsageError(f"{call.args.op}: the name is empty", object="name")
    return (*call.service.pools.pick(pool), name)


def _existing(call: Call) -> tuple[str, SharedPool, str]:
    """As _named(). Raises NotFoundError where there is no such namespace."""
    pool_name, pool, name = _named(call)
    try:
        pool.inspect(name)
    except NotFoundError:
        raise errors.NotFoundError(
            f"there is no namespace '{name}' in pool '{pool_name}'",
            object=name,
            hint=f"sacctl namespace list --pool {pool_name}",
        ) from None
    except SacError:
        pass  # a damaged one: what is asked of it says so
    return pool_name, pool, name


def _record(pool_name: str, pool: SharedPool, name: str) -> NamespaceRecord:
    return namespace_record(pool_name, *pool.inspect(name))


HANDLERS: dict[str, Handler] = {
    "namespace.list": list_,
    "namespace.show": show,
    "namespace.create": create,
    "namespace.resize": resize,
    "namespace.flush": flush,
    "namespace.verify": verify,
    "namespace.destroy": destroy,
}
