# SPDX-License-Identifier: Apache-2.0
"""``sacctl pool adopt`` and ``assemble``: pools of what is there, or was there before."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from sacctl.cli import names
from sacctl.cli.base import Command
from sacctl.cli.context import App, app
from sacctl.cli.options import dry_run
from sacctl.cli.undoable import undoable
from sacctl.errors import CtlError, NotFoundError, PartlyError, UsageError

__all__ = ["adopt", "assemble"]

POLL = 0.5  # seconds between two looks for missing devices

_EXAMPLES = """\
Examples:
  sacctl pool adopt kv region0
  sacctl pool adopt kv dax0.0 --force-offline
"""


@click.command(cls=Command, epilog=_EXAMPLES)
@click.argument("words", metavar="[NAME] REGION|DAX", nargs=-1, required=True)
@click.option(
    "--force-offline",
    is_flag=True,
    help="Take its memory offline first, where it is system RAM in zone Movable.",
)
@dry_run
def adopt(words: tuple[str, ...], force_offline: bool, dry_run: bool) -> None:
    """Make a pool of a region or dax device that is there already.

    Firmware, or `cxl create-region`, made it, and it stays when the pool is destroyed. A pool
    that is on it is opened; other memory is formatted. NAME is "default" where it is left
    out.
    """
    state = app()
    from sacctl.cli.offline import own_records
    from sacctl.cli.pool import DEFAULT_NAME
    from sacctl.cli.pool_answers import answer
    from sacctl.cli.pool_cxl import adopted_lines, owner, show_plan
    from sacctl.pool.cxl_adopt import adopt as take

    if len(words) > 2:
        raise UsageError(f"too many names: {' '.join(words)}", hint="sacctl pool adopt --help")
    name, target = words if len(words) == 2 else (DEFAULT_NAME, words[0])
    with undoable(state) as say:
        made = take(
            name,
            target,
            state.sysfs,
            own_records(state),
            daemon=state.try_link(),
            owner=owner(state),
            force_offline=force_offline,
            dry_run=dry_run,
            say=say,
        )
    if not made.created:
        state.say(f"pool {name} was there already, the same")
    if dry_run:
        show_plan(state, made.steps, adopted_lines(state, made))
        return
    values = {"created": made.created, "served": made.served, "steps": made.steps}
    answer(state, "pool.adopt", made, values)


@click.command(cls=Command)
@click.argument("name", metavar="[NAME]", required=False, shell_complete=names.pools)
@click.option(
    "--all", "every", is_flag=True, help="All pools of CXL devices that have a record."
)
@click.option(
    "--wait",
    type=click.FloatRange(0, 3600),
    default=0.0,
    metavar="SECONDS",
    help="How long to wait for devices that are not there yet.",
)
@click.option(
    "--format",
    "anew",
    is_flag=True,
    help="Give up what is on its memory where that is not this pool, or not whole.",
)
@dry_run
def assemble(name: str | None, every: bool, wait: float, anew: bool, dry_run: bool) -> None:
    """Make a pool's regions and devices again, as its record says.

    For the start of the machine, and for devices that came back. What is there already stays;
    a running daemon gets the pool. Memory that lost its content becomes an empty pool; memory
    that holds something else, as when devices were swapped, is left alone.
    """
    state = app()
    from sacctl.cli.offline import own_records

    if (name is None) == (not every):
        raise UsageError("which pool? Give its name, or --all", hint="sacctl pool list")
    if anew and every:
        raise UsageError("--format is for one pool: give its name")
    if name is not None:
        until = time.monotonic() + wait
        _emit(state, [_assembled(state, name, dry_run, until, anew)], dry_run)
        return
    failed: list[str] = []
    done: list[dict[str, Any]] = []
    error: CtlError | None = None
    until = time.monotonic() + wait  # for all together: they come up at the same time
    for each in _recorded(state):
        try:
            done.append(_assembled(state, each, dry_run, until))
        except CtlError as caught:
            error = caught
            failed.append(each)
            state.say(f"error: {caught.sentence()}")
            done.append({"pool": each, "error": caught.to_reply()})
    _emit(state, done, dry_run)
    if not done:
        state.say(f"no pool of CXL devices has a record in {own_records(state).folder}")
    if error is not None:
        if len(done) == 1:
            raise error
        raise PartlyError(
            f"{len(failed)} of {len(done)} pools are not assembled: {', '.join(failed)}",
            hint=error.hint,
        )


def _recorded(state: App) -> list[str]:
    """Pools of CXL devices, those first whose regions others lie in."""
    from sacctl.cli.offline import own_records

    records = own_records(state)
    found: list[tuple[bool, str, str]] = []
    for name in records.names():
        try:
            record = records.find(name)
        except CtlError as error:
            state.say(f"error: {error.sentence()}")
            continue
        if record is not None and record.cxl is not None:
            # As they were made: so their devices lie where they lay.
            found.append((bool(record.cxl.parent), record.created, name))
    return [name for *_, name in sorted(found)]


def _assembled(
    state: App, name: str, dry_run: bool, until: float, anew: bool = False
) -> dict[str, Any]:
    """until: as time.monotonic() says it, how long missing devices are waited for. anew: as of
    assemble()."""
    from sacctl.cli.offline import own_records
    from sacctl.pool.cxl_assemble import assemble as make
    from sacctl.pool.cxl_hand import awaited

    records = own_records(state)
    record = records.get(name)  # a pool without one is not waited for
    if not dry_run and os.geteuid() == 0:
        awaited(state.sysfs, record)
    while True:
        try:
            with undoable(state) as say:
                done = make(
                    name,
                    state.sysfs,
                    records,
                    daemon=state.try_link(),
                    dry_run=dry_run,
                    anew=anew,
                    say=say,
                )
            break
        except NotFoundError as missing:
            if time.monotonic() >= until:
                raise
            state.more(f"waiting: {missing}")
            time.sleep(POLL)
    if done.formatted:
        why = (
            "what was on its memory was given up"
            if done.forced
            else "its memory had lost its content, as without power"
        )
        state.say(f"pool {name}: {why}; it is a new, empty pool now")
    if done.checked and not dry_run:
        pages = "" if done.pages is None else f"; {_count(done.pages)} now"
        state.say(
            f"pool {name}: its memory was away, so only pages with a checksum that holds were "
            f"kept{pages}"
        )
    return {
        "pool": name,
        "changed": done.changed,
        "formatted": done.formatted,
        "checked": done.checked,
        "pages": done.pages,
        "served": done.served,
        "steps": done.steps,
    }


def _count(pages: int) -> str:
    return "there is 1 page" if pages == 1 else f"there are {pages or 'no'} pages"


def _emit(state: App, done: list[dict[str, Any]], dry_run: bool) -> None:
    if dry_run:
        state.plan(step for one in done for step in one.get("steps", ()))
        return
    from sacctl.cli.pool_poison import out_of_use
    from sacctl.render.cxl_pools import assembled_table

    if any(one.get("served") and one["changed"] for one in done):
        out_of_use(state)
    state.emit(
        "pool.assemble", {"pools": done}, lambda: [assembled_table(done)] if done else []
    )
