# SPDX-License-Identifier: Apache-2.0
"""``sacctl client``: the processes that use the pools."""

from __future__ import annotations

import os
from typing import Any

import click

from sacctl.cli import names
from sacctl.cli.base import Group
from sacctl.cli.context import app
from sacctl.cli.options import assume_yes, dry_run
from sacctl.errors import NotFoundError, UsageError

__all__ = ["client", "one", "others"]


@click.group(cls=Group, no_args_is_help=True)
def client() -> None:
    """Processes that use the pools."""


@client.command("list")
def list_() -> None:
    """List the clients, what they are attached to and what they hold."""
    state = app()
    found = others(state.call("client.list")["clients"])
    from sacctl.render.daemon import client_table

    state.emit(
        "client.list", {"clients": found}, lambda: [client_table(found)] if found else []
    )
    if not found:
        state.say("no clients")


@client.command()
@click.argument("who", metavar="PID|ID", shell_complete=names.clients)
@click.option("--kill", is_flag=True, help="End the process with SIGKILL.")
@assume_yes
@dry_run
def evict(who: str, kill: bool, yes: bool, dry_run: bool) -> None:
    """Take everything from a client: its views are revoked for good.

    Its next calls fail, its reservations end, its pins go as it closes them. With --kill
    the process is ended, and all goes at once. PID|ID is the number of its process, or its
    id or the first four digits or more of that.
    """
    state = app()
    found = one(state.call("client.list")["clients"], who)
    label = f"client {found['name']} ({found['pid']})"
    if dry_run:
        # After a restart of the daemon a client has two tables of one namespace.
        tables = dict.fromkeys(f"{t['pool']}/{t['namespace']}" for t in found["tables"])
        spaces = ", ".join(tables)
        if kill:
            step = f"send SIGKILL to process {found['pid']}"
        else:
            step = f"revoke the views of {spaces or 'nothing'}"
        held = f"{found['pinned']} pins and {found['reservations']} reservations"
        state.plan([f"{step}: {label} holds {held}"])
        return
    state.confirm(f"{'Kill' if kill else 'Evict'} {label}?", yes)
    answer = state.call("client.evict", id=found["id"], kill=kill)
    state.emit("client.evict", answer, list)
    state.say(f"{label} was {'killed' if kill else 'evicted'}")


def others(clients: list[Any]) -> list[Any]:
    """Without this very process, which is a client only because it asks."""
    return [client for client in clients if client["pid"] != os.getpid()]


def one(clients: list[dict[str, Any]], who: str) -> dict[str, Any]:
    """The client meant by a process number, an id or the beginning of one.

    Raises NotFoundError for none, UsageError for several.
    """
    by_pid = [c for c in clients if str(c["pid"]) == who]
    by_id = [c for c in clients if len(who) >= 4 and c["id"].startswith(who.lower())]
    found = {c["id"]: c for c in by_pid + by_id}
    if not found:
        raise NotFoundError(
            f"there is no client '{who}'", object=who, hint="sacctl client list"
        )
    if len(found) > 1:
        raise UsageError(
            f"'{who}' may be {' or '.join(found)}", object=who, hint="give the whole id"
        )
    return next(iter(found.values()))
