# SPDX-License-Identifier: Apache-2.0
"""``sacctl bench``: this machine's figures beside its own limits."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from sacctl.cli.base import Command, Group
from sacctl.cli.context import App, app
from sacctl.cli.options import Size, pool_option

if TYPE_CHECKING:
    from libsac import Pool

__all__ = ["bench"]

_SIZE = 256 << 20
_REPEATS = 51
_VERBS = {
    "lookup": (
        "Find and pin pages by key.",
        "Keys found, not found and pinned, one and many a call, against random reads.",
    ),
    "put": (
        "Write pages.",
        "Pages of 256 KiB put alone and 32 a call, against memcpy.",
    ),
    "gather": (
        "Copy rows that a selection picked.",
        "Rows of a sparse selection copied out, against a plain copy of as many bytes.",
    ),
    "interleave": (
        "Copy from several extents at once.",
        "Rows gathered from pages of each extent alone and of all in turn.",
    ),
}


@click.group(cls=Group, no_args_is_help=True)
def bench() -> None:
    """Measure this machine against its own limits.

    Each fills a temporary namespace, times its work and the limit by turns in the same
    run, and removes the namespace again. A pool that others use slows them, and they it.
    """


def _verb(name: str, short: str, what: str) -> click.Command:
    @bench.command(name, cls=Command, help=what, short_help=short)
    @pool_option
    @click.option("--size", type=Size(), default=_SIZE, help="Bytes of pages to fill. [256M]")
    @click.option(
        "--repeats",
        type=click.IntRange(3, 100_000),
        default=_REPEATS,
        metavar="N",
        help="Timed calls. [51]",
    )
    @click.option(
        "--embedded", is_flag=True, help="A pool in this process's memory; no daemon is asked."
    )
    def run(pool: str | None, size: int, repeats: int, embedded: bool) -> None:
        state = app()
        from sacctl.bench import BENCHES
        from sacctl.render.bench import bench_parts

        label = "" if embedded else state.pool_name(pool)
        with closing(_pool(state, label, size)) as opened:
            found = BENCHES[name](opened, pool_name=label, size=size, repeats=repeats)
        values: dict[str, Any] = dict(found)
        state.emit(f"bench.{name}", values, lambda: bench_parts(values))
        if found["size_bytes"] + found["page_bytes"] <= size:
            state.say(f"with less than --size asks for: the free room of pool {label} is small")

    return run


def _pool(state: App, name: str, size: int) -> Pool:
    """The daemon's pool, or with no name one of this process with room for so many bytes."""
    import libsac

    if not name:
        return libsac.embedded(size * 2 + (64 << 20), prefault=True)
    path = state.link().path
    return libsac.connect(name, socket=str(path), name="sacctl bench")


for _name, (_short, _what) in _VERBS.items():
    _verb(_name, _short, _what)
