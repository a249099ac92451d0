# SPDX-License-Identifier: Apache-2.0
"""Operations on the daemon itself: status, reload, health, metrics."""

from __future__ import annotations

from typing import Any

from sacctl.daemon.admin import Call, Handler, Part
from sacctl.daemon.describe import pool_record
from sacctl.daemon.health import daemon_health
from sacctl.daemon.measure import metrics_text, pool_clients

__all__ = ["HANDLERS"]

TEXT_PART = 4 << 20  # characters of metrics an answer holds


def status(call: Call) -> dict[str, Any]:
    call.args.done()
    service = call.service
    attached = pool_clients(service)
    return {
        "daemon": service.record(),
        "pools": [pool_record(s, attached.get(s.name, 0)) for s in service.pools.all()],
    }


def reload(call: Call) -> dict[str, Any]:
    call.args.done()
    call.service.access.require_admin(call.peer, "reload")
    return dict(call.service.reload())


def health(call: Call) -> dict[str, Any]:
    call.args.done()
    return dict(daemon_health(call.service, pool_clients(call.service)))


def metrics(call: Call) -> Part:
    start = call.args.whole("after", 0)
    call.args.done()
    text = metrics_text(call.service)
    # What follows is of a later moment: parts end where a line does, so that each line is
    # whole; of a text that got shorter the rest is left out.
    end = text.rfind("\n", start, start + TEXT_PART) + 1 if start < len(text) else start
    return Part({"text": text[start:end]}, end if start < end < len(text) else None)


HANDLERS: dict[str, Handler] = {
    "status": status,
    "reload": reload,
    "health": health,
    "metrics": metrics,
}
