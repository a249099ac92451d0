# SPDX-License-Identifier: Apache-2.0
"""``sacctl namespace``: who gets how much of a pool, for which rows."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from sacctl.cli import names
from sacctl.cli import namespace_steps as steps
from sacctl.cli.base import Group
from sacctl.cli.context import app
from sacctl.cli.namespace_isolated import create_isolated, destroyed_isolated, ids
from sacctl.cli.options import Mode, Size, assume_yes, dry_run, namespace_name, pool_option
from sacctl.errors import CtlError, NotFoundError, PartlyError, UsageError, from_libsac

__all__ = ["namespace"]

# Looking through all pages takes as long as reading them.
_LONG = 24 * 3600.0

_EXAMPLES = """\
Examples:
  sacctl namespace create chat --layout deepseek-v3.2-fp8 --quota 8G --mode 0640
  sacctl namespace create own --layout layout.json --key-scheme engine
  sudo sacctl namespace create eng --layout glm-5-fp8 --isolated --quota 8G
"""


@click.group(cls=Group, no_args_is_help=True)
def namespace() -> None:
    """Namespaces of a pool: who gets what."""


@namespace.command(epilog=_EXAMPLES)
@namespace_name
@pool_option
@click.option(
    "--layout",
    required=True,
    metavar="PRESET|FILE",
    shell_complete=names.layouts,
    help="A preset's name, or a layout file (docs/layouts.md).",
)
@click.option(
    "--layers", type=click.IntRange(1), metavar="N", help="So many layers of the preset only."
)
@click.option(
    "--page-tokens", type=click.IntRange(1), metavar="N", help="Tokens a page, for a preset."
)
@click.option("--model", default="", metavar="TEXT", help="Enters the keys: models never mix.")
@click.option("--quota", type=Size(), help="What it may hold, such as 8G; else what is free.")
@click.option(
    "--policy", type=click.Choice(["lru"]), default="lru", help="What leaves first. [lru]"
)
@click.option(
    "--key-scheme",
    type=click.Choice(["sac", "engine"]),
    default="sac",
    help="Keys from token ids, or the engine's own hashes. [sac]",
)
@click.option(
    "--mode", type=Mode(), default="0600", help="Who may read and write, as of a file. [0600]"
)
@click.option("--checksum", is_flag=True, help="Keep a checksum of each page's rows.")
@click.option("--token-ids", is_flag=True, help="Keep each page's token ids.")
@click.option(
    "--isolated",
    is_flag=True,
    help="On DAX devices of its own, in the room of a CXL pool; it becomes POOL.NAME's.",
)
@click.option(
    "--owner", metavar="USER[:GROUP]", help="Whose it is; only root may give it to others."
)
@dry_run
def create(
    name: str,
    pool: str | None,
    layout: str,
    layers: int | None,
    page_tokens: int | None,
    isolated: bool,
    owner: str | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Create a namespace, or find that the very same is there already.

    The user who runs this is its owner, unless --owner says another one. An isolated one
    shares no memory with others: clients find it in pool POOL.NAME.
    """
    state = app()
    found = _layout(layout, layers, page_tokens)
    if owner is not None:
        options |= ids(owner)
    if isolated:
        create_isolated(state, name, pool, found, options, dry_run)
        return
    where = state.pool_name(pool)
    options["quota"] = options["quota"] or 0
    if dry_run:
        state.plan(steps.create(where, name, found, layout, options))
        return
    answer = state.call(
        "namespace.create", pool=where, name=name, layout=found.to_dict(), **options
    )
    from sacctl.render.pools import namespace_parts

    made = answer["namespace"]
    state.emit("namespace.create", answer, lambda: namespace_parts(made))
    if not answer["created"]:
        state.say(f"namespace {where}/{name} was there already, the same")


def _layout(given: str, layers: int | None, page_tokens: int | None) -> Any:
    """The layout of a preset or a file."""
    from libsac.errors import SacError
    from libsac.layout import Layout

    presets = Layout.presets()
    try:
        if given in presets:
            return Layout.preset(given, layers, page_tokens)
        if not (Path(given).exists() or "/" in given or given.endswith(".json")):
            raise NotFoundError(
                f"--layout {given}: neither a file nor a preset; presets are "
                f"{', '.join(presets)}",
                object=given,
            )
        if layers is not None or page_tokens is not None:
            raise UsageError("--layers and --page-tokens are for presets; a file says both")
        return Layout.from_json(given)
    except SacError as error:
        failed = from_libsac(error)
        if isinstance(failed, NotFoundError):
            raise failed from None
        raise UsageError(error.message, object=error.object or given) from None


@namespace.command("list")
@pool_option
def list_(pool: str | None) -> None:
    """List the namespaces of a pool, or of all."""
    state = app()
    answer = state.call("namespace.list", pool=pool)
    found = answer["namespaces"]
    from sacctl.render.pools import namespace_table

    state.emit("namespace.list", answer, lambda: [namespace_table(found)] if found else [])
    if not found:
        state.say("no namespaces. next: sacctl namespace create NAME --layout PRESET")


@namespace.command()
@namespace_name
@pool_option
def show(name: str, pool: str | None) -> None:
    """Show all of one namespace, its layout and who holds pages of it."""
    state = app()
    answer = state.call("namespace.show", pool=state.pool_name(pool), name=name)
    from sacctl.render.pools import namespace_parts

    state.emit(
        "namespace.show",
        answer,
        lambda: namespace_parts(answer["namespace"], answer.get("clients", ())),
    )


@namespace.command()
@namespace_name
@pool_option
@click.option("--quota", type=Size(), required=True, help="What it may hold; 0: no quota.")
@dry_run
def resize(name: str, pool: str | None, quota: int, dry_run: bool) -> None:
    """Change a namespace's quota.

    A smaller one gives memory back by evicting pages. Where pins keep it from that it
    fails, and what could be evicted is gone.
    """
    state = app()
    where = state.pool_name(pool)
    if dry_run:
        now = state.call("namespace.show", pool=where, name=name)["namespace"]
        state.plan(steps.resize(now, quota))
        return
    answer = state.call("namespace.resize", pool=where, name=name, quota=quota)
    from sacctl.render.pools import namespace_parts

    state.emit("namespace.resize", answer, lambda: namespace_parts(answer["namespace"]))


@namespace.command()
@namespace_name
@pool_option
@dry_run
def flush(name: str, pool: str | None, dry_run: bool) -> None:
    """Evict all pages that nobody holds.

    Says what stayed and who holds it; the exit code is 7 then.
    """
    state = app()
    where = state.pool_name(pool)
    if dry_run:
        now = state.call("namespace.show", pool=where, name=name)["namespace"]
        state.plan(steps.flush(now))
        return
    answer = state.link().call("namespace.flush", timeout=_LONG, pool=where, name=name)
    from sacctl.render.pools import flush_parts

    state.emit("namespace.flush", answer, lambda: flush_parts(answer))  # type: ignore[arg-type]
    left = answer["pages"] + answer["tails"]
    if left:
        raise PartlyError(
            f"namespace {where}/{name}: {left} parts of pages stayed, because they are held",
            hint="sacctl client list",
        )


@namespace.command()
@namespace_name
@pool_option
@dry_run
def verify(name: str, pool: str | None, dry_run: bool) -> None:
    """Check all pages against their checksums; drop those that are wrong."""
    state = app()
    where = state.pool_name(pool)
    if dry_run:
        now = state.call("namespace.show", pool=where, name=name)["namespace"]
        state.plan(steps.verify(now))
        return
    answer = state.link().call("namespace.verify", timeout=_LONG, pool=where, name=name)
    from sacctl.render.table import Facts

    facts = Facts()
    facts.add("checked", f"{answer['checked']:,} parts of pages")
    facts.add("dropped", f"{answer['dropped']:,}")
    state.emit("namespace.verify", answer, lambda: [facts])
    with suppress(CtlError):  # it may have gone meanwhile
        if not state.call("namespace.show", pool=where, name=name)["namespace"]["checksum"]:
            state.say(
                f"namespace {where}/{name} keeps no checksums of its rows: only headers were "
                "checked"
            )
    if answer["dropped"]:
        lost = f"{answer['dropped']} parts of pages were wrong and are gone"
        state.say(f"{lost}. next: sacctl health")


@namespace.command()
@namespace_name
@pool_option
@assume_yes
@dry_run
def destroy(name: str, pool: str | None, yes: bool, dry_run: bool) -> None:
    """Remove a namespace with its pages.

    Refused while a client is attached to it. Of an isolated one the devices go too, and its
    room is given back, scrubbed.
    """
    state = app()
    where = state.pool_name(pool)
    if destroyed_isolated(state, where, name, yes, dry_run):
        return
    answer = state.call("namespace.show", pool=where, name=name)
    there = answer["namespace"]
    if dry_run:
        state.plan(steps.destroy(there, answer.get("clients", [])))
        return
    state.confirm(f"Destroy namespace {where}/{name} with {there['pages']} pages?", yes)
    gone = state.call("namespace.destroy", pool=where, name=name)
    state.emit("namespace.destroy", gone, list)
    state.say(f"namespace {where}/{name} is destroyed")
