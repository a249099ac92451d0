# SPDX-License-Identifier: Apache-2.0
"""What the program ``cxl`` prints, over its versions, and how it fails."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from sacctl.cxl.model import Link, Memdev
from sacctl.cxl.read_udev import names_of
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.tools import Poison, Reading, ask, can_list
from sacctl.cxl.verdict import health_word

# As ndctl 81 printed it in a virtual machine, whose devices report no health.
V81 = """\
[
  {"memdev":"mem1", "ram_size":268435456, "serial":257, "host":"0000:35:00.0",
   "firmware_version":"BWFW VERSION 00"},
  {"memdev":"mem0", "ram_size":268435456, "serial":256, "host":"0000:0d:00.0",
   "firmware_version":"BWFW VERSION 00",
   "media_errors":[{"offset":4096, "length":64, "source":"Injected"}]}
]
"""
# With a device that reports all of it.
FULL = [
    {
        "memdev": "mem0",
        "host": "0000:0d:00.0",
        "health": {
            "maintenance_needed": False, "performance_degraded": True,
            "hw_replacement_needed": False, "media_normal": True, "media_not_ready": False,
            "ext_life_used": "normal", "ext_temperature": "warning", "life_used_percent": 12,
            "temperature": 61, "dirty_shutdowns": 3, "volatile_errors": 7, "pmem_errors": 0,
        },
        "alert_config": {
            "life_used_prog_warn_threshold_valid": True,
            "life_used_crit_alert_threshold": 95,
            "dev_over_temperature_crit_alert_threshold": 80,
            "dev_over_temperature_prog_warn_threshold_writable": True,
        },
        "media_errors": [{"dpa": "0x3000", "length": 64, "source": "Internal"},
                         {"dpa": 4096, "length": 128, "source": "External"}],
    }
]  # fmt: skip


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a program cxl in the way: what it is as shell; $* are its words."""

    def put(script: str) -> None:
        at = tmp_path / "bin" / "cxl"
        at.parent.mkdir(exist_ok=True)
        at.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n{script}\n')
        at.chmod(at.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{at.parent}:{os.environ['PATH']}")

    return put


def printing(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"cat <<'END'\n{text}\nEND"


def asked(tmp_path: Path) -> list[str]:
    return (tmp_path / "asked").read_text().splitlines()


def test_what_a_version_of_today_prints(program: Any, tmp_path: Path) -> None:
    program(printing(V81))
    found = ask(poison=True)
    assert found.note == ""
    assert found.of("0000:0d:00.0") == Reading(poison=(Poison(4096, 64, "Injected"),))
    assert found.of("0000:35:00.0") == Reading(poison=())
    assert found.of("0000:99:00.0") is None
    assert asked(tmp_path) == ["list -M -H -A", "list -M -L"]
    # Without -L nobody looked for poison: that there is none, nobody said.
    assert ask(poison=False).by_host["0000:35:00.0"].poison is None


def test_everything_a_device_can_report(program: Any) -> None:
    program(printing(FULL))
    found = ask(poison=True).by_host["0000:0d:00.0"]
    assert (found.temperature, found.life_used) == (61, 12)
    assert found.status == ("ext_temperature: warning", "performance_degraded")
    assert found.errors == {"volatile_errors": 7, "pmem_errors": 0, "dirty_shutdowns": 3}
    assert found.alerts == {
        "life_used_crit_alert_threshold": 95,
        "dev_over_temperature_crit_alert_threshold": 80,
    }
    assert found.poison == (Poison(4096, 128, "External"), Poison(0x3000, 64, "Internal"))


def test_with_regions_and_older_keys(program: Any) -> None:
    records = [{"dpa": 64, "length": 64, "source": "Unknown"}]
    one = {"host": "a", "poison": {"nr_records": 1, "records": records}}
    program(printing([{"memdevs": [one]}, {"regions": [{"region": "region0"}]}]))
    assert ask(poison=True).by_host["a"].poison == (Poison(64, 64, "Unknown"),)


def test_what_is_not_reported_is_absent(program: Any) -> None:
    program(
        printing([{"host": "a", "health": {"temperature": 0x7FFF, "life_used_percent": 255}}])
    )
    assert ask(poison=False).by_host["a"] == Reading()


def test_a_version_that_does_not_know_an_option(program: Any, tmp_path: Path) -> None:
    refused = "case \"$*\" in *-L*|*-A*) echo 'unknown switch' >&2; exit 129;; esac\n"
    program(refused + printing(FULL))
    found = ask(poison=True, memdev="mem0")
    # Its health is kept; of poison nothing is known.
    assert found.by_host["0000:0d:00.0"].temperature == 61
    assert found.by_host["0000:0d:00.0"].poison is None
    assert found.note == "cxl list -M -L -m mem0 failed: unknown switch"
    assert asked(tmp_path) == [
        "list -M -H -A -m mem0",
        "list -M -H -m mem0",
        "list -M -L -m mem0",
    ]


def test_only_the_poison_list_hangs(program: Any) -> None:
    program(f'case "$*" in *-L*) exec sleep 60;; esac\n{printing(FULL)}')
    found = ask(poison=True, poison_timeout=0.3)
    assert found.by_host["0000:0d:00.0"].temperature == 61
    assert found.by_host["0000:0d:00.0"].poison is None
    assert "took more than 0.3 s" in found.note


def test_only_the_health_fails(program: Any) -> None:
    program(f'case "$*" in *-H*) exit 1;; esac\n{printing(V81)}')
    found = ask(poison=True)
    assert found.by_host["0000:0d:00.0"].poison == (Poison(4096, 64, "Injected"),)
    assert found.note == "cxl list -M -H failed: 1"


def test_a_list_that_could_not_be_read_is_not_an_empty_one(program: Any) -> None:
    program(f'case "$*" in *-L*) echo "tracefs: no access" >&2;; esac\n{printing(FULL)}')
    found = ask(poison=True)
    assert found.by_host["0000:0d:00.0"].poison is None
    assert "tracefs: no access" in found.note


def test_who_can_list_poison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs = Sysfs(tmp_path)
    one = memdev(path="/sys/devices/mem0")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "offers no poison list" in can_list(sysfs, one)
    sysfs.at(one.path).mkdir(parents=True)
    sysfs.at(f"{one.path}/trigger_poison_list").touch()
    assert can_list(sysfs, one) == ""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "only root" in can_list(sysfs, one)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo oh no >&2; exit 1", "failed: oh no"),
        ("exit 3", "failed: 3"),
        ("echo '[{'", "printed no JSON"),
        ("exec head -c 100000 /dev/zero | tr '\\0' '['", "printed no JSON"),
        ("kill -9 $$", "failed: -9"),
    ],
)
def test_it_fails(program: Any, script: str, said: str) -> None:
    program(script)
    found = ask(poison=True)
    assert found.by_host == {}
    assert said in found.note


def test_it_hangs(program: Any) -> None:
    program("exec sleep 60")
    began = time.monotonic()
    found = ask(poison=True, timeout=0.3, poison_timeout=0.3)
    assert time.monotonic() - began < 10
    assert "took more than 0.3 s" in found.note


@pytest.mark.parametrize(
    "printed",
    ['""', "7", "null", "[]", "{}", "[null, 3, [], {}]", '[{"host": 5}]',
     '[{"host": "a", "health": 5, "alert_config": [], "media_errors": {"records": 4}}]',
     '[{"host": "a", "media_errors": [3, {"dpa": "0xzz"}, {"length": true, "dpa": 1}]}]', ""],
)  # fmt: skip
def test_it_prints_nonsense(program: Any, printed: str) -> None:
    program(printing(printed))
    for reading in ask(poison=True).by_host.values():
        assert reading == Reading(poison=())


def test_no_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    note = "the program cxl is not installed (Debian 13: cxl, Debian 12: ndctl)"
    assert ask(poison=True).note == note


# ------------------------------------------------------------------------------ health


def memdev(**changes: Any) -> Memdev:
    values: dict[str, Any] = {
        "name": "mem0", "serial": 1, "pci": "", "vendor": 0, "device": 0, "firmware": "",
        "numa_node": -1, "ram_bytes": 0, "pmem_bytes": 0, "driver": "", "host_bridge": "",
        "ports": (), "dports": (), "endpoint": "", "decoders": (), "link": None,
    }  # fmt: skip
    return Memdev(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "reading", "word"),
    [
        ({}, None, "unknown"),
        ({}, Reading(), "ok"),
        ({"link": Link(32, 16, 32, 16)}, None, "ok"),
        ({"link": Link(16, 16, 32, 16)}, None, "link degraded"),
        ({"link": Link(16, 16, 32, 16)}, Reading(status=("maintenance_needed",)), "warning"),
        ({"aer": {"correctable": 9}}, None, "ok"),
        ({"aer": {"nonfatal": 9}}, Reading(status=("maintenance_needed",)), "errors"),
        ({"aer": {"nonfatal": 9}}, Reading(poison=(Poison(0, 64, ""),)), "poison"),
        ({"aer": {"fatal": 1}}, Reading(poison=(Poison(0, 64, ""),)), "fatal errors"),
    ],
)
def test_the_worst_is_said(changes: dict[str, Any], reading: Reading | None, word: str) -> None:
    assert health_word(memdev(**changes), reading) == word


# -------------------------------------------------------------------------------- udev


def test_names_of_vendors(monkeypatch: pytest.MonkeyPatch) -> None:
    class NotThereError(Exception):
        pass

    class Devices:
        @staticmethod
        def from_name(context: object, subsystem: str, name: str) -> Any:
            assert subsystem == "pci"
            if name == "gone":
                raise NotThereError
            known = {"ID_VENDOR_FROM_DATABASE": "Maker"} if name == "known" else {}
            return types.SimpleNamespace(properties=known)

    fake: Any = types.ModuleType("pyudev")
    fake.Context, fake.Devices, fake.DeviceNotFoundError = object, Devices, NotThereError
    monkeypatch.setitem(sys.modules, "pyudev", fake)
    assert names_of(["known", "gone", "nameless"]) == {"known": ("Maker", "")}


def test_no_udev(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyudev", None)
    assert names_of(["0000:00:00.0"]) == {}


def test_the_udev_of_this_machine() -> None:
    pytest.importorskip("pyudev", exc_type=ImportError)
    found = names_of(["ffff:ff:1f.7"])  # nowhere
    assert found == {}
