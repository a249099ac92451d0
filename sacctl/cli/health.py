# SPDX-License-Identifier: Apache-2.0
"""``sacctl health``: what is not as it should be, and what to do."""

from __future__ import annotations

import sys
import textwrap

import click

from sacctl.cli import names
from sacctl.cli.base import Command
from sacctl.cli.context import App, app
from sacctl.errors import UsageError

__all__ = ["health"]

_CODES = (
    (0, "ok"),
    (10, "degraded"),
    (20, "critical"),
    (30, "unknown: no daemon answers, or it may not be asked"),
    (2, "usage"),
    (3, "--explain: there is no such code"),
    (130, "interrupted"),
)


@click.command(cls=Command, exit_codes=_CODES)
@click.option(
    "--plugin",
    is_flag=True,
    help="One line for a monitoring system, and its exit codes: 0 OK, 1 WARNING, "
    "2 CRITICAL, 3 UNKNOWN.",
)
@click.option(
    "--explain",
    metavar="CODE",
    shell_complete=names.codes,
    help="What a finding means and what to do.",
)
def health(plugin: bool, explain: str | None) -> int:
    """What is not as it should be, and what to do.

    Every finding has a code that never changes its meaning. Notes do not count for the
    exit code.
    """
    state = app()
    if explain is not None:
        if plugin:
            raise UsageError("--plugin and --explain do not go together")
        _explain(state, explain)
        return 0
    from sacctl.health import EXIT, examine
    from sacctl.render.daemon import health_parts, plugin_line

    found = examine(state.socket_path())
    if plugin:
        line, code = plugin_line(found)
        sys.stdout.write(line + "\n")
        return code
    state.emit("health", found, lambda: health_parts(found))
    return EXIT[found["status"]]


def _explain(state: App, code: str) -> None:
    from sacctl.health import CHECKS
    from sacctl.health import explain as text_of

    text = text_of(code)  # NotFoundError for a code that is none
    if state.output == "table":
        sys.stdout.write(
            "\n".join(textwrap.fill(line, 79) for line in text.splitlines()) + "\n"
        )
        return
    check = CHECKS[code.upper()]
    cause, _, action = (" ".join(p.split()) for p in check.text.partition("\n\n"))
    values = {
        "code": check.code,
        "severity": check.severity,
        "title": check.title,
        "cause": cause,
        "action": action,
    }
    state.emit("health.explain", values, list)
