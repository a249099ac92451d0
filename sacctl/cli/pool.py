# SPDX-License-Identifier: Apache-2.0
"""``sacctl pool``: memory that holds namespaces."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from sacctl.cli.base import Group
from sacctl.cli.context import App, app
from sacctl.cli.options import assume_yes, dry_run, pool_name
from sacctl.errors import CtlError, DeniedError, NotFoundError, UsageError

__all__ = ["pool"]

DEFAULT_NAME = "default"
CXL_DEVICES = Path("/sys/bus/cxl/devices")

_EXAMPLES = """\
Examples:
  sacctl pool create kv --emulate 2x1G
  sacctl pool create kv --emulate 8G --huge 2M
  sacctl pool create kept --emulate 4G --path /var/lib/kept
"""

_emulate = click.option(
    "--emulate",
    metavar="SIZE",
    help="Ordinary memory: 4G, or 2x1G for two extents.",
)


@click.group(cls=Group, no_args_is_help=True)
def pool() -> None:
    """Create, list, extend and destroy pools."""


@pool.command(epilog=_EXAMPLES)
@click.argument("name", metavar="[NAME]", default=DEFAULT_NAME, required=False)
@_emulate
@click.option("--devices", metavar="DEV,DEV", help="CXL memory devices, such as cxl0,cxl1.")
@click.option(
    "--huge",
    type=click.Choice(["2M", "1G"]),
    help="Data on a hugetlbfs of this page size; its pages must be reserved.",
)
@click.option(
    "--path",
    type=click.Path(),
    metavar="DIR",
    help="Folder of the pool's files; else one on /dev/shm.",
)
@dry_run
def create(
    name: str,
    emulate: str | None,
    devices: str | None,
    huge: str | None,
    path: str | None,
    dry_run: bool,
) -> None:
    """Create a pool, or find that the very same is there already.

    Free memory and limits are looked at first. A failure takes back what was done. A
    daemon that runs gets the pool at once. NAME is "default" where it is left out.
    """
    state = app()
    if devices is not None:
        if emulate is not None:
            raise UsageError("--devices and --emulate are two kinds of pools: give one")
        _no_devices(name, devices)
    if emulate is None:
        raise UsageError(
            "a pool is made of something: --emulate SIZE or --devices DEV,DEV",
            hint=f"sacctl pool create {name} --emulate 2x1G",
        )
    from sacctl.cli.offline import own_records
    from sacctl.pool.create import create as make
    from sacctl.pool.spec import Spec, parse_sizes

    spec = Spec(name, parse_sizes(emulate), huge or "", path or "")
    link = state.try_link()
    # root's pool is the daemon's, which then finds it again by itself.
    owner = link.peer.uid if link is not None and os.geteuid() == 0 else None
    made = make(
        spec, own_records(state), daemon=link, owner=owner, dry_run=dry_run, say=state.more
    )
    if not made.created:
        state.say(f"pool {name} was there already, the same")
    if dry_run:
        state.plan(made.steps)
        return
    values = {"created": made.created, "served": made.served, "steps": made.steps}
    _answer(state, "pool.create", made, values)


@pool.command("list")
def list_() -> None:
    """List the daemon's pools, and those that have a record and are not served."""
    state = app()
    from sacctl.cli.offline import all_pools
    from sacctl.render.pools import pool_table

    found = all_pools(state)
    state.emit("pool.list", {"pools": found}, lambda: [pool_table(found)] if found else [])
    if not found:
        state.say("no pools. next: sacctl pool create --emulate 1G")


@pool.command()
@pool_name
def show(name: str) -> None:
    """Show all of one pool: its extents, its namespaces, how it was found."""
    state = app()
    from sacctl.render.pools import pool_parts

    answer = _shown(state, name)
    found, spaces = answer["pool"], answer["namespaces"]
    state.emit("pool.show", answer, lambda: pool_parts(found, spaces))


@pool.command()
@pool_name
@_emulate
@dry_run
def extend(name: str, emulate: str | None, dry_run: bool) -> None:
    """Add extents to a pool, also while it is in use."""
    state = app()
    if emulate is None:
        raise UsageError(
            "how much is missing: --emulate SIZE",
            hint=f"sacctl pool extend {name} --emulate 1G",
        )
    from sacctl.cli.offline import own_records
    from sacctl.pool.extend import extend as lengthen
    from sacctl.pool.spec import parse_sizes

    sizes = parse_sizes(emulate)
    link = state.try_link()
    with _ours(state, name):
        made = lengthen(
            name, sizes, own_records(state), daemon=link, dry_run=dry_run, say=state.more
        )
    if dry_run:
        state.plan(made.steps)
        return
    _answer(state, "pool.extend", made, {"served": made.served, "steps": made.steps})


@pool.command()
@pool_name
@assume_yes
@dry_run
def destroy(name: str, yes: bool, dry_run: bool) -> None:
    """Remove a pool with all that is in it.

    Refused while clients are attached. Without a daemon the files are removed here.
    """
    state = app()
    from sacctl.cli.offline import own_records
    from sacctl.pool.destroy import destroy as remove

    link = state.try_link()
    with _ours(state, name):
        planned = remove(name, own_records(state), daemon=link, dry_run=True)
    if dry_run:
        state.plan(planned.steps)
        return
    state.confirm(f"Destroy {_lost(state, name)}?", yes)
    gone = remove(name, own_records(state), daemon=link, say=state.more)
    state.emit("pool.destroy", {"pool": name, "steps": gone.steps}, list)
    state.say(f"pool {name} is destroyed")


# --------------------------------------------------------------------------- helpers


def _no_devices(name: str, devices: str) -> NoReturn:
    """Why no pool can be made of these devices."""
    wanted = [word.strip() for word in devices.split(",")]
    if not all(wanted):
        raise UsageError(f"--devices {devices}: names with commas between, such as cxl0,cxl1")
    hint = f"sacctl pool create {name} --emulate 2x1G, which does the same in ordinary memory"
    try:
        there = sorted(d.name for d in CXL_DEVICES.iterdir() if d.name.startswith("mem"))
    except OSError:
        there = []
    if not there:
        raise NotFoundError(
            f"this machine has no CXL memory device: {CXL_DEVICES} lists none, so there is no "
            f"{' and no '.join(wanted)}",
            object=devices,
            hint=hint,
        )
    raise CtlError(
        f"this version makes no pools of CXL devices; this machine has {', '.join(there)}",
        object=devices,
        hint=hint,
    )


def _shown(state: App, name: str) -> dict[str, Any]:
    """The answer of pool.show, or what the record says where the daemon knows nothing."""
    from sacctl.cli.offline import offline, own_records

    link = state.try_link()
    if link is not None:
        try:
            return link.call("pool.show", name=name)
        except NotFoundError:
            if own_records(state).find(name) is None:
                raise
    record = own_records(state).get(name)
    return {"pool": offline(record, link is not None), "namespaces": []}


def _answer(state: App, schema: str, made: Any, values: dict[str, Any]) -> None:
    """The pool as it is now. made.pool is empty where no daemon was handed it."""
    from sacctl.cli.offline import offline
    from sacctl.render.pools import pool_parts

    found, served = made.pool or offline(made.record, False), made.served
    if not served:  # a daemon that has started meanwhile takes the pool by its record
        with suppress(CtlError):
            found = _shown(state, made.record.name)["pool"]
            served = found["state"] == "serving"
    values = {**values, "served": served}
    state.emit(schema, {"pool": found, **values}, lambda: pool_parts(found))
    if not served:
        text = f"pool {found['name']} is not served: {found['reason']}. next: {found['hint']}"
        if found["hint"] == "sacctl daemon run":
            text += " (one that is just starting takes the pool by itself)"
        state.say(text)


class _ours:  # noqa: N801 -- reads as a word: with _ours(...)
    """Says whose a pool is that has no record here and that the daemon serves."""

    def __init__(self, state: App, name: str) -> None:
        self._state, self._name = state, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        link = self._state.try_link() if isinstance(error, NotFoundError) else None
        if link is None:
            return
        served = [p for p in link.call("pool.list")["pools"] if p["name"] == self._name]
        if served:
            folder = self._state.settings.pools.dir
            raise DeniedError(
                f"pool {self._name} has no record in {folder}: its files are of user "
                f"{served[0]['owner_uid']}",
                object=self._name,
                hint="run this as that user",
            ) from error


def _lost(state: App, name: str) -> str:
    """What goes with the pool, for the question."""
    from sacctl.render.quantities import list_of, size

    found = _shown(state, name)
    there, spaces = found["pool"], found["namespaces"]
    held = sum(space["assigned_bytes"] for space in spaces)
    total = there["data_bytes"] or sum(extent["bytes"] for extent in there["extents"])
    if not spaces:
        return f"pool {name} of {size(total)}"
    names = list_of([space["name"] for space in spaces])
    many = "1 namespace" if len(spaces) == 1 else f"{len(spaces)} namespaces"
    return f"pool {name} of {size(total)} with {many} of {size(held)} ({names})"
