# SPDX-License-Identifier: Apache-2.0
"""``sacctl metrics``: the daemon's figures for Prometheus."""

from __future__ import annotations

import sys

import click

from sacctl.cli.base import Command
from sacctl.cli.context import app

__all__ = ["metrics"]


@click.command(cls=Command)
def metrics() -> None:
    """The daemon's figures as Prometheus text.

    The daemon serves the same text itself where its settings say so (metrics.listen).
    """
    state = app()
    text = state.call("metrics")["text"]
    if state.output == "json":
        from sacctl.render.prometheus import families

        state.emit("metrics", {"metrics": families(text)}, list)
    else:
        sys.stdout.write(text)
