# SPDX-License-Identifier: Apache-2.0
"""What the program ``cxl`` of the ndctl project knows beyond sysfs: health, alerts, poison.

These come through the device's mailbox, which sysfs does not offer. Nothing here is needed:
without the program, without root, or with a version that has other options, a device is
shown without these fields. What a device does not report stays absent.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sacctl.cxl.model import Memdev
from sacctl.cxl.sysfs import Sysfs

__all__ = ["Poison", "Reading", "Readings", "ask", "can_list"]

_HEALTH_TIMEOUT = 5.0  # seconds
_POISON_TIMEOUT = 30.0  # a device reads its media for the list
_NO_TEMPERATURE = 0x7FFF


@dataclass(frozen=True, slots=True)
class Poison:
    """A range of a device that holds poison: device addresses in bytes."""

    dpa: int
    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one device; None where it is not reported.

    Attributes:
        temperature: degrees Celsius. life_used: percent.
        status: the conditions that hold, in the device's words ("maintenance_needed").
        errors: counters, such as {"volatile_errors": 0, "dirty_shutdowns": 1}.
        alerts: thresholds, such as {"over_temperature_crit_alert_threshold": 80}.
        poison: None where it was not asked or not answered; () where there is none.
    """

    temperature: int | None = None
    life_used: int | None = None
    status: tuple[str, ...] = ()
    errors: dict[str, int] = field(default_factory=dict)
    alerts: dict[str, int] = field(default_factory=dict)
    poison: tuple[Poison, ...] | None = None


@dataclass(frozen=True, slots=True)
class Readings:
    """Attributes: by_host: by PCI address; note: why there are none, or ""."""

    by_host: dict[str, Reading] = field(default_factory=dict)
    note: str = ""

    def of(self, pci: str) -> Reading | None:
        return self.by_host.get(pci)


def ask(
    *,
    poison: bool,
    memdev: str = "",
    timeout: float = _HEALTH_TIMEOUT,
    poison_timeout: float = _POISON_TIMEOUT,
) -> Readings:
    """Asks ``cxl list``. Nothing is raised: what went wrong is in the note.

    poison: ask for the poison list too, which the device reads its media for. Only where
    the list can be had (see can_list): to others the program shows no poison, as if there
    were none. memdev: only this device. timeout, poison_timeout: seconds for each of both.
    """
    program = shutil.which("cxl")
    if program is None:
        return Readings(
            note="the program cxl is not installed (Debian 13: cxl, Debian 12: ndctl)"
        )
    only = ["-m", memdev] if memdev else []
    base = [program, "list", "-M"]
    # A version that does not know an option refuses all: the next asks for less.
    notes: list[str] = []
    found: dict[str, Reading] = {}
    for options in (["-H", "-A"], ["-H"]):
        listed, said, again = _run([*base, *options, *only], timeout)
        if listed is not None:
            notes, found = [], _by_host(listed, asked_poison=False)
            break
        notes = [said]
        if not again:
            break
    if poison:
        listed, said, _ = _run([*base, "-L", *only], poison_timeout, quiet=True)
        if listed is None:
            notes.append(said)
        else:
            # Health stays where only this failed, and the other way round.
            for host, reading in _by_host(listed, asked_poison=True).items():
                found[host] = replace(found.get(host, Reading()), poison=reading.poison)
    return Readings(found, "; ".join(notes))


def can_list(sysfs: Sysfs, memdev: Memdev) -> str:
    """Why the poison list of a device cannot be had, or ""."""
    if os.geteuid() != 0:
        return "only root may read the poison list"
    if not sysfs.exists(f"{memdev.path}/trigger_poison_list"):
        return "the device, or the kernel, offers no poison list"
    return ""


def _run(
    command: Sequence[str], timeout: float, *, quiet: bool = False
) -> tuple[list[Any] | None, str, bool]:
    """What it printed; else why not, and whether other options may do. quiet: it failed too
    where it complained: a list that could not be read looks as an empty one."""
    words = " ".join(["cxl", *command[1:]])
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return None, f"{words} took more than {timeout:g} s", False
    except OSError as error:
        return None, f"{words} cannot run: {error.strerror}", False
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode or (quiet and said):
        return None, f"{words} failed: {said[0] if said else done.returncode}", True
    try:
        found = json.loads(done.stdout or b"[]")
    except (ValueError, RecursionError):
        return None, f"{words} printed no JSON", True
    return (found if isinstance(found, list) else [found]), "", False


def _by_host(listed: Sequence[Any], asked_poison: bool) -> dict[str, Reading]:
    found: dict[str, Reading] = {}
    for one in listed:
        if not isinstance(one, dict):
            continue
        inner = one.get("memdevs")
        if isinstance(inner, list):  # printed so where regions are listed too
            found |= _by_host(inner, asked_poison)
        elif isinstance(one.get("host"), str):
            found[one["host"]] = _reading(one, asked_poison)
    return found


def _reading(one: dict[str, Any], asked_poison: bool) -> Reading:
    health = one.get("health")
    health = health if isinstance(health, dict) else {}
    temperature, life = _number(health, "temperature"), _number(health, "life_used_percent")
    alerts = one.get("alert_config")
    alerts = alerts if isinstance(alerts, dict) else {}
    return Reading(
        temperature=temperature if _plausible(temperature) else None,
        life_used=life if life is not None and 0 <= life <= 100 else None,
        status=_conditions(health),
        errors={
            key: value
            for key in ("volatile_errors", "pmem_errors", "dirty_shutdowns")
            if (value := _number(health, key)) is not None
        },
        alerts={k: v for k in alerts if "threshold" in k and not k.endswith("_valid")
                and (v := _number(alerts, k)) is not None and v >= 0},
        poison=_poison(one) if asked_poison else None,
    )  # fmt: skip


def _plausible(celsius: int | None) -> bool:
    return celsius is not None and -273 <= celsius < _NO_TEMPERATURE


def _conditions(health: dict[str, Any]) -> tuple[str, ...]:
    """What is true and not the normal case; and of the "ext_" words those not normal."""
    said = [
        key for key, value in health.items() if value is True and not key.endswith("_normal")
    ]
    said += [
        f"{key}: {value}"
        for key, value in health.items()
        if key.startswith("ext_") and value in ("warning", "critical")
    ]
    return tuple(sorted(said))


def _poison(one: dict[str, Any]) -> tuple[Poison, ...]:
    listed = one.get("media_errors", one.get("poison", []))
    if isinstance(listed, dict):  # the first versions that had it: {"records": [...]}
        listed = listed.get("records", [])
    found = []
    for entry in listed if isinstance(listed, list) else []:
        if not isinstance(entry, dict):
            continue
        dpa = _number(entry, "dpa")
        if dpa is None:
            dpa = _number(entry, "offset")
        length = _number(entry, "length")
        if dpa is not None and length:
            found.append(Poison(dpa, length, str(entry.get("source", ""))))
    return tuple(sorted(found, key=lambda p: p.dpa))


def _number(values: dict[str, Any], key: str) -> int | None:
    """A whole number; None for a truth, a text (but 0x..) or nothing."""
    value = values.get(key)
    if isinstance(value, str) and value.startswith("0x"):
        try:
            return int(value, 16)
        except ValueError:
            return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
