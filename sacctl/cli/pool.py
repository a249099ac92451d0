# SPDX-License-Identifier: Apache-2.0
"""``sacctl pool``: memory that holds namespaces."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from sacctl.cli.base import Group
from sacctl.cli.context import App, app
from sacctl.cli.options import Size, assume_yes, dry_run, pool_name
from sacctl.cli.pool_answers import answer, lost, ours, refuse_leak, shown
from sacctl.errors import CtlError, UsageError

if TYPE_CHECKING:
    from sacctl.pool.cxl_destroy import CxlDestroyed

__all__ = ["DEFAULT_NAME", "pool"]

DEFAULT_NAME = "default"

_MORE = {
    "plan": ("sacctl.cli.pool_plan:plan", "Show which pool of CXL devices could be made."),
    "adopt": ("sacctl.cli.pool_adopt:adopt", "Make a pool of a region that is there already."),
    "assemble": (
        "sacctl.cli.pool_adopt:assemble",
        "Make a pool's regions and devices again, as its record says.",
    ),
}

_EXAMPLES = """\
Examples:
  sacctl pool create kv --emulate 2x1G
  sacctl pool create kv --emulate 8G --huge 2M
  sacctl pool create kept --emulate 4G --path /var/lib/kept
  sudo sacctl pool create kv --devices cxl0,cxl1
"""

_CXL = ("size", "granularity", "mode", "isolated_room")

_emulate = click.option(
    "--emulate",
    metavar="SIZE",
    help="Ordinary memory: 4G, or 2x1G for two extents.",
)


@click.group(cls=Group, no_args_is_help=True, lazy=_MORE)
def pool() -> None:
    """Plan, create, adopt, assemble, list, extend and destroy pools."""


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
@click.option("--size", type=Size(), help="Bytes of the CXL regions; else all that is free.")
@click.option(
    "--granularity", type=Size(), metavar="BYTES", help="Of the interleave: 256 to 16K."
)
@click.option(
    "--mode",
    type=click.Choice(["devdax", "system-ram"]),
    help="CXL memory as DAX devices, or as a NUMA node's. [devdax]",
)
@click.option(
    "--isolated-room",
    type=Size(),
    metavar="SIZE",
    help="Leave so much for namespaces with devices of their own.",
)
@dry_run
def create(name: str, emulate: str | None, devices: str | None, **options: Any) -> None:
    """Create a pool, or find that the very same is there already.

    Of ordinary memory: free memory and limits are looked at first. Of CXL devices: an
    interleaved region is planned, made and checked; the order of the devices does not matter.
    A failure takes back what was done. A daemon that runs gets the pool at once. NAME is
    "default" where it is left out.
    """
    state = app()
    emulated = {"--huge": options["huge"], "--path": options["path"]}
    cxl = {f"--{key.replace('_', '-')}": options[key] for key in _CXL}
    if devices is not None and emulate is not None:
        raise UsageError("--devices and --emulate are two kinds of pools: give one")
    wrong = [o for o, value in (cxl if devices is None else emulated).items() if value]
    if wrong and (devices or emulate):
        other = "--devices" if devices is None else "--emulate"
        raise UsageError(f"{wrong[0]} goes with {other}")
    if devices is not None:
        _create_cxl(state, name, devices, options)
    else:
        _create_emulated(state, name, emulate, options)


def _create_cxl(state: App, name: str, devices: str, options: dict[str, Any]) -> None:
    from sacctl.cli.pool_cxl import create as make

    made = make(
        state,
        name,
        devices,
        size=options["size"],
        granularity=options["granularity"],
        mode=options["mode"] or "devdax",
        room=options["isolated_room"] or 0,
        dry_run=options["dry_run"],
    )
    if made is None:
        return
    if not made.created:
        state.say(f"pool {name} was there already, the same")
    values = {"created": made.created, "served": made.served, "steps": made.steps}
    answer(state, "pool.create", made, values)


def _create_emulated(
    state: App, name: str, emulate: str | None, options: dict[str, Any]
) -> None:
    if emulate is None:
        raise UsageError(
            "a pool is made of something: --emulate SIZE or --devices DEV,DEV",
            hint=f"sacctl pool create {name} --emulate 2x1G",
        )
    from sacctl.cli.offline import own_records
    from sacctl.pool.create import create as make
    from sacctl.pool.spec import Spec, parse_sizes

    spec = Spec(name, parse_sizes(emulate), options["huge"] or "", options["path"] or "")
    dry_run = options["dry_run"]
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
    answer(state, "pool.create", made, values)


@pool.command("list")
def list_() -> None:
    """List the daemon's pools, and those that have a record and are not served."""
    state = app()
    from sacctl.cli.offline import all_pools
    from sacctl.render.pools import pool_table

    found = all_pools(state)
    state.emit("pool.list", {"pools": found}, lambda: [pool_table(found)] if found else [])
    if not found:
        state.say(f"no pools. next: {_first_pool(state)}")


def _first_pool(state: App) -> str:
    """What to do for a first pool: of CXL devices, where some can be used."""
    from sacctl.cxl.read import read
    from sacctl.cxl.rules import check_device

    ordinary = "sacctl pool create --emulate 1G"
    try:
        topology = read(state.sysfs)
    except (CtlError, OSError):
        return ordinary
    for memdev in topology.memdevs:
        with suppress(CtlError):
            check_device(topology, memdev)
            return f"sacctl pool plan shows a pool of the CXL devices; or {ordinary}"
    if topology.memdevs or topology.dax:
        return f"sacctl device list says what can be adopted; or {ordinary}"
    return ordinary


@pool.command()
@pool_name
def show(name: str) -> None:
    """Show all of one pool: its extents, its namespaces, how it was found."""
    state = app()
    from sacctl.render.pools import pool_parts

    answer = shown(state, name)
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
    with ours(state, name):
        made = lengthen(
            name, sizes, own_records(state), daemon=link, dry_run=dry_run, say=state.more
        )
    if dry_run:
        state.plan(made.steps)
        return
    answer(state, "pool.extend", made, {"served": made.served, "steps": made.steps})


@pool.command()
@pool_name
@click.option(
    "--force-offline",
    is_flag=True,
    help="Take memory of its CXL regions offline that somebody has put online.",
)
@click.option(
    "--allow-leak",
    is_flag=True,
    help="Go on where memory cannot go offline (it is lost until the next reboot), or cannot "
    "be scrubbed, because devices are missing.",
)
@assume_yes
@dry_run
def destroy(name: str, force_offline: bool, allow_leak: bool, yes: bool, dry_run: bool) -> None:
    """Remove a pool with all that is in it.

    Refused while clients are attached. Without a daemon the files are removed here. Memory
    of CXL devices is scrubbed; regions that sacctl made go, adopted ones stay.
    """
    state = app()
    from sacctl.cli.offline import own_records
    from sacctl.pool.destroy import destroy as remove

    link = state.try_link()
    with ours(state, name):
        found = own_records(state).find(name)
        cxl = found is not None and found.cxl is not None
        if not cxl:
            planned = remove(name, own_records(state), daemon=link, dry_run=True)
    if cxl:
        _destroy_cxl(state, name, yes, dry_run, force_offline, allow_leak)
        return
    if dry_run:
        state.plan(planned.steps)
        return
    state.confirm(f"Destroy {lost(state, name)}?", yes)
    gone = remove(name, own_records(state), daemon=link, say=state.more)
    state.emit("pool.destroy", {"pool": name, "steps": gone.steps}, list)
    state.say(f"pool {name} is destroyed")


def _stays(gone: CxlDestroyed) -> str:
    """What of an adopted pool does not go."""
    part = gone.record.cxl
    if part is None or not part.adopted or gone.left:
        return ""
    names = [n for region in part.regions for n in (region.region, *region.dax[:1]) if n]
    verb = "stay" if len(names) > 1 else "stays"
    return f"; {' and '.join(names)}, which it had adopted, {verb}, under device_dax"


def _destroy_cxl(
    state: App, name: str, yes: bool, dry_run: bool, force_offline: bool, allow_leak: bool
) -> None:
    from sacctl.cli.pool_cxl import destroy as remove

    allowed = {"force_offline": force_offline, "allow_leak": allow_leak}
    planned = remove(state, name, dry_run=True, **allowed)
    if dry_run:
        state.plan(planned.steps)
        return
    state.confirm(f"Destroy {lost(state, name)}?", yes)
    gone = remove(state, name, **allowed)
    state.emit("pool.destroy", {"pool": name, "steps": gone.steps, "left": gone.left}, list)
    refuse_leak(state, f"pool {name}", gone)
    state.say(f"pool {name} is destroyed{_stays(gone)}")
