# SPDX-License-Identifier: Apache-2.0
"""The command line: one file a noun. click is imported only here.

What a command needs beyond click is imported when it runs, so that ``sacctl --help`` and
completion answer at once.
"""

from __future__ import annotations

from typing import NoReturn

import click

from sacctl.cli.base import Root, common_options

__all__ = ["main", "root"]

_NOUNS = {
    "device": (
        "sacctl.cli.device:device",
        "CXL memory devices: what is there, and what can be done with it.",
    ),
    "pool": (
        "sacctl.cli.pool:pool",
        "Plan, create, adopt, assemble, list, extend and destroy pools.",
    ),
    "namespace": ("sacctl.cli.namespace:namespace", "Namespaces of a pool: who gets what."),
    "client": ("sacctl.cli.client:client", "Processes that use the pools."),
    "daemon": ("sacctl.cli.daemon:daemon", "Run the daemon, ask how it is, reload it."),
    "stats": ("sacctl.cli.stats:stats", "Occupancy, hits, bytes and latencies."),
    "health": ("sacctl.cli.health:health", "What is not as it should be, and what to do."),
    "doctor": (
        "sacctl.cli.doctor:doctor",
        "Collect a report for a bug: versions, settings, devices, pools, health, logs.",
    ),
    "metrics": ("sacctl.cli.metrics:metrics", "The daemon's figures as Prometheus text."),
    "bench": ("sacctl.cli.bench:bench", "Measure this machine against its own limits."),
    "demo": ("sacctl.cli.demo:demo", "See a daemon, a writer and a reader at work."),
    "completion": ("sacctl.cli.completion:completion", "Print the completions for a shell."),
}

_EXAMPLES = """\
Examples:
  sacctl daemon run &
  sacctl pool create kv --emulate 2x1G
  sacctl namespace create chat --layout deepseek-v3.2-fp8 --quota 1G
  sacctl stats --watch
"""


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("libsac")
        except PackageNotFoundError:  # run from a source tree
            from libsac import __version__ as found
        click.echo(found)
        ctx.exit()


root = Root(
    "sacctl",
    help="Pools of memory for KV pages, shared by processes.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    lazy=_NOUNS,
    params=[
        *common_options(["config", "socket", "sysroot", "output", "verbose"]),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Print the version.",
        ),
    ],
)


def main() -> NoReturn:
    """The program ``sacctl``."""
    root.main()
