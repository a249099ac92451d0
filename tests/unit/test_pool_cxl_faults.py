# SPDX-License-Identifier: Apache-2.0
"""Pools of CXL devices: every write to the kernel fails once, or is the last before a kill."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from unit.cxl_house import CxlHouse

from sacctl.errors import CtlError, PartlyError


def sweep(house: CxlHouse, work: Callable[[], object], after: Callable[[int], None]) -> int:
    """Lets each write of work fail in turn; after(n) is asked each time. The number of writes
    that failed, when there were no more."""
    number = 0
    while True:
        house.machine.fail_at(number, errno.EIO)
        at = len(house.machine.writes)
        try:
            work()
        except CtlError:
            failed = house.machine.writes[at + number][2]
            assert failed == errno.EIO
            after(number)
        else:
            # It may have been one that is only tried, such as remove_id.
            if len(house.machine.writes) <= at + number:
                house.machine.fail_at(at + number - len(house.machine.writes), 0)  # no more
                return number
            after(number)
        number += 1


def test_failed_create_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        before = house.look()

        def after(number: int) -> None:
            assert house.look() == before, f"write {number}"
            assert house.daemon.pools == {}

        assert sweep(house, lambda: house.create(daemon=True), after) > 15
        house.destroy(daemon=True)
        assert house.look() == before


def test_killed_create_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        before = house.look()
        number = 0
        while house.kill_at(number, house.create):
            if house.records.names():
                assert house.record().state == "creating", number
                house.destroy()
            assert house.look() == before, f"write {number}"
            number += 1
        assert number > 15
        assert house.record().state == "ready"


def test_killed_create_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, "1hb1") as house:
        before = house.look()
        assert house.kill_at(12, house.create)
        assert house.create().created
        assert house.record().state == "ready"
        house.destroy()
        assert house.look() == before


def test_failed_destroy_is_undone_or_can_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        empty = house.look()
        number = 0
        while True:
            house.create(daemon=True)
            whole = house.look()
            house.machine.fail_at(number, errno.EIO)
            at = len(house.machine.writes)
            try:
                house.destroy(daemon=True)
            except PartlyError as error:
                hint, state = error.hint, house.record().state
                assert ("sacctl pool destroy kv" in hint, state) == (True, "destroying")
                house.destroy(daemon=True)
            except CtlError:
                assert house.look() == whole, f"write {number}"
                house.destroy(daemon=True)
            assert house.look() == empty, f"write {number}"
            if len(house.machine.writes) <= at + number:
                break
            number += 1
        assert number > 10


def test_killed_destroy_can_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        before = house.look()
        number = 0
        while True:
            house.create()
            if not house.kill_at(number, house.destroy):
                break
            assert house.record().state == "destroying", number
            house.destroy()
            assert house.look() == before, f"write {number}"
            number += 1
        assert number > 10
        assert house.look() == before


def test_failed_assembly_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        uuid = house.create().record.uuid
        house.reboot()
        before = house.look()

        def after(number: int) -> None:
            assert house.look() == before, f"write {number}"

        assert sweep(house, house.assemble, after) > 15
        assert house.record().uuid == uuid


def test_killed_assembly_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        uuid = house.create().record.uuid
        number = 0
        while True:
            house.reboot()
            if not house.kill_at(number, house.assemble):
                break
            done = house.assemble()
            assert not done.formatted
            assert done.record.uuid == uuid
            assert done.record.state == "ready"
            number += 4
        assert number > 15
        assert house.record().uuid == uuid
