# SPDX-License-Identifier: Apache-2.0
"""``sacctl bench``: this machine's figures beside its own limits."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacctl.cli.base import Command, Group
from sacctl.cli.context import App, app
from sacctl.cli.options import Size, pool_option

if TYPE_CHECKING:
    from libsac import Pool

    _Text = click.ParamType[Any]
else:  # generic since click 8.4
    _Text = click.ParamType

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

    Each but policy fills a temporary namespace, times its work and the limit by turns in
    the same run, and removes the namespace again. A pool that others use slows them, and
    they it.
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


class _Words(_Text):
    """Words with commas between them."""

    name = "words"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(word.strip() for word in str(value).split(",") if word.strip())


class _Numbers(_Words):
    """Whole numbers with commas between them."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        words = super().convert(value, param, ctx)
        for word in words:
            if not str(word).isascii() or not str(word).isdigit() or len(str(word)) > 9:
                self.fail(f"'{word}' is not a whole number", param, ctx)
        return tuple(int(word) for word in words)


@bench.command(cls=Command, short_help="Miss rates over a recorded trace.")
@click.argument("trace", type=click.Path(path_type=Path), metavar="TRACE")
@click.option(
    "--slots",
    type=_Numbers(),
    default=(),
    metavar="N,N",
    help="Slots of a request and layer, up to 8192. [2 and 3 times the selection]",
)
@click.option(
    "--policy",
    "policies",
    type=_Words(),
    default=(),
    metavar="NAME,NAME",
    help="Of lru, fifo, random, clock, and best, which knows what comes. [all]",
)
def policy(trace: Path, slots: tuple[int, ...], policies: tuple[str, ...]) -> None:
    """Play a recorded trace with hot buffers of several sizes and policies.

    Says how much of what the engine selected each would have had to fetch from the pool.
    No GPU and no daemon is needed. docs/trace.md tells how a trace is recorded.
    """
    from sacctl.bench.policy import POLICIES
    from sacctl.bench.policy import policy as play
    from sacctl.render.policy import policy_parts

    state = app()
    found = play(trace, slots, policies or POLICIES)
    values: dict[str, Any] = dict(found)
    state.emit("bench.policy", values, lambda: policy_parts(values))
    if not found["selections"]:
        state.say("the trace has no selections: there is nothing to play")
    elif not found["selected"]:
        state.say("no selection of the trace names a unit that its request has")
    if found["lost"]:
        state.say(
            f"{found['lost']} selections are missing in the trace: the recorder's ring was "
            "full, or they named requests that it does not have"
        )
    if found["truncated"]:
        state.say("the trace ends within a record: its recorder did not end in order")


for _name, (_short, _what) in _VERBS.items():
    _verb(_name, _short, _what)
