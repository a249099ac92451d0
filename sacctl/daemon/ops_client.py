# SPDX-License-Identifier: Apache-2.0
"""Operations on clients: list, evict."""

from __future__ import annotations

from typing import Any

from sacctl.daemon.admin import Call, Handler, Part
from sacctl.daemon.log import log
from sacctl.errors import NotFoundError, UsageError
from sacctl.records import ClientRecord

__all__ = ["HANDLERS"]


TABLES = 20000  # that an answer holds, about


def list_(call: Call) -> Part:
    after = call.args.text("after", "")
    call.args.done()
    out: list[ClientRecord] = []
    tables = 0
    for client in call.service.clients.records():
        place = f"{client['since_ms']:020d}{client['id']}"
        if place <= after:
            continue
        if tables > TABLES:
            last = out[-1]
            return Part({"clients": out}, f"{last['since_ms']:020d}{last['id']}")
        out.append(client)
        tables += 1 + len(client["tables"])
    return Part({"clients": out})


def evict(call: Call) -> dict[str, Any]:
    """id: the client's, or the beginning of it where that is clear."""
    wanted, kill = call.args.text("id"), call.args.flag("kill")
    call.args.done()
    call.service.access.require_admin(call.peer, "client.evict")
    if not 4 <= len(wanted) <= 32 or not set(wanted.lower()) <= set("0123456789abcdef"):
        raise UsageError(
            f"'{wanted[:64]}' is no client's id: 4 to 32 hexadecimal digits are needed",
            object=wanted[:64],
            hint="sacctl client list",
        )
    server = call.service.server
    found = [c for c in server.clients() if c.id.hex().startswith(wanted.lower())]
    if not found:
        raise NotFoundError(
            f"there is no client {wanted}", object=wanted, hint="sacctl client list"
        )
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} clients' ids begin with {wanted}",
            object=wanted,
            hint="give more of it",
        )
    client = found[0]
    server.evict(client.id, kill=kill)
    log.warning(
        f"client {client.name} (process {client.pid}) was {'killed' if kill else 'evicted'}",
        client=client.id.hex(),
        user=call.peer.uid,
    )
    return {"client": client.id.hex(), "pid": client.pid, "killed": kill}


HANDLERS: dict[str, Handler] = {"client.list": list_, "client.evict": evict}
