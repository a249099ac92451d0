# SPDX-License-Identifier: Apache-2.0
"""Health of the devices behind pools: what sysfs shows, and to root the devices themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from shutil import which
from typing import Any

from sacctl.cxl.alerts import alerts, members, poisoned
from sacctl.cxl.condition import Condition, History, Use, conditions, uses
from sacctl.cxl.guard import left_behind
from sacctl.cxl.model import Topology
from sacctl.cxl.poison import locate, places
from sacctl.cxl.read import read
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.tools import ask
from sacctl.cxl.tracefs import Trace, read_poison
from sacctl.errors import CtlError

__all__ = ["ask_devices", "look"]

Pools = Sequence[Mapping[str, Any]]  # records of pool.list

_INSTALL = "apt install cxl (Debian 13), or ndctl (Debian 12)"
_LOG = "journalctl -k says more, if it should have one"
_NONE = "nothing is to be done: what is in sysfs is looked at all the same"


def look(sysfs: Sysfs, pools: Pools, history: History | None = None) -> list[Condition]:
    """What an ordinary user may see. Remembers the look in the history. Raises nothing but
    OSError where sysfs is not to be read at all."""
    used = uses(pools)
    if not used:
        return []
    topology = read(sysfs)
    if history is not None:
        history.note(topology)
    return [*_policy(sysfs), *conditions(sysfs, topology, used, history)]


def _policy(sysfs: Sysfs) -> list[Condition]:
    """What a command that was killed left switched."""
    return [
        Condition(
            "SAC516",
            path,
            f"a command that was killed left it changed; it was {value}",
            f"echo {value} > {path}",
        )
        for path, value in left_behind(sysfs).items()
    ]


def ask_devices(sysfs: Sysfs, pools: Pools) -> list[Condition]:
    """What the devices tell root: temperature, wear, alerts and poison. Changes nothing but
    the instance of tracefs that it makes and removes. Raises nothing of sacctl."""
    used = uses(pools)
    if not used:
        return []
    topology = read(sysfs)
    found = _reported(sysfs, topology, used)
    names = [m.name for m in members(topology, used)]
    try:
        with Trace(sysfs, f"sac-health-{os.getpid()}") as trace:
            events, failed = read_poison(sysfs, trace, names)
    except CtlError as error:
        hint = error.hint or (_NONE if sysfs.simulated else _LOG)
        return [*found, Condition("SAC515", "poison lists", error.message, hint)]
    known = places(sysfs, pools)
    bad = [(event, locate(event, topology, known)) for event in events if event.damaged]
    found += poisoned(bad)
    found += [Condition("SAC515", why.partition(":")[0], why, _LOG) for why in failed]
    return found


def _reported(sysfs: Sysfs, topology: Topology, used: Sequence[Use]) -> list[Condition]:
    """What the program cxl says. It knows this machine's devices only, so that it is not asked
    where the tree is another one."""
    if sysfs.simulated:
        return [Condition("SAC515", "devices", "not asked: this is a simulated machine", _NONE)]
    readings = ask(poison=False)
    found = list(alerts(topology, used, readings))
    if readings.note:
        hint = "sudo cxl list -M -H -A shows what is wrong" if which("cxl") else _INSTALL
        found.append(Condition("SAC515", "devices", f"not asked: {readings.note}", hint))
    return found
