# SPDX-License-Identifier: Apache-2.0
"""``sacctl stats``: what the pools hold and what was done with them."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from sacctl.cli import names
from sacctl.cli.base import Command
from sacctl.cli.context import App, app
from sacctl.cli.options import pool_option
from sacctl.errors import CtlError, UsageError

if TYPE_CHECKING:
    from sacctl.records import StatsRecord

__all__ = ["stats"]

Which = dict[str, str | None]  # what is looked at: pool, namespace, client


@click.command(cls=Command)
@pool_option
@click.option("--namespace", metavar="NAME", shell_complete=names.namespaces, help="Only this.")
@click.option("--client", metavar="PID|ID", shell_complete=names.clients, help="Only this.")
@click.option("--watch", is_flag=True, help="Again and again, as rates; Ctrl-C ends it.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    metavar="SECONDS",
    help="Between two looks of --watch. [2]",
)
@click.option(
    "--count", type=click.IntRange(1), metavar="N", help="End --watch after so many looks."
)
def stats(
    pool: str | None,
    namespace: str | None,
    client: str | None,
    watch: bool,
    interval: float,
    count: int | None,
) -> None:
    """Occupancy, hits, bytes and latencies.

    By pool, extent, namespace and client: what is held and pinned; lookups, hits, misses
    and evictions; bytes put and gathered; the median and the 99th percentile of lookup,
    pin, gather and put. With -v also the requests to the daemon.

    --watch draws it anew on a terminal; into a pipe it writes one look an interval, with
    -o json one object a line.
    """
    state = app()
    if count is not None and not watch:
        raise UsageError("--count is for --watch")
    which = {"pool": pool, "namespace": namespace, "client": _client_id(state, client)}
    if not watch:
        now = _look(state, which)
        from sacctl.render.stats import stats_parts

        state.emit("stats", now, lambda: stats_parts(now, ops=state.verbose))
    elif state.output == "table" and _drawable():
        _draw(state, which, interval, count)
    else:
        _write(state, which, interval, count)


def _drawable() -> bool:
    """Whether stdout is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _client_id(state: App, who: str | None) -> str | None:
    if who is None:
        return None
    from sacctl.cli.client import one

    return str(one(state.call("client.list")["clients"], who)["id"])


def _look(state: App, which: Which) -> StatsRecord:
    from sacctl.cli.client import others

    record: StatsRecord = state.call("stats", **which)["stats"]
    record["clients"] = others(record["clients"])
    return record


class _Watch:
    """Looks at the daemon, again after it went away and came back.

    Attributes:
        now, before: the last two looks; before is None until there are two.
        trouble: why there was no new look, "" where there was one.
    """

    def __init__(self, state: App, which: Which) -> None:
        self._state, self._which = state, which
        self.now = _look(state, which)
        self.before: StatsRecord | None = None
        self.trouble = ""

    def again(self) -> bool:
        """One more look; False where the daemon did not answer."""
        try:
            new = _look(self._state, self._which)
        except CtlError as error:
            self._state.drop_link()
            self.trouble = error.sentence()
            return False
        self.before, self.now, self.trouble = self.now, new, ""
        return True


def _draw(state: App, which: Which, interval: float, count: int | None) -> None:
    from sacctl.render.live import live

    watch = _Watch(state, which)
    left = count
    try:
        with live(sys.stdout, interval) as view:
            while True:
                view.show(watch.now, watch.before, watch.trouble)
                left = None if left is None else left - 1
                if left == 0:
                    return
                time.sleep(interval)
                watch.again()
    except KeyboardInterrupt:
        return  # how a watch ends: no failure


def _write(
    state: App, which: dict[str, str | None], interval: float, count: int | None
) -> None:
    from sacctl.render.stats import stats_parts

    watch = _Watch(state, which)
    left, said = count, ""
    try:
        while True:
            if not watch.trouble:
                now, before = watch.now, watch.before
                state.emit(
                    "stats",
                    now,
                    lambda now=now, before=before: stats_parts(now, before, ops=state.verbose),  # type: ignore[misc]
                    line=True,
                )
                if state.output == "table":
                    sys.stdout.write("\n")
                sys.stdout.flush()
                left = None if left is None else left - 1
            elif watch.trouble != said:
                state.say(f"{watch.trouble}; trying again")
            said = watch.trouble
            if left == 0:
                return
            time.sleep(interval)
            watch.again()
    except KeyboardInterrupt:
        return
