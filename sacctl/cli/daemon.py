# SPDX-License-Identifier: Apache-2.0
"""``sacctl daemon``: the process that owns the pools."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from sacctl.cli.base import Group
from sacctl.cli.context import app
from sacctl.errors import PartlyError

__all__ = ["daemon"]

_EXAMPLES = """\
Examples:
  sacctl daemon run                          (Ctrl-C ends it)
  sacctl --config ./sac.toml daemon run --run-dir /tmp/try
"""


@click.group(cls=Group, no_args_is_help=True)
def daemon() -> None:
    """Run the daemon, ask how it is, reload it."""


@daemon.command(epilog=_EXAMPLES)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for socket, roster and tables, instead of the settings'.",
)
def run(run_dir: Path | None) -> int:
    """Serve all pools that have a record, in the foreground.

    SIGTERM or Ctrl-C marks the pools clean and ends it, SIGHUP reloads. Pages and the pins
    of living clients are there again after its death, however it died.
    """
    state = app()
    settings = state.settings
    if run_dir is not None:
        from sacctl.paths import SOCKET_NAME

        here = run_dir.absolute()
        given = replace(settings.daemon, run_dir=here, socket=here / SOCKET_NAME)
        settings = replace(settings, daemon=given)
    if state.socket is not None:
        given = replace(settings.daemon, socket=state.socket.absolute())
        settings = replace(settings, daemon=given)
    if state.sysroot is not None:  # what the daemon looks at, and nobody hands down
        os.environ["SAC_SYSROOT"] = str(state.sysfs.root)
    from sacctl.daemon.run import run as serve

    return serve(settings)


@daemon.command()
def status() -> None:
    """Say how the daemon is and what it serves."""
    state = app()
    answer = state.call("status")
    from sacctl.render.daemon import daemon_parts

    state.emit("daemon.status", answer, lambda: daemon_parts(answer["daemon"], answer["pools"]))


@daemon.command()
def reload() -> None:
    """Read the settings and the pool records again, without an interruption.

    Says which settings were taken over, which need a restart, and which pools are new. The
    exit code is 7 where something of it failed.
    """
    state = app()
    answer = state.call("reload")
    from sacctl.render.daemon import reload_parts

    state.emit("daemon.reload", answer, lambda: reload_parts(answer))  # type: ignore[arg-type]
    if answer["errors"]:
        raise PartlyError(
            f"not all was reloaded: {'; '.join(answer['errors'])}", hint="sacctl daemon status"
        )
