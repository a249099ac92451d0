# SPDX-License-Identifier: Apache-2.0
"""The operation stats."""

from __future__ import annotations

from sacctl.daemon.admin import Call, Handler, Part
from sacctl.daemon.measure import Filter, some_namespaces, stats_record

__all__ = ["HANDLERS"]

PAGE = 1000  # namespaces an answer holds


def stats(call: Call) -> Part:
    """pool, namespace, client (the beginning of its id): only of these.

    The first answer has everything but the namespaces, which follow in parts.
    """
    pool, namespace = call.args.text("pool", ""), call.args.text("namespace", "")
    client, after = call.args.text("client", ""), call.args.text("after", None)
    call.args.done()
    if pool:
        call.service.pools.pick(pool)
    only = Filter(pool, namespace, client.lower())
    if after is None:
        record = stats_record(call.service, only)
        there, record["namespaces"] = bool(record["namespaces"]), []
        return Part({"stats": record}, "" if there else None)
    pool_name, _, name = after.partition("/")
    part, more = some_namespaces(call.service, only, (pool_name, name), PAGE)
    last = f"{part[-1]['pool']}/{part[-1]['namespace']}" if more else None
    return Part({"stats": {"namespaces": part}}, last)


HANDLERS: dict[str, Handler] = {"stats": stats}
