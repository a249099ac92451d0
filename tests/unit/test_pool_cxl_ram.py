# SPDX-License-Identifier: Apache-2.0
"""Pools in mode system-ram."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from unit.cxl_house import CxlHouse, M

from sacctl.cxl.read import read
from sacctl.cxl.read_blocks import blocks_of
from sacctl.errors import CtlError, PartlyError, UsageError
from sacctl.pool.cxl_ram import usable


@pytest.mark.parametrize("policy", ["offline", "online"])
def test_made_and_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    with CxlHouse(tmp_path, monkeypatch, auto_online=policy) as house:
        before = house.look()
        record = house.create(mode="system-ram", daemon=True).record
        part = record.cxl
        assert part is not None
        assert part.mode == "system-ram"
        assert len(part.nodes) == 1
        now = read(house.machine.sysfs)
        assert now.policy.auto_online == policy
        assert {dax.driver for dax in now.dax} == {"kmem"}
        blocks = blocks_of(house.machine.sysfs, now, now.dax[0].name)
        assert blocks
        assert {(block.state, block.zones) for block in blocks} == {("online", "Movable")}
        assert record.meta.startswith(part.mount)
        assert record.sizes[0] == usable(512 * M) > 400 * M
        assert not house.create(mode="system-ram").created
        planned = house.destroy(daemon=True, dry_run=True)
        assert f"umount {part.mount}" in planned.steps
        house.destroy(daemon=True)
        assert house.look() == before
        assert not Path(part.mount).exists()


def test_smaller_than_a_memory_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, "1hb1", block_bytes=2 << 30) as house:
        before = house.look()
        with pytest.raises(UsageError, match="at least one whole memory block of 2 GiB"):
            house.create(mode="system-ram")
        assert house.look() == before


def test_assembled_anew_after_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create(mode="system-ram").record
        for path in (made.meta, *made.data):
            Path(path).unlink()
        assert made.cxl is not None
        Path(made.cxl.mount).rmdir()
        house.reboot()
        done = house.assemble(daemon=True)
        assert done.formatted
        assert done.record.uuid != made.uuid
        assert house.daemon.pools["kv"]["uuid"] == done.record.uuid
        house.destroy(daemon=True)
        assert read(house.machine.sysfs).regions == ()


def test_failed_create_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, "1hb1") as house:
        before = house.look()
        number = 0
        while True:
            house.machine.fail_at(number, errno.EIO)
            at = len(house.machine.writes)
            try:
                house.create(mode="system-ram")
            except PartlyError:
                raise
            except CtlError:
                assert house.look() == before, f"write {number}"
            else:
                if len(house.machine.writes) <= at + number:
                    break
                house.destroy()
            number += 1
        assert number > 12


def test_killed_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, "1hb1") as house:
        before = house.look()
        for number in range(0, 60, 3):
            if not house.kill_at(number, lambda: house.create(mode="system-ram")):
                break
            if house.records.names():
                house.destroy()
            assert house.look() == before, f"create, write {number}"
        for number in range(0, 60, 3):
            if not house.records.names():
                house.create(mode="system-ram")
            if not house.kill_at(number, house.destroy):
                break
            house.destroy()
            assert house.look() == before, f"destroy, write {number}"
        assert house.look() == before


def test_a_block_that_stays_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        before = house.look()
        house.create(mode="system-ram")
        number = max(house.machine.kernel.memory.blocks)
        house.machine.stick(number)
        with pytest.raises(PartlyError, match="pages in use that cannot be moved"):
            house.destroy()
        assert house.record().state == "destroying"
        house.machine.stick(number, False)
        house.destroy()
        assert house.look() == before


@pytest.mark.parametrize("place", ["/etc", "/run/sac-ram/other", "/run/sac-ram"])
def test_a_record_that_names_another_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        record = house.create(mode="system-ram").record
        assert record.cxl is not None
        before = house.machine.snapshot()
        house.records.write(record.with_(cxl=record.cxl.with_(mount=place)))
        for work in (house.destroy, house.assemble):
            with pytest.raises(
                CtlError, match=f"mount is '{place}'; it must be /run/sac-ram/kv"
            ):
                work()
        house.records.write(record.with_(data=("/etc/passwd",)))
        with pytest.raises(CtlError, match=r"meta, data are not all in .*/run/sac-ram/kv"):
            house.destroy()
        assert house.machine.snapshot() == before
        house.records.write(record)
        house.destroy()
