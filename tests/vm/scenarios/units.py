# SPDX-License-Identifier: Apache-2.0
"""The units with a pool of CXL devices: activation, permissions, restarts, return, boot."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

from vm.guest.kit import equal, host, sacctl, sh, until
from vm.guest.product import room
from vm.guest.system import (
    Client,
    ask_as,
    daemon_pid,
    devices_of_pool,
    engine,
    pool_state,
    property_of,
    system_files,
    wait_for_daemon,
)

INIT = "systemd"
STATE = True
KERNELS = ("6.12",)  # the longest of all; the kernels do not differ in what it is about
LIMIT = 900

UNITS = ("sacd.socket", "sacd.service", "sac-pools.service", "sac-monitor.service")


def test_units() -> None:
    """One story: each part begins with what the one before has left."""
    system_files()
    sh("systemctl", "enable", *UNITS, "sac-health.timer")
    engine("engine", "sac-clients")
    engine("stranger")
    _activation()
    _pool()
    _monitor()
    client = Client("engine")
    _restarts(client)
    _reload()
    client.stop()
    _health()
    _return()


def _activation() -> None:
    """The socket starts the daemon, which runs as its own user and under its own limits."""
    sh("systemctl", "start", "sacd.socket")
    equal(property_of("sacd.service", "ActiveState"), "inactive", "before anybody asks")
    # Any answer: on a slow machine the daemon takes longer to start than a command waits.
    sacctl("daemon", "status", code=None)
    pid = wait_for_daemon()
    found = sacctl("daemon", "status", "-o", "json").json["daemon"]
    equal((found["state"], found["pid"]), ("serving", pid), "the daemon that was started")
    status = Path(f"/proc/{pid}/status").read_text()
    user = Path("/etc/passwd").read_text().split("\nsac:x:")[1].split(":")[0]
    assert f"\nUid:\t{user}\t" in status, status
    for name in ("CapEff", "CapBnd", "CapPrm"):
        assert f"\n{name}:\t{'0' * 16}\n" in status, status
    assert "\nNoNewPrivs:\t1\n" in status
    assert "\nSeccomp:\t2\n" in status
    ask_as("engine", "sacctl", "daemon", "status")
    ask_as("stranger", "sacctl", "daemon", "status", code=5)


def _pool() -> None:
    """Its devices are the daemon's, and no client's."""
    sacctl("pool", "create", "kv", "--devices", "serial:0x100,serial:0x101", *room(), limit=180)
    equal(pool_state("kv"), "serving", "the pool")
    rules = [
        *Path("/run/udev/rules.d").glob("80-sac-*"),
        Path("/usr/lib/udev/rules.d/90-sac.rules"),
    ]
    equal(len(rules), 2, "files of rules")
    sh("udevadm", "verify", *map(str, rules))
    mine = devices_of_pool()
    assert len(mine) >= 2, sh("ls", "-l", "/dev").out
    for device in mine:
        equal(stat.S_IMODE(device.stat().st_mode), 0o660, f"mode of {device}")
    for device in Path("/dev/cxl").glob("mem*"):
        equal((device.stat().st_gid, device.stat().st_mode & 0o077), (0, 0), str(device))
    script = f"open({str(mine[0])!r}, 'r+b')"
    ask_as("engine", "python3", "-c", script, code=1)
    # The rules hold at every later event, also one of another driver's.
    mine[0].chmod(0o600)
    sh("udevadm", "trigger", "--settle", f"/sys/bus/dax/devices/{mine[0].name}")
    equal(stat.S_IMODE(mine[0].stat().st_mode), 0o660, "after an event")
    sacctl(
        *("namespace", "create", "chat", "--layout", "deepseek-v3.2-fp8", "--layers", "2"),
        *("--quota", "16M", "--mode", "0666"),
    )


def _monitor() -> None:
    """It hears events with none of root's powers."""
    sh("systemctl", "start", "sac-monitor.service", limit=120)
    pid = property_of("sac-monitor.service", "MainPID")
    status = Path(f"/proc/{pid}/status").read_text()
    assert "\nUid:\t0\t" in status, status
    assert f"\nCapEff:\t{'0' * 16}\n" in status, status
    assert list(Path("/sys/kernel/tracing/instances").iterdir()), "no trace instance"


def _restarts(client: Client) -> None:
    """The pool's descriptors are kept by the service manager; clients wait and go on."""
    kept = int(property_of("sacd.service", "NFileDescriptorStore"))
    assert kept >= 2, kept
    before = daemon_pid()
    sh("systemctl", "restart", "sacd.service", limit=120)
    before = wait_for_daemon(before)
    equal(pool_state("kv"), "serving", "the pool after a restart")
    equal(int(property_of("sacd.service", "NFileDescriptorStore")), kept, "descriptors kept")
    client.goes_on()
    os.kill(before, signal.SIGKILL)
    before = wait_for_daemon(before)
    equal(pool_state("kv"), "serving", "the pool after a kill")
    client.goes_on()
    _watchdog(before)
    client.goes_on(120)


def _watchdog(before: int) -> None:
    """A daemon that hangs is restarted. Sooner here than in half a minute."""
    place = Path("/run/systemd/system/sacd.service.d")
    place.mkdir(parents=True)
    (place / "watchdog.conf").write_text("[Service]\nWatchdogSec=10\n")
    sh("systemctl", "daemon-reload")
    sh("systemctl", "restart", "sacd.service", limit=120)
    before = wait_for_daemon(before)
    os.kill(before, signal.SIGSTOP)
    wait_for_daemon(before)
    assert int(property_of("sacd.service", "NRestarts")) >= 1
    log = sh("journalctl", "-u", "sacd", "-o", "cat", "--no-pager").out
    assert "Watchdog timeout" in log, log
    (place / "watchdog.conf").unlink()
    sh("systemctl", "daemon-reload")


def _reload() -> None:
    """A reload says whether it went well."""
    settings = Path("/etc/sac/sac.toml")
    settings.write_text('[log]\nlevel = "debug"\n')
    sh("systemctl", "reload", "sacd.service")
    settings.write_text("[log]\nlevl = 1\n")
    sh("systemctl", "reload", "sacd.service", code=1)
    equal(property_of("sacd.service", "ActiveState"), "active", "after a reload that failed")
    settings.unlink()


def _health() -> None:
    """Fine: success. No daemon: a failure, with one line at crit."""
    sh("systemctl", "start", "sac-health.service", limit=120)
    sh("systemctl", "stop", "sacd.socket", "sacd.service", limit=120)
    sh("systemctl", "start", "sac-health.service", code=1, limit=120)
    line = until(
        "the alarm",
        lambda: sh("journalctl", "-t", "sac-health", "-p", "crit", "-o", "cat").out.strip(),
        90,
    )
    assert "SAC UNKNOWN" in line, line
    sh("systemctl", "reset-failed")
    sh("systemctl", "start", "sacd.socket", "sacd.service", limit=120)
    equal(pool_state("kv"), "serving", "the pool after a stop and a start")


def _return() -> None:
    """A device that comes back has its pool assembled, by udev and the unit."""
    host.unplug(0)
    until("the loss", lambda: pool_state("kv") != "serving", 90)
    host.plug(0)
    until("the pool's return", lambda: pool_state("kv") == "serving", 180)
    log = sh("journalctl", "-u", "sac-pool@kv.service", "-o", "cat", "--no-pager").out
    assert "Assembly of CXL memory pool kv" in log, log


def again_units() -> None:
    """The next boot: nobody does anything, and the pool is there."""
    until(
        "the assembly of all pools",
        lambda: property_of("sac-pools.service", "ActiveState") in ("active", "failed"),
        180,
    )
    sh("journalctl", "-b", "-u", "sac-pools.service", "-u", "sacd", "-o", "cat", "--no-pager")
    equal(property_of("sac-pools.service", "Result"), "success", "sac-pools.service")
    equal(pool_state("kv"), "serving", "the pool")
    assert len(devices_of_pool()) >= 2
    client = Client("engine")
    client.stop()
    sacctl("pool", "destroy", "kv", "--yes", limit=180)
    equal(devices_of_pool(), [], "devices of the daemon's group, after the end of the pool")
    assert not list(Path("/run/udev/rules.d").glob("80-sac-*"))
