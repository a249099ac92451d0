# SPDX-License-Identifier: Apache-2.0
"""Operations on pools: list, show, add, extend, remove, quarantine, lost."""

from __future__ import annotations

from typing import Any

from sacctl.daemon.admin import Call, Handler, Part
from sacctl.daemon.describe import pool_record
from sacctl.daemon.extents import META
from sacctl.daemon.measure import pool_clients
from sacctl.daemon.ops_namespace import page
from sacctl.daemon.unserved import Served
from sacctl.pool.record import Record
from sacctl.records import PoolRecord

__all__ = ["HANDLERS"]


def list_(call: Call) -> dict[str, Any]:
    call.args.done()
    call.service.losses.look()  # what went a moment ago is not served, whoever looks next
    attached = pool_clients(call.service)
    return {
        "pools": [pool_record(s, attached.get(s.name, 0)) for s in call.service.pools.all()]
    }


def show(call: Call) -> Part:
    name, after = call.args.text("name"), call.args.text("after", "")
    call.args.done()
    call.service.losses.look()
    served = call.service.pools.get(name)
    part = page([served], f"{name}/{after}" if after else "")
    result = {"pool": _record(call, served), **part.result}
    return Part(result, part.next and part.next.partition("/")[2])


def add(call: Call) -> dict[str, Any]:
    record = Record.from_dict(call.args.table("record"), "the pool record of the request")
    call.args.done()
    call.service.access.require_admin(call.peer, "pool.add")
    call.service.losses.look()  # a pool whose device went and came back is another one now
    served, added = call.service.pools.add(record, call.fds, call.service.settings.pools.dir)
    return {"pool": _record(call, served), "added": added}


def extend(call: Call) -> dict[str, Any]:
    """record: the pool's with the new extents at its end; their fds, or none."""
    name = call.args.text("name")
    record = Record.from_dict(call.args.table("record"), "the pool record of the request")
    call.args.done()
    call.service.access.require_admin(call.peer, "pool.extend")
    return {"pool": _record(call, call.service.pools.extend(name, record, call.fds))}


def remove(call: Call) -> dict[str, Any]:
    """lost: of a pool that has lost memory, what is left of it is closed, clients or not; it
    stays known, as lost, until it is added again. Any other pool stays as it is."""
    name, lost = call.args.text("name"), call.args.flag("lost")
    call.args.done()
    call.service.access.require_admin(call.peer, "pool.remove")
    if lost:
        call.service.losses.look()  # what went a moment ago counts too
        return {"pool": name, "closed": call.service.pools.let_go(name)}
    call.service.pools.remove(name)
    return {"pool": name}


def quarantine(call: Call) -> dict[str, Any]:
    """extent (-1: the metadata), offset, bytes: memory that is not to be used any more."""
    name, extent = call.args.text("pool"), call.args.whole("extent", low=META)
    offset, size = call.args.whole("offset"), call.args.whole("bytes", low=1)
    call.args.done()
    call.service.access.require_admin(call.peer, "pool.quarantine")
    left = call.service.losses.quarantine(name, extent, offset, size)
    return {"pool": name, "extent": extent, "offset": offset, "bytes": size, "pages": left}


def lost(call: Call) -> dict[str, Any]:
    """extent: of a device that has gone; without it, or -1, the whole pool."""
    name, extent = call.args.text("pool"), call.args.whole("extent", None, low=META)
    call.args.done()
    call.service.access.require_admin(call.peer, "pool.lost")
    why = f"user {call.peer.uid} said that its device has gone"
    return {"pool": name, "pages": call.service.losses.lose(name, extent, why)}


def _record(call: Call, served: Served) -> PoolRecord:
    return pool_record(served, pool_clients(call.service).get(served.name, 0))


HANDLERS: dict[str, Handler] = {
    "pool.list": list_,
    "pool.show": show,
    "pool.add": add,
    "pool.extend": extend,
    "pool.remove": remove,
    "pool.quarantine": quarantine,
    "pool.lost": lost,
}
