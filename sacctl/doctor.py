# SPDX-License-Identifier: Apache-2.0
"""Collects what a report of a bug needs. Only looks; has no keys, token ids or contents of
pages, for nothing that is asked has them.

Each part is collected on its own: what cannot be read is named in ``unread``, and the rest
is there all the same.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError
from sacctl.files import read_regular

__all__ = ["Doctor", "Report"]

Report = dict[str, Any]

PACKAGES = ("libsac", "numpy", "click", "rich", "pyudev", "torch")
PROGRAMS = ("cxl", "daxctl", "ndctl", "systemctl", "udevadm", "qemu-system-x86_64")
UNITS = ("sacd.service", "sacd.socket", "sac-monitor.service", "sac-health.service")
VARIABLES = (
    "SAC_CONFIG",
    "SAC_ISA",
    "SAC_LIBCUDA",
    "SAC_NVRTC",
    "SAC_SOCKET",
    "SAC_SYSROOT",
    "SAC_SYSTEM",
)
LINES = 500  # of a log
TIMEOUT = 10.0  # seconds a program has
MOST_BYTES = 4096  # of an attribute
FOLDERS = ("/sys/bus/cxl/devices", "/sys/bus/dax/devices")
FILES = (
    "/sys/devices/system/memory/auto_online_blocks",
    "/sys/devices/system/memory/block_size_bytes",
    "/sys/bus/dax/drivers_autoprobe",
    "/proc/cmdline",
)
# Read by the kernel as a question to the hardware, or not text.
_SKIPPED = {"CDAT", "config", "rom", "power", "firmware", "trigger_poison_list"}
_KERNEL = re.compile(
    r"cxl|dax|kmem|hmem|ACPI0017|AER|pciehp|memory failure|hardware error|mce|soft reserved"
    r"|sacd|sacctl|libsac|VFIO|IOMMU",
    re.IGNORECASE,
)
_IOMEM = re.compile(r"cxl|dax|kmem|soft reserved|system ram|persistent", re.IGNORECASE)


class Doctor:
    """Collects the parts of a report.

    ask: one administration request to the daemon; raises CtlError. settings: dotted names
    and values. pools, health: how to get those, also without a daemon.

    Attributes:
        unread: what could not be read and why, as sentences.
    """

    def __init__(
        self,
        sysfs: Sysfs,
        ask: Callable[[str], dict[str, Any]],
        settings: Callable[[], dict[str, Any]],
        pools: Callable[[], list[Any]],
        health: Callable[[], dict[str, Any]],
        records: Path | None,
    ) -> None:
        self._sysfs = sysfs
        self._ask = ask
        self._settings = settings
        self._pools = pools
        self._health = health
        self._records = records
        self.unread: list[str] = []

    def report(self) -> Report:
        """All parts. Raises nothing of sacctl or the system."""
        return {
            "versions": self._try("versions", _versions, {}),
            "settings": self._try("settings", self._settings, {}),
            "environment": {k: os.environ[k] for k in VARIABLES if k in os.environ},
            "daemon": self._try("the daemon", lambda: self._ask("status")["daemon"], {}),
            "pools": self._try("pools", self._pools, []),
            "records": self._try("records", self._read_records, {}),
            "namespaces": self._try(
                "namespaces", lambda: self._ask("namespace.list")["namespaces"], []
            ),
            "clients": self._try("clients", lambda: self._ask("client.list")["clients"], []),
            "health": self._try("health", self._health, {}),
            "devices": self._try("devices", self._devices, {}),
            "sysfs": self._try("sysfs", self._attributes, {}),
            "iomem": self._try("/proc/iomem", self._iomem, []),
            "units": self._try("units", self._units, []),
            "log": self._try("the daemon's log", self._log, []),
            "kernel": self._try("the kernel's log", self._kernel, []),
            "unread": self.unread,
        }

    def _try(self, what: str, collect: Callable[[], Any], nothing: Any) -> Any:
        try:
            return collect()
        except CtlError as error:
            self.unread.append(f"{what}: {error.message}")
        except (OSError, ValueError, KeyError) as error:
            self.unread.append(f"{what}: {error}")
        return nothing

    def _read_records(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for path in sorted(self._records.glob("*.toml")) if self._records else []:
            try:
                found[path.name] = read_regular(path, 1 << 20).decode(errors="replace")
            except OSError as error:
                self.unread.append(f"{path}: {error.strerror}")
        return found

    def _devices(self) -> dict[str, Any]:
        from sacctl.cxl.read import read

        return asdict(read(self._sysfs))

    def _attributes(self) -> dict[str, str]:
        """Path and text of each attribute; of a link where it leads."""
        found: dict[str, str] = {}
        for path in FILES:
            self._attribute(found, path)
        for folder in FOLDERS:
            for device in self._sysfs.names(folder):
                for name in self._sysfs.names(f"{folder}/{device}"):
                    if name not in _SKIPPED:
                        self._attribute(found, f"{folder}/{device}/{name}")
        return found

    def _attribute(self, found: dict[str, str], path: str) -> None:
        at = self._sysfs.at(path)
        if at.is_symlink():
            found[path] = "-> " + self._sysfs.real(path)
        elif at.is_file() and at.stat().st_mode & 0o444:
            try:
                found[path] = self._sysfs.read(path)[:MOST_BYTES]
            except OSError as error:
                self.unread.append(f"{path}: {error.strerror}")

    def _iomem(self) -> list[str]:
        """With addresses for root only: others see zeros."""
        lines = self._sysfs.read("/proc/iomem").splitlines()
        return [line for line in lines if _IOMEM.search(line)]

    def _units(self) -> list[str]:
        if self._sysfs.simulated:
            return []
        return _run(["systemctl", "--no-pager", "--full", "status", *UNITS], (0, 3, 4))

    def _log(self) -> list[str]:
        if self._sysfs.simulated:
            return []
        units = [word for unit in (*UNITS, "sac-pool@*") for word in ("-u", unit)]
        return _run(
            ["journalctl", "--no-pager", "-q", "-o", "short-iso", "-n", str(LINES), *units]
        )

    def _kernel(self) -> list[str]:
        if self._sysfs.simulated:
            return []
        return [line for line in _run(["dmesg"]) if _KERNEL.search(line)][-LINES:]


def _versions() -> dict[str, str]:
    found = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "system": _system(),
        "python": f"{platform.python_version()} at {sys.executable}",
        "user": str(os.geteuid()),
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    try:
        from libsac import _core

        found["libsac core"] = str(_core.version())
    except ImportError as error:
        found["libsac core"] = f"cannot be loaded: {error}"
    for name in PROGRAMS:
        if shutil.which(name):
            try:
                found[name] = (_run([name, "--version"]) or [""])[0]
            except CtlError as error:
                found[name] = error.message
    return found


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _run(command: list[str], good: tuple[int, ...] = (0,)) -> list[str]:
    """The lines that a program prints. Raises CtlError."""
    words = " ".join(command)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
        )
    except FileNotFoundError:
        raise CtlError(f"there is no program {command[0]}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CtlError(f"{words}: {error}") from None
    if done.returncode not in good:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise CtlError(f"{words}: {said[0] if said else f'exit code {done.returncode}'}")
    return done.stdout.decode("utf-8", "replace").splitlines()
