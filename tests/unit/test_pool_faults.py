# SPDX-License-Identifier: Apache-2.0
"""sacctl.pool: failures and kills at every step."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from unit.pool_house import House, M, disk_full, fail_at, interrupt, kill, killed

from sacctl.errors import BusyError, CtlError, PartlyError, RefusedError
from sacctl.pool.destroy import destroy
from sacctl.pool.extend import extend, present


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    made = House(tmp_path, monkeypatch)
    yield made
    made.daemon.stop()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("how", [disk_full, interrupt])
@pytest.mark.parametrize("number", range(16))
def test_failed_create_leaves_nothing(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    after: bool,
    how: Callable[[], None],
) -> None:
    before = house.picture()
    hit = fail_at(monkeypatch, number, after, how)
    if number >= 12:  # there are so many steps
        house.create(daemon=True)
        assert hit == []
        return
    with pytest.raises((CtlError, KeyboardInterrupt)) as caught:
        house.create(daemon=True)
    assert hit
    assert not isinstance(caught.value, PartlyError)
    assert house.picture() == before
    assert house.daemon.pools == {}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(14))
@pytest.mark.parametrize("then", ["create", "destroy", "other"])
def test_killed_create_is_cleaned_up(
    house: House, monkeypatch: pytest.MonkeyPatch, number: int, after: bool, then: str
) -> None:
    with monkeypatch.context() as patch:
        fail_at(patch, number, after, kill)
        dead = killed(house.create)
    assert dead == (number < 11)
    if then == "create":
        house.create()
        house.whole()
    elif then == "destroy":
        if house.records.names():
            destroy("kv", house.records)
        house.gone()
    elif house.records.names() and house.records.get("kv").state == "creating":
        house.create(2 * M)  # what was not finished does not stand in the way
        house.whole()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(14))
@pytest.mark.parametrize("then", [destroy, None])
def test_killed_destroy_can_be_finished(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    after: bool,
    then: Callable[..., object] | None,
) -> None:
    house.create()
    with monkeypatch.context() as patch:
        fail_at(patch, number, after, kill)
        killed(lambda: destroy("kv", house.records))
    if then is None:
        house.create()
        house.whole()
    elif house.records.names():
        destroy("kv", house.records)
        house.gone()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(14))
def test_failed_destroy_is_undone_or_says_what_is_left(
    house: House, monkeypatch: pytest.MonkeyPatch, number: int, after: bool
) -> None:
    house.create(daemon=True)
    before = house.picture()
    with monkeypatch.context() as patch:
        hit = fail_at(patch, number, after, disk_full)
        try:
            destroy("kv", house.records, daemon=house.daemon)
            assert hit == []
        except PartlyError as error:
            said = f"{error} {error.hint}"
            assert f"{hit[0]}" in said
            assert "sacctl pool destroy kv" in said
        except CtlError:
            assert house.picture() == before
            assert "kv" in house.daemon.pools
            house.whole()
    if house.records.names():
        destroy("kv", house.records, daemon=house.daemon)
    house.gone()


@pytest.mark.parametrize("daemon", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(8))
def test_failed_extend_is_undone_or_done(
    house: House, monkeypatch: pytest.MonkeyPatch, number: int, after: bool, daemon: bool
) -> None:
    house.create(daemon=daemon)
    before = house.picture()
    given = house.daemon if daemon else None
    with monkeypatch.context() as patch:
        hit = fail_at(patch, number, after, disk_full)
        try:
            extend("kv", (2 * M,), house.records, daemon=given)
            assert hit == []
        except PartlyError:
            assert len(present(house.records.get("kv")).data) == 3
        except CtlError:
            assert house.picture() == before
    extend("kv", (2 * M,), house.records, daemon=given)
    house.whole()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("then", ["create", "extend", "destroy"])
def test_killed_extend_is_settled(
    house: House, monkeypatch: pytest.MonkeyPatch, number: int, after: bool, then: str
) -> None:
    house.create()
    with monkeypatch.context() as patch:
        fail_at(patch, number, after, kill)
        killed(lambda: extend("kv", (2 * M,), house.records))
    held = present(house.records.get("kv"))
    assert len(held.data) in (2, 3)
    if then == "create":
        assert not house.create(*held.sizes).created
        assert house.records.get("kv") == held
        house.whole()
    elif then == "extend":
        extend("kv", (4 * M,), house.records)
        assert len(house.records.get("kv").data) == len(held.data) + 1
        house.whole()
    else:
        destroy("kv", house.records)
        house.gone()


def test_lost_answer_of_an_extension(house: House) -> None:
    house.create(daemon=True)
    house.daemon.lose_answer["pool.extend"] = CtlError("the connection broke")
    assert len(extend("kv", (2 * M,), house.records, daemon=house.daemon).record.data) == 3
    house.whole()


def test_daemon_that_refuses_a_pool_leaves_nothing(house: House) -> None:
    before = house.picture()
    house.daemon.refuse["pool.add"] = RefusedError("not from you")
    with pytest.raises(RefusedError, match="not from you"):
        house.create(daemon=True)
    assert house.picture() == before
    house.daemon.lose_answer["pool.add"] = CtlError("the connection broke")
    with pytest.raises(CtlError, match="broke"):
        house.create(daemon=True)
    assert house.picture() == before
    assert house.daemon.pools == {}


def test_destroy_is_refused_while_clients_are_attached(house: House) -> None:
    house.create(daemon=True)
    before = house.picture()
    house.daemon.refuse["pool.remove"] = BusyError("client 17 is attached", object="kv")
    with pytest.raises(RefusedError, match="client 17") as caught:
        destroy("kv", house.records, daemon=house.daemon)
    assert caught.value.exit_code == 4
    assert house.picture() == before


def test_destroy_of_a_pool_that_is_open_elsewhere(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacctl.pool.filesteps.LOCK_WAIT", 0.05)
    house.create()
    before = house.picture()
    with (house.folder / "data.1").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match=f"data.1.*process {os.getpid()}"):
            destroy("kv", house.records)
    assert house.picture() == before
