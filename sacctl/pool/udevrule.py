# SPDX-License-Identifier: Apache-2.0
"""Tells udev which devices are a pool's, so that the daemon's group may open them.

What is done with such devices says udev/90-sac.rules. Which they are says a file for each
pool in /run/udev/rules.d: names of regions, decoders and DAX devices are new at each boot, and
so is the file. Without udev, or without those rules, nothing is written: then the daemon runs
as root, or the tree is a simulated one.
"""

from __future__ import annotations

import grp
import os
import re
import stat
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress

from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, RefusedError, from_os
from sacctl.files import read_regular, write_whole
from sacctl.pool.steps import Step

__all__ = ["GROUP", "ForgetDevices", "MarkDevices", "active", "expect", "rules", "rules_file"]

GROUP = "sac"
POLICY = "90-sac.rules"
PLACES = ("/etc/udev/rules.d", "/usr/local/lib/udev/rules.d", "/usr/lib/udev/rules.d")
FOLDER = "/run/udev/rules.d"
CONTROL = "/run/udev/control"
DAX = "/sys/bus/dax/devices"
CXL = "/sys/bus/cxl/devices"
_MOST = 1 << 20  # bytes of a pool's rules
_TIMEOUT = 60.0  # seconds for udevadm, which waits for its events
_SAFE = re.compile(r"[A-Za-z0-9._:-]+")  # what stands in a rule as it is

Names = Callable[[], Sequence[str]]


def active(sysfs: Sysfs) -> bool:
    """Whether udev runs here and knows what to do with the devices of pools."""
    if sysfs.simulated or not sysfs.exists(CONTROL):
        return False
    return any(sysfs.exists(f"{place}/{POLICY}") for place in PLACES)


def rules_file(pool: str) -> str:
    """The path of the pool's rules."""
    return f"{FOLDER}/80-sac-{_safe(pool)}.rules"


def rules(sysfs: Sysfs, pool: str, devices: Sequence[str], dax: Sequence[str]) -> str:
    """The text of the pool's rules.

    Args:
        devices: "serial:0x100" or "pci:0000:0d:00.0", as in the pool's record.
        dax: names of its DAX devices, which must be there.

    A DAX device is known by its name together with the endpoint decoders of its region: the
    same name in another region is another device. Raises CtlError where a device is not there.
    """
    lines = [f"# Devices of pool {_safe(pool)}, as found in this boot by sacctl."]
    unit = f"sac-pool@{_safe(pool)}.service"
    for device in devices:
        kind, _, value = device.partition(":")
        match = f'ATTR{{serial}}=="{_safe(value)}"'
        if kind == "pci":
            match = f'SUBSYSTEMS=="pci", KERNELS=="{_safe(value)}"'
        lines.append(
            f'ACTION=="add", SUBSYSTEM=="cxl", KERNEL=="mem*", {match}, '
            f'ENV{{SYSTEMD_WANTS}}+="{unit}"'
        )
    for name in dax:
        match = ", ".join([f'KERNEL=="{_safe(name)}"', *_parent(sysfs, name)])
        lines.append(f'SUBSYSTEM=="dax", {match}, ENV{{SAC_POOL}}="{pool}"')
    return "\n".join(lines) + "\n"


def expect(sysfs: Sysfs, pool: str, devices: Sequence[str]) -> None:
    """Has udev start the pool's assembly when one of these devices comes: for a pool that
    cannot be assembled before. Nothing where the pool has rules already."""
    if active(sysfs) and _read(sysfs, pool) is None:
        _write(sysfs, pool, rules(sysfs, pool, devices, ()))
        _udevadm("control", "--reload")


def _parent(sysfs: Sysfs, name: str) -> list[str]:
    """What the device's parent must be."""
    path = sysfs.real(f"{DAX}/{name}")
    if not path:
        raise CtlError(f"there is no DAX device {name}", object=name, hint="sacctl device list")
    parts = path.split("/")
    region = next((part for part in parts if re.fullmatch(r"region\d+", part)), "")
    if not region:
        platform = next((part for part in parts if part.startswith("hmem.")), "")
        return [f'KERNELS=="{_safe(platform)}"'] if platform else []
    found = [f'KERNELS=="{region}"']
    for position in range(sysfs.number(f"{CXL}/{region}/interleave_ways")):
        target = sysfs.get(f"{CXL}/{region}/target{position}")
        if target:
            found.append(f'ATTRS{{target{position}}}=="{_safe(target)}"')
    return found


def _safe(word: str) -> str:
    if not _SAFE.fullmatch(word):
        raise CtlError(f"{word!r} cannot stand in a udev rule", object=word)
    return word


class MarkDevices(Step):
    """Writes the pool's rules and has udev apply them to its DAX devices.

    Args:
        devices, dax: as for rules(), asked when the step is done.

    Applying raises CtlError where the devices do not end up with group and mode, or udevadm
    fails. Undoing restores the rules there were.
    """

    def __init__(self, sysfs: Sysfs, pool: str, devices: Names, dax: Names) -> None:
        self._sysfs, self._pool, self._devices, self._dax = sysfs, pool, devices, dax
        self._before: str | None = None
        self._written = False

    @property
    def what(self) -> str:
        if not active(self._sysfs):
            return ""
        return f"let group {GROUP} open the DAX devices ({rules_file(self._pool)})"

    def apply(self) -> None:
        if not active(self._sysfs):
            return
        dax = self._dax()
        text = rules(self._sysfs, self._pool, self._devices(), dax)
        self._before = _read(self._sysfs, self._pool)
        self._written = True
        if text != self._before:
            _write(self._sysfs, self._pool, text)
            _udevadm("control", "--reload")
        _trigger(dax)
        for name in dax:
            _check(self._sysfs, name)

    def undo(self) -> None:
        if not self._written:
            return
        if self._before is None:
            _remove(self._sysfs, self._pool)
        else:
            _write(self._sysfs, self._pool, self._before)
        _udevadm("control", "--reload")
        for name in self._dax() if self._before is None else ():
            _close(self._sysfs, name)
        self._written = False


class ForgetDevices(Step):
    """Removes the pool's rules. DAX devices that stay (dax) are root's alone again."""

    def __init__(self, sysfs: Sysfs, pool: str, dax: Names = tuple) -> None:
        self._sysfs, self._pool, self._dax = sysfs, pool, dax
        self._before: str | None = None

    @property
    def what(self) -> str:
        there = self._before is not None or _read(self._sysfs, self._pool) is not None
        return f"remove {rules_file(self._pool)}" if there else ""

    def apply(self) -> None:
        if self._sysfs.simulated:
            return
        self._before = _read(self._sysfs, self._pool)
        if self._before is None:
            return
        _remove(self._sysfs, self._pool)
        if self._sysfs.exists(CONTROL):
            _udevadm("control", "--reload")
        for name in self._dax():
            _close(self._sysfs, name)

    def undo(self) -> None:
        if self._before is not None:
            _write(self._sysfs, self._pool, self._before)
            if active(self._sysfs):
                _udevadm("control", "--reload")
                _trigger([n for n in self._dax() if self._sysfs.exists(f"{DAX}/{n}")])
            self._before = None


def _read(sysfs: Sysfs, pool: str) -> str | None:
    path = sysfs.at(rules_file(pool))
    try:
        # Only what it is to be put back to: other than a file of ours is none.
        return read_regular(path, _MOST).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise from_os(error, f"cannot read {path}", hint=f"rm {path}") from None


def _write(sysfs: Sysfs, pool: str, text: str) -> None:
    """Whole or not at all: udev may read it at any moment."""
    path = sysfs.at(rules_file(pool))
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_whole(path, text.encode(), 0o644)  # by way of a name that udev passes by


def _remove(sysfs: Sysfs, pool: str) -> None:
    with suppress(FileNotFoundError):
        sysfs.at(rules_file(pool)).unlink()


def _trigger(dax: Sequence[str]) -> None:
    if dax:
        devices = [f"{DAX}/{name}" for name in dax]
        _udevadm("trigger", "--action=change", "--settle", *devices)


def _udevadm(*words: str) -> None:
    command = ["udevadm", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except FileNotFoundError:
        raise CtlError("udev runs, and there is no udevadm to talk to it") from None
    except subprocess.TimeoutExpired:
        raise CtlError(
            f"udev did not answer within {_TIMEOUT:g} s ({' '.join(command)})",
            hint="systemctl status systemd-udevd",
        ) from None
    if done.returncode:
        raise CtlError(
            f"{' '.join(command)} failed: {done.stderr.strip() or done.returncode}",
            hint="systemctl status systemd-udevd",
        )


def _check(sysfs: Sysfs, name: str) -> None:
    """Raises RefusedError where the daemon's group may not open the device."""
    try:
        gid = grp.getgrnam(GROUP).gr_gid
    except KeyError:
        raise CtlError(
            f"there is no group {GROUP}, which is to own the DAX devices of pools",
            object=name,
            hint="systemd-sysusers",
        ) from None
    found = sysfs.at(f"/dev/{name}").stat()
    if not stat.S_ISCHR(found.st_mode) or found.st_gid != gid or found.st_mode & 0o060 != 0o060:
        raise RefusedError(
            f"/dev/{name} has group {found.st_gid} and mode {stat.S_IMODE(found.st_mode):04o}, "
            f"and not group {GROUP} and mode 0660: another rule of udev comes behind {POLICY}",
            object=name,
            hint=f"udevadm test {DAX}/{name}",
        )


def _close(sysfs: Sysfs, name: str) -> None:
    """Takes back what the rules gave: no rule of anybody else does."""
    path = sysfs.at(f"/dev/{name}")
    with suppress(FileNotFoundError):
        path.chmod(0o600)
        os.chown(path, 0, 0)
