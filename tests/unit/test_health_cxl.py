# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the devices of a pool is found, on the simulated machine and on looks at
a real one, and nothing is found where all is well."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from unit import fake_daemon
from unit.cli_fake import FakeDaemon
from unit.cxl_dump import tree
from unit.faults_kit import CxlHouse, cxl_house

from sacctl import health_devices
from sacctl.cli import root
from sacctl.cxl import guard
from sacctl.cxl.alerts import alerts, poisoned
from sacctl.cxl.condition import Condition, History, uses
from sacctl.cxl.events import Event
from sacctl.cxl.poison import Found, Spot, places
from sacctl.cxl.read import read
from sacctl.cxl.tools import Reading, Readings
from sacctl.health import CHECKS, with_more
from sacctl.health_devices import ask_devices, look
from sacctl.pool.record import Records


def codes(found: list[Condition]) -> list[str]:
    return sorted({one.code for one in found})


def test_all_is_well(tmp_path: Path) -> None:
    with cxl_house(tmp_path) as house:
        assert look(house.sysfs, [house.pool], History()) == []
        assert look(house.sysfs, [{"name": "emulated", "extents": []}]) == []


def unplug(house: CxlHouse) -> None:
    house.machine.unplug(0x102)


def unbind(house: CxlHouse) -> None:
    house.sysfs.write("/sys/bus/dax/drivers/device_dax/unbind", house.data)


def narrow(house: CxlHouse) -> None:
    house.machine.break_link(0x101, speed="8.0", width=4)


def errors(house: CxlHouse) -> None:
    house.machine.aer(0x100, "correctable", 3)


def region_away(house: CxlHouse) -> None:
    house.sysfs.write("/sys/bus/cxl/drivers/cxl_region/unbind", house.region)


def killed(house: CxlHouse) -> None:
    note = Path(house.sysfs.at(guard.NOTE))
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text("/sys/bus/dax/drivers_autoprobe 1\n")
    house.sysfs.write("/sys/bus/dax/drivers_autoprobe", "0")


CASES: list[tuple[Callable[[CxlHouse], None], list[str], str]] = [
    (unplug, ["SAC501", "SAC507", "SAC508"], "serial:0x102"),
    (unbind, ["SAC508"], "no driver, and needs device_dax"),
    (narrow, ["SAC503"], "8 GT/s x4"),
    (errors, ["SAC506"], "3 correctable"),
    (region_away, ["SAC507", "SAC508"], "has no driver"),
    (killed, ["SAC516"], "it was 1"),
]


@pytest.mark.parametrize(("fault", "expected", "word"), CASES, ids=lambda x: str(x)[:20])
def test_faults(
    fault: Callable[[CxlHouse], None], expected: list[str], word: str, tmp_path: Path
) -> None:
    with cxl_house(tmp_path) as house:
        fault(house)
        found = look(house.sysfs, [house.pool])
        assert codes(found) == expected
        assert any(word in one.message for one in found)
        record = with_more({"status": "ok", "checks": 1, "findings": []}, found)
        assert {f["severity"] for f in record["findings"]} == {
            CHECKS[code].severity for code in expected
        }
        assert with_more(record, found)["findings"] == record["findings"]  # not said twice


@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        (unplug, "when its devices are back: sacctl pool assemble kv"),
        (unbind, "sacctl pool assemble kv"),
    ],
)
def test_the_hint_is_what_can_be_done_now(
    fault: Callable[[CxlHouse], None], hint: str, tmp_path: Path
) -> None:
    with cxl_house(tmp_path) as house:
        fault(house)
        found = look(house.sysfs, [house.pool])
        hints = {one.hint for one in found if one.code in ("SAC507", "SAC508")}
        assert hints == {hint}


def test_growth_is_counted_over_an_hour(tmp_path: Path) -> None:
    now = [0.0]
    with cxl_house(tmp_path) as house:
        history = History(lambda: now[0])
        pools = [house.pool]
        house.machine.aer(0x100, "correctable", 50)
        assert codes(look(house.sysfs, pools, history)) == ["SAC506"]  # before the first look
        now[0] = 600.0
        house.machine.aer(0x100, "correctable", 10)
        assert codes(look(house.sysfs, pools, history)) == ["SAC504"]
        now[0] = 1200.0
        house.machine.aer(0x101, "fatal", 1)
        assert codes(look(house.sysfs, pools, history)) == ["SAC504", "SAC505"]
        for step in range(80):
            now[0] = 1300.0 + 60 * step
            found = codes(look(house.sysfs, pools, history))
        assert found == ["SAC506"]


def test_counters_that_begin_anew(tmp_path: Path) -> None:
    """A device that was away counts from 0: that is no growth below 0, nor one from before."""
    with cxl_house(tmp_path) as house:
        history = History()
        house.machine.aer(0x100, "correctable", 500)
        history.note(read(house.sysfs))
        house.machine.memdev(0x100).aer.clear()
        house.machine.aer(0x100, "correctable", 2)
        history.note(read(house.sysfs))
        device = next(m for m in read(house.sysfs).memdevs if m.serial == 0x100)
        assert history.grown(device, "correctable") in (0, 2)


def dump_pool(dax: str = "dax2.0", mode: str = "devdax") -> dict[str, Any]:
    region = {"region": "region2", "devices": ["serial:0x100", "serial:0x101"], "dax": [dax]}
    return {"name": "kv", "cxl": {"mode": mode, "regions": [region]}}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ("kmem", ["SAC508", "SAC509"]),
        ("offline", ["SAC508"]),
        ("nodriver", ["SAC508"]),
        ("gone", ["SAC501", "SAC507", "SAC508"]),
        ("unloaded", ["SAC501", "SAC507", "SAC508"]),
    ],
)
def test_looks_at_a_real_machine(seen: str, expected: list[str], tmp_path: Path) -> None:
    found = look(tree("6.12-2hb2", seen, tmp_path), [dump_pool()])
    assert codes([f for f in found if f.code not in ("SAC503", "SAC506")]) == expected


def test_a_device_without_a_driver(tmp_path: Path) -> None:
    assert "SAC502" in codes(look(tree("6.12-2hb2", "unbound", tmp_path), [dump_pool()]))


def test_system_ram_wants_kmem(tmp_path: Path) -> None:
    found = look(tree("6.12-2hb2", "kmem", tmp_path), [dump_pool(mode="system-ram")])
    assert not {"SAC508", "SAC509"} & set(codes(found))


READING = Reading(temperature=70, life_used=20, status=(), alerts={"life_used_prog_warn": 80})


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (READING, []),
        (Reading(temperature=81, alerts={"dev_over_temperature_prog_warn": 80}), ["SAC511"]),
        (Reading(temperature=300), []),  # no limit is set in it
        (Reading(life_used=95), ["SAC512"]),
        (Reading(life_used=60, alerts={"life_used_crit_alert": 50}), ["SAC512"]),
        (Reading(status=("maintenance_needed",)), ["SAC510"]),
        (Reading(status=("ext_temperature: warning",)), []),
    ],
)
def test_what_devices_report(reading: Reading, expected: list[str], tmp_path: Path) -> None:
    with cxl_house(tmp_path) as house:
        topology = read(house.sysfs)
        pci = topology.memdevs[0].pci
        found = list(alerts(topology, uses([house.pool]), Readings({pci: reading})))
        assert codes(found) == expected


def test_poison_is_summed_up() -> None:
    event = Event("cxl_poison", 1.0, "mem0", "0000:0d:00.0", 0x100)
    spots = [Found((Spot("kv", 0, n * 4096, 64),), ("kv",)) for n in range(5)]
    found = list(poisoned([(event, spot) for spot in spots]))
    assert codes(found) == ["SAC513"]
    assert "extent 0 at 0x0" in found[0].message
    assert "and 2 more" in found[0].message
    unclear = Found((), ("kv",), "the kernel told no host address")
    assert codes(list(poisoned([(event, unclear)]))) == ["SAC514"]


def test_root_asks_the_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cxl_house(tmp_path) as house:
        monkeypatch.setattr(health_devices, "ask", lambda poison: Readings(note="no program"))
        # A machine without tracefs: said, and no more than a note.
        found = ask_devices(house.sysfs, [house.pool])
        assert codes(found) == ["SAC515"]
        assert {CHECKS[one.code].severity for one in found} == {"note"}


def test_addresses_of_a_pool(tmp_path: Path) -> None:
    with cxl_house(tmp_path) as house:
        known = places(house.sysfs, [house.pool])
        assert {(p.extent, p.dax, p.offset) for p in known} == {
            (0, house.data, 0),
            (-1, house.meta, 0),
        }
        region = read(house.sysfs).region(house.region)
        assert region is not None
        assert sum(p.bytes for p in known) == region.bytes
        assert min(p.start for p in known) == region.start
        other = {**house.pool, "meta": "/dev/shm/x/meta", "extents": []}
        assert places(house.sysfs, [other]) == []


def test_only_root_sees_addresses(tmp_path: Path) -> None:
    with cxl_house(tmp_path) as house:
        for dax in (house.data, house.meta):
            folder = house.sysfs.at(f"/sys/bus/dax/devices/{dax}")
            for file in (folder / "resource", *folder.glob("mapping*/start")):
                file.unlink()
        assert places(house.sysfs, [house.pool]) == []


def test_a_half_made_pool_is_found_without_the_daemon_knowing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(tmp_path / "pools.d")
    records.folder.mkdir()
    record = fake_daemon.record("half")
    records.write(record.with_(state="creating", uuid=""))
    (tmp_path / "sac.toml").write_text(f'[pools]\ndir = "{records.folder}"\n')
    monkeypatch.setenv("SAC_CONFIG", str(tmp_path / "sac.toml"))
    well = {"status": "ok", "checks": 1, "findings": []}
    answers: dict[str, Any] = {"pool.list": {"pools": []}, "health": well}
    fake = FakeDaemon(tmp_path / "s", answers)
    monkeypatch.setenv("SAC_SOCKET", str(fake.path))
    done = CliRunner().invoke(root, ["-o", "json", "health"])
    fake.close()
    assert done.exit_code == 20
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["code"], finding["object"]) == ("SAC201", "half")
    assert finding["hint"] == "sacctl pool destroy half"
