# SPDX-License-Identifier: Apache-2.0
"""``sacctl device monitor``: hears what CXL devices tell, and takes bad memory out of use."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import click

from sacctl.cli.base import Command
from sacctl.cli.context import App, app
from sacctl.errors import DeniedError

if TYPE_CHECKING:
    from sacctl.cxl.events import Event
    from sacctl.daemon.link import Link
    from sacctl.daemon.monitor import Monitor, Told

__all__ = ["monitor"]

_EXAMPLES = """\
Examples:
  sacctl device monitor --once     (reads the poison lists once, and ends)
  sacctl device monitor            (as sac-monitor.service does)
"""


@click.command(cls=Command, epilog=_EXAMPLES)
@click.option(
    "--once",
    is_flag=True,
    help="Read the poison lists, have the daemon take bad blocks out of use, and end.",
)
@click.option(
    "--every",
    type=click.IntRange(60, 30 * 86400),
    default=3600,
    show_default=True,
    metavar="SECONDS",
    help="How often the poison lists are read: some devices do not tell of new poison.",
)
def monitor(once: bool, every: int) -> None:
    """Hear the events of CXL devices, and take poisoned memory of pools out of use.

    Needs root: it traces the kernel in an instance of its own and reads addresses. The
    daemon is told which blocks of 2 MiB are bad; their pages leave, and readers compute them
    anew. Runs until SIGTERM, and goes on while the daemon is restarted.
    """
    state = app()
    if os.geteuid() != 0:
        raise DeniedError(
            "only root may hear the events of devices", hint="sudo sacctl device monitor"
        )
    if once:
        _once(state)
        return
    from sacctl.daemon.log import setup
    from sacctl.daemon.monitor import watch
    from sacctl.daemon.notify import Notifier
    from sacctl.daemon.signals import Signals

    settings = state.settings
    setup(settings.log.level, settings.log.format)
    notifier = Notifier()
    try:
        with Signals((signal.SIGTERM, signal.SIGINT)) as signals:
            watch(state.sysfs, lambda: _connect(state), notifier, signals, float(every))
    finally:
        notifier.close()


def _connect(state: App) -> Link:
    """A connection of its own each time: the daemon may be another one than before."""
    from sacctl.daemon.link import Link

    return Link(state.socket_path(), name="sac-monitor")


def _once(state: App) -> None:
    from sacctl.cxl.tracefs import Trace
    from sacctl.daemon.log import setup
    from sacctl.daemon.monitor import Monitor
    from sacctl.render.faults import monitor_parts

    setup("error", "text")
    # Not the instance of a monitor that runs.
    with Trace(state.sysfs, f"sac-once-{os.getpid()}") as trace:
        made = Monitor(state.sysfs, trace, lambda: _connect(state))
        told = made.tell(lists=True)
    values = _record(made, told)
    state.emit("device.monitor", values, lambda: monitor_parts(values))


def _record(made: Monitor, told: list[Told]) -> dict[str, Any]:
    return {
        "poison": [_event(event) for event in made.bad],
        "quarantined": [
            {
                "pool": one.spot.pool,
                "extent": one.spot.extent,
                "offset": one.spot.offset,
                "bytes": one.spot.bytes,
                "pages": one.pages,
            }
            for one in told
        ],
        "notes": made.notes,
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "device": event.memdev,
        "serial": f"{event.serial:#x}",
        "pci": event.pci,
        "dpa": event.dpa,
        "hpa": event.hpa,
        "bytes": event.bytes,
        "region": event.region,
    }
