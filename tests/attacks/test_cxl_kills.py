# SPDX-License-Identifier: Apache-2.0
"""Adoption, destruction and isolated namespaces, killed before each thing they change: a write
to the kernel, a record, a superblock. The same command goes on, or the one that it names."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.cxl_house import CxlHouse, M
from unit.pool_house import killed

from sacctl.cxl import guard
from sacctl.cxl.read import read
from sacctl.errors import CtlError
from sacctl.pool.cxl_isolated import create as isolate

Work = Callable[[CxlHouse], object]

CHANGES = ("mkdir", "pwrite", "rename", "replace", "rmdir", "unlink")
FIRMWARE: dict[str, dict[str, Any]] = {
    "devdax": {"kmem": False},
    "kmem-online-movable": {},
    "hmem-devdax": {},
}  # fmt: skip


def kill_at(house: CxlHouse, number: int, work: Work) -> bool:
    """Does work in a process that is killed before its number-th change; whether it came so
    far."""
    left = number

    def before(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return call(*args, **more)

        return counted

    def child() -> None:
        sysfs = house.machine.sysfs
        sysfs.write = before(sysfs.write)  # type: ignore[method-assign]
        for name in CHANGES:  # pathlib's own go through these
            setattr(os, name, before(getattr(os, name)))
        work(house)

    return killed(child)


def target(house: CxlHouse) -> str:
    found = read(house.machine.sysfs)
    return found.regions[0].name if found.regions else found.dax[0].name


def adopt(house: CxlHouse) -> None:
    house.adopt(target(house), force_offline=True)


def bank(house: CxlHouse) -> None:
    isolate("kv", "bank", 64 * M, {}, house.machine.sysfs, house.records, house.daemon)


def settled(house: CxlHouse) -> None:
    """Nothing is left switched, and nothing is beside the records."""
    assert guard.left_behind(house.machine.sysfs) == {}
    there = sorted(path.name for path in house.records.folder.iterdir())
    assert there == sorted(f"{name}.toml" for name in house.records.names())


@pytest.mark.parametrize("firmware", FIRMWARE)
def test_killed_adoption_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, firmware: str
) -> None:
    options: dict[str, Any] = FIRMWARE[firmware]
    number = 0
    while True:
        root = tmp_path / str(number)
        with CxlHouse(root, monkeypatch, firmware=firmware, **options) as house:
            before = house.look()
            if not kill_at(house, number, adopt):
                break
            half = house.records.find("kv")
            if half is not None and half.state != "ready":
                with pytest.raises(CtlError, match="half made") as caught:
                    house.adopt(target(house), dry_run=True)
                assert "sacctl pool destroy kv" in caught.value.hint
            adopt(house)
            assert house.record().state == "ready"
            settled(house)
            house.destroy()
            settled(house)
            if firmware != "kmem-online-movable":
                assert house.look() == {k.replace("/0/", f"/{number}/"): v
                                        for k, v in before.items()}, number  # fmt: skip
        number += 3
    assert number > 15


def test_an_adoption_killed_before_it_took_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that the kernel uses is left to it."""
    with CxlHouse(tmp_path, monkeypatch, firmware="kmem-online-movable") as house:
        before = house.look()
        assert house.kill_at(0, lambda: adopt(house))
        assert house.record().state == "creating"
        house.destroy()
        assert house.look() == before


@pytest.mark.parametrize("firmware", ["", "devdax"])
def test_killed_destruction_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, firmware: str
) -> None:
    number = 0
    while True:
        root = tmp_path / str(number)
        with CxlHouse(root, monkeypatch, firmware=firmware, kmem=False) as house:
            before = house.look()
            if firmware:
                adopt(house)
            else:
                house.create()
            with Path(house.record().data[0]).open("r+b") as memory:
                memory.seek(M)
                memory.write(b"secret")
            if not kill_at(house, number, lambda house: house.destroy()):
                break
            if house.records.names():
                house.destroy()
            settled(house)
            assert house.look() == before, number
            for serial in (0x100, 0x101):
                assert b"secret" not in house.machine.peek(serial, 0, 8 * M)
        number += 2
    assert number > 10


def test_killed_isolated_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        house.create(room=256 * M, daemon=True)
        before = house.look()
        number = 0
        while kill_at(house, number, bank):
            there = house.records.find("kv.bank")
            if there is not None and there.state == "ready":
                # It was whole, but for the daemon's part.
                with pytest.raises(CtlError) as caught:
                    bank(house)
                assert "sacctl namespace destroy bank -p kv" in caught.value.hint
            else:
                bank(house)
            settled(house)
            house.destroy(name="kv.bank", daemon=True)
            settled(house)
            assert house.look() == before, number
            number += 2
        assert number > 15


def test_killed_destruction_of_an_isolated_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        house.create(room=256 * M)
        before = house.look()
        number = 0
        while True:
            bank(house)
            house.daemon.stop()  # it has the devices, which the killed process would need
            if not kill_at(house, number, lambda house: house.destroy(name="kv.bank")):
                break
            if "kv.bank" in house.records.names():
                house.destroy(name="kv.bank")
            settled(house)
            assert house.look() == before, number
            number += 2
        assert number > 10
