# SPDX-License-Identifier: Apache-2.0
"""``sacctl health``: what is not as it should be, and what to do."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TYPE_CHECKING

import click

from sacctl.cli import names
from sacctl.cli.base import Command
from sacctl.cli.context import App, app
from sacctl.errors import CtlError, UsageError

if TYPE_CHECKING:
    from sacctl.cxl.condition import Condition
    from sacctl.pool.record import Record
    from sacctl.records import HealthRecord, PoolRecord

__all__ = ["health", "look"]

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
    exit code. As root the CXL devices of the pools are asked, too: temperature, wear,
    alerts, and their lists of poison.
    """
    state = app()
    if explain is not None:
        if plugin:
            raise UsageError("--plugin and --explain do not go together")
        _explain(state, explain)
        return 0
    from sacctl.health import EXIT
    from sacctl.render.daemon import health_parts, plugin_line

    found = look(state)
    if plugin:
        line, code = plugin_line(found)
        sys.stdout.write(line + "\n")
        return code
    state.emit("health", found, lambda: health_parts(found))
    return EXIT[found["status"]]


def look(state: App) -> HealthRecord:
    """What the daemon found, and what this user sees beside it. Raises nothing of sacctl."""
    from sacctl.health import examine, with_more

    found = examine(state.socket_path())
    answered = not {f["code"] for f in found["findings"]} & {"SAC101", "SAC102", "SAC106"}
    return with_more(found, _devices(state, answered))


def _devices(state: App, answered: bool) -> list[Condition]:
    """What this user can see of the pools' devices, beside the daemon's answer."""
    from sacctl import health_devices

    try:
        pools = _pools(state, answered)
        found = [*_half_made(state), *health_devices.look(state.sysfs, pools)]
        if os.geteuid() == 0:
            found += health_devices.ask_devices(state.sysfs, pools)
        return found
    except (CtlError, OSError) as error:
        state.more(f"the devices of the pools cannot be looked at: {error}")
        return []


def _half_made(state: App) -> list[Condition]:
    """Pools that a command left so: the daemon does not know those that it has not opened."""
    from sacctl.cli import offline
    from sacctl.cxl.condition import Condition

    left = [r for r in _records(state) if r.state in ("creating", "destroying")]
    shown = [offline.offline(record, True) for record in left]
    return [
        Condition("SAC201", p["name"], f"it is not served: {p['reason']}", p["hint"])
        for p in shown
    ]


def _records(state: App) -> list[Record]:
    """Those that can be read: of the others the daemon says what is wrong."""
    from sacctl.cli import offline

    records, found = offline.own_records(state), []
    for name in records.names():
        try:
            found.append(records.find(name))
        except CtlError as error:
            state.more(f"a record is left out: {error}")
    return [record for record in found if record is not None]


def _pools(state: App, answered: bool) -> list[PoolRecord]:
    """Of the daemon; where it did not answer, of the records that there are."""
    from sacctl.cli import offline

    if answered:
        return offline.all_pools(state)
    return [offline.offline(record, False) for record in _records(state)]


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
