# SPDX-License-Identifier: Apache-2.0
"""Has poison that devices know of taken out of a pool that was just made of them: the daemon
begins with none, and the monitor may not look for an hour."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sacctl.cli.context import App
from sacctl.errors import CtlError

if TYPE_CHECKING:
    from sacctl.daemon.link import Link

__all__ = ["out_of_use"]


def out_of_use(state: App) -> bool:
    """Reads the poison lists of the devices of all pools, as root; whether anything was taken
    out of use, which is said. What is in the way of it is said only to who asks for more: the
    pool is there without it."""
    if os.geteuid() != 0:
        return False
    from sacctl.cxl.tracefs import Trace
    from sacctl.daemon.log import setup
    from sacctl.daemon.monitor import Monitor

    setup("critical", "text")  # what concerns pools is said here
    try:
        # An instance of its own: a monitor may be running.
        with Trace(state.sysfs, f"sac-once-{os.getpid()}") as trace:
            made = Monitor(state.sysfs, trace, lambda: _connect(state))
            told = made.tell(lists=True)
    except (CtlError, OSError) as error:
        state.more(f"the devices' lists of poison were not read: {error}")
        return False
    for note in made.notes:
        # Without bad memory they only say which lists cannot be read.
        (state.say if made.bad else state.more)(f"note: {note}")
    for name in dict.fromkeys(one.spot.pool for one in told):
        places = [one for one in told if one.spot.pool == name]
        count = "1 place is" if len(places) == 1 else f"{len(places)} places are"
        state.say(
            f"pool {name}: {count} poisoned, by the devices' own lists; the 2 MiB around each "
            "are out of use"
        )
    return bool(told)


def _connect(state: App) -> Link:
    from sacctl.daemon.link import Link

    return Link(state.socket_path(), name="sacctl")
