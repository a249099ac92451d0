# SPDX-License-Identifier: Apache-2.0
"""A device that goes and is back at once: `pool assemble` restores the pool, whether or not
the daemon has seen by then that anything was gone."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from vm.guest import cxl
from vm.guest.kit import equal, sacctl, until
from vm.guest.product import Daemon, Pages, daemon, pool, record, room
from vm.scenarios.faults import devices, put

TOPOLOGIES = ("1hb1",)
LIMIT = 300
ASSEMBLE = ("sacctl", "pool", "assemble", "kv", "--wait", "30")


def away_and_back() -> float:
    """The device leaves the bus and is found there again; the seconds that it was away."""
    pci = cxl.devices()[0].pci
    begun = time.monotonic()
    cxl.must(f"/sys/bus/pci/devices/{pci}/remove", 1)
    cxl.must("/sys/bus/pci/rescan", 1)
    until("the device", lambda: 0 in cxl.devices())
    return time.monotonic() - begun


def whole(pages: Pages) -> None:
    """The pool is on devices that are there, and a client of before uses it."""
    shown = record("kv")
    equal(shown["state"], "serving", "state")
    for path in (shown["meta"], shown["extents"][0]["path"]):
        equal(cxl.driver(Path(path).name), "device_dax", f"driver of {path}")
    until("the client to attach anew", lambda: put(pages), 60)
    equal(pages.found(), 4, "pages put anew by the same process")


def test_assembled_when_the_daemon_has_seen_it() -> None:
    with daemon(), pool("kv", "--devices", devices(), *room()):
        pages = Pages("kv", "chat")
        pages.put()
        away = away_and_back()
        assert away < 1.5, f"the device was away for {away:.1f} s"
        until("the pool to be lost", lambda: record("kv")["state"] == "lost", 30)
        sacctl(*ASSEMBLE[1:], limit=200)
        whole(pages)
        pages.close()


def test_assembled_before_the_daemon_has_seen_it() -> None:
    with daemon() as it, pool("kv", "--devices", devices(), *room()):
        pages = Pages("kv", "chat")
        pages.put()
        equal(_assembled_behind_its_back(it), 0, "exit code of pool assemble")
        whole(pages)
        pages.close()


def _assembled_behind_its_back(it: Daemon) -> int:
    """The daemon stands still from before the device goes until it is back and the question
    of `pool assemble` waits for it."""
    assert it.process
    it.process.send_signal(signal.SIGSTOP)
    try:
        away_and_back()
        assembling = subprocess.Popen(ASSEMBLE)
        time.sleep(4)
        equal(assembling.poll(), None, "assemble did not wait for the daemon")
    finally:
        it.process.send_signal(signal.SIGCONT)
    return assembling.wait(200)
