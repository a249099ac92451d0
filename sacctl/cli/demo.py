# SPDX-License-Identifier: Apache-2.0
"""``sacctl demo``: a daemon, a writer and a reader at work."""

from __future__ import annotations

import click

from sacctl.cli.base import Command

__all__ = ["demo"]


@click.command(cls=Command)
@click.option(
    "--tokens", type=click.IntRange(2048, 1 << 24), default=16384, help="Of the prefix. [16384]"
)
@click.option("--layers", type=click.IntRange(1, 61), default=8, help="Of the model. [8]")
@click.option("--steps", type=click.IntRange(1), default=8, help="Decode steps. [8]")
def demo(tokens: int, layers: int, steps: int) -> int:
    """See a daemon, a writer and a reader at work.

    Starts a daemon of its own with a pool in ordinary memory. One process puts a long
    prefix, another finds it by its keys and reads the rows that a sparse attention would,
    each byte checked. The daemon is killed and started anew in between. All is removed at
    the end.
    """
    from sacctl.demo import run

    return run(tokens=tokens, layers=layers, steps=steps)
