# SPDX-License-Identifier: Apache-2.0
"""Two commands at the same time: each plans with what the other has left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from unit.cxl_house import CxlHouse, M
from unit.pool_house import House

from sacctl.cxl.read import read
from sacctl.errors import CtlError, NotFoundError, PartlyError, RefusedError, UsageError
from sacctl.pool import limits
from sacctl.pool.create import create as emulate
from sacctl.pool.cxl_isolated import create as isolate
from sacctl.pool.record import Records
from sacctl.pool.recordsteps import TakeRecords, records_taken
from sacctl.pool.spec import Spec


class Other:
    """A process that does work beside this one. The records' lock is taken meanwhile: it has
    come to where it waits for the lock when the body begins."""

    def __init__(self, records: Records, work: Callable[[Records], object]) -> None:
        self._records, self._work = records, work
        self._take = TakeRecords(records, "none", None)
        self._held = records_taken(self._take, lambda _: None)
        self.kind = self.message = self.hint = ""

    def __enter__(self) -> Self:
        self._held.__enter__()
        self._out, into = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._records.lock)
            answer = {"kind": "", "message": "", "hint": ""}
            try:
                self._work(Records(self._records.folder))
            except BaseException as error:
                hint = getattr(error, "hint", "")
                answer = {"kind": type(error).__name__, "message": str(error), "hint": hint}
            os.write(into, json.dumps(answer).encode())
            os._exit(0)
        os.close(into)
        time.sleep(0.4)
        return self

    def __exit__(self, *error: Any) -> None:
        self._held.__exit__(*error)
        with os.fdopen(self._out) as pipe:
            answer = json.loads(pipe.read())
        os.waitpid(self._pid, 0)
        self.kind, self.message, self.hint = (answer[k] for k in ("kind", "message", "hint"))


def house_of(house: CxlHouse, records: Records) -> CxlHouse:
    """The same machine, for the other process."""
    house.records = records
    return house


def test_two_pools_of_the_same_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        other = Other(house.records, lambda r: house_of(house, r).create(name="b"))
        with other:
            house.create(name="a")
        assert other.kind == RefusedError.__name__
        assert "no memory free" in other.message
        assert "pool 'a'" in other.message
        assert house.records.names() == ["a"]
        assert len(read(house.machine.sysfs).regions) == 1


def test_two_pools_where_there_is_room_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, "1hb2", size=512 * M) as house:

        def work(records: Records) -> object:
            return house_of(house, records).create(name="b", bytes=512 * M)

        other = Other(house.records, work)
        with other:
            house.create(name="a", bytes=512 * M)
        assert other.kind == "", other.message
        assert house.records.names() == ["a", "b"]
        parts = [house.records.get(name).cxl for name in "ab"]
        names = [part.regions[0].region for part in parts if part]
        assert len(set(names)) == 2
        assert {r.name for r in read(house.machine.sysfs).regions} == set(names)


def test_two_adoptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, firmware="devdax") as house:
        other = Other(house.records, lambda r: house_of(house, r).adopt("region2", name="b"))
        with other:
            house.adopt("region2", name="a")
        assert other.kind == RefusedError.__name__
        assert "region2 is part of pool 'a'" in other.message
        assert house.records.names() == ["a"]


def test_a_pool_goes_while_its_room_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        house.create(room=64 * M, daemon=True)
        sysfs, uid = house.machine.sysfs, os.geteuid()

        def bank(records: Records) -> object:
            return isolate("kv", "n", 8 * M, {}, sysfs, records, house.daemon, owner=uid)

        other = Other(house.records, lambda r: house_of(house, r).destroy())
        with other:
            bank(house.records)
        assert other.kind == RefusedError.__name__
        assert "isolated namespaces in its room: kv.n" in other.message
        assert house.records.names() == ["kv", "kv.n"]
        house.destroy(daemon=True, name="kv.n")
        house.daemon.stop()
        other = Other(house.records, bank)
        with other:
            house.destroy()
        assert other.kind == NotFoundError.__name__
        assert house.records.names() == []


def test_assembled_by_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The units of a pool's devices, which come at the same time."""
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        house.reboot()
        other = Other(house.records, lambda r: house_of(house, r).assemble())
        with other:
            house.assemble()
        assert other.kind in ("", "BusyError"), other.message
        assert house.record().uuid == made.uuid
        assert len(read(house.machine.sysfs).regions) == 1


def test_two_emulated_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free is looked at when the first one has taken its part."""
    house = House(tmp_path, monkeypatch)
    seen: list[bool] = []

    def check(name: str, needs: object) -> None:
        seen.append((house.shm / f"sac-{os.geteuid()}" / "a").exists())
        if name == "b" and seen[-1]:
            raise CtlError("no room beside a")

    monkeypatch.setattr(limits, "check", check)

    def work(records: Records) -> object:
        return emulate(Spec("b", (4 * M,)), records)

    other = Other(house.records, work)
    with other:
        emulate(Spec("a", (4 * M,)), house.records)
    assert "no room beside a" in other.message
    assert house.records.names() == ["a"]


@pytest.mark.parametrize("kind", ["cxl", "adopted", "emulated"])
def test_a_dot_is_for_isolated_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    options = {"firmware": "devdax"} if kind == "adopted" else {}
    with CxlHouse(tmp_path, monkeypatch, **options) as house:
        before = house.look()
        work: dict[str, Callable[[], object]] = {
            "cxl": lambda: house.create(name="a.b"),
            "adopted": lambda: house.adopt("region2", name="a.b"),
            "emulated": lambda: emulate(Spec("a.b", (4 * M,)), house.records),
        }
        with pytest.raises(UsageError, match="isolated namespace") as caught:
            work[kind]()
        assert caught.value.hint.startswith("a-b; or")
        assert house.look() == before


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_daemon_that_is_killed_while_it_gets_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """All is taken back, and that is what is said."""
    with CxlHouse(tmp_path, monkeypatch) as house:
        before = house.look()
        real = house.daemon._pool_add

        def add(fds: list[int], record: dict[str, Any]) -> dict[str, Any]:
            if when == "behind":
                real(fds, record)
            else:
                for fd in fds:
                    os.close(fd)
            house.daemon.die()
            raise CtlError("the daemon: the connection broke")

        monkeypatch.setattr(house.daemon, "_pool_add", add)
        with pytest.raises(CtlError, match="the connection broke") as caught:
            house.create(daemon=True)
        assert not isinstance(caught.value, PartlyError)
        assert house.look() == before


def test_a_daemon_that_does_not_answer_may_have_it_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        slow = CtlError("the daemon did not answer within 30 s")
        house.daemon.refuse = {"pool.add": slow, "pool.remove": slow}
        with pytest.raises(PartlyError, match="could not be undone: hand the files"):
            house.create(daemon=True)
