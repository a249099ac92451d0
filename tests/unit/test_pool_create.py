# SPDX-License-Identifier: Apache-2.0
"""sacctl.pool: making, extending and destroying."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.pool_house import House, M

from sacctl.errors import BusyError, CtlError, NotFoundError, RefusedError
from sacctl.pool.destroy import destroy
from sacctl.pool.extend import extend


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    made = House(tmp_path, monkeypatch)
    yield made
    made.daemon.stop()


def test_create_makes_files_folders_and_record(house: House) -> None:
    said: list[str] = []
    made = house.create(say=said.append)
    assert made.created
    assert not made.served
    assert made.steps == said
    house.whole()
    assert made.record == house.records.get("kv")
    for path in (house.folder, house.folder.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in house.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_blocks * 512 < M
    assert (house.folder / "data.0").stat().st_size == 6 * M


def test_create_hands_over_and_destroy_takes_back(house: House) -> None:
    made = house.create(daemon=True)
    assert made.served
    assert house.daemon.pools["kv"]["uuid"] == made.record.uuid
    done = destroy("kv", house.records, daemon=house.daemon)
    assert done.record == made.record
    assert house.daemon.pools == {}
    house.gone()


def test_create_again_is_no_work(house: House) -> None:
    first = house.create()
    before = house.picture()
    again = house.create()
    assert not again.created
    assert again.record == first.record
    assert again.steps == []
    assert house.picture() == before
    served = house.create(daemon=True)  # a daemon has come meanwhile
    assert (served.created, served.served) == (False, True)
    assert "kv" in house.daemon.pools


def test_other_spec_names_the_differences(house: House, tmp_path: Path) -> None:
    house.create()
    before = house.picture()
    with pytest.raises(CtlError, match=r"2x4M, asked is 1x8M.*folder: it lies in") as caught:
        house.create(8 * M, path=str(tmp_path / "elsewhere"))
    assert caught.value.exit_code == 1
    assert house.picture() == before


def test_dry_run_says_the_very_steps_and_changes_nothing(house: House) -> None:
    before = house.picture()
    planned = house.create(dry_run=True, daemon=True)
    assert house.picture() == before
    assert planned.steps == house.create(daemon=True).steps
    before = house.picture()
    more = extend("kv", (2 * M,), house.records, daemon=house.daemon, dry_run=True)
    gone = destroy("kv", house.records, daemon=house.daemon, dry_run=True)
    assert house.picture() == before
    assert more.steps == extend("kv", (2 * M,), house.records, daemon=house.daemon).steps
    assert len(gone.steps) + 1 == len(destroy("kv", house.records, daemon=house.daemon).steps)


@pytest.mark.parametrize("daemon", [False, True])
def test_extend_grows_files_record_and_pool(house: House, daemon: bool) -> None:
    house.create(daemon=daemon)
    done = extend("kv", (2 * M, 2 * M), house.records, daemon=house.daemon if daemon else None)
    assert done.served == daemon
    assert done.record.sizes == (4 * M, 4 * M, 2 * M, 2 * M)
    assert house.records.get("kv") == done.record
    house.whole()


def test_files_lost_with_a_reboot_are_made_again(house: House) -> None:
    first = house.create()
    for path in house.folder.iterdir():
        path.unlink()
    house.folder.rmdir()
    house.folder.parent.rmdir()
    with pytest.raises(CtlError, match="it differs"):
        house.create(8 * M)
    again = house.create()
    assert again.created
    assert again.record.uuid != first.record.uuid
    house.whole()
    for path in house.folder.iterdir():
        path.unlink()
    destroy("kv", house.records)
    house.gone()


def test_destroy_of_nothing(house: House) -> None:
    with pytest.raises(NotFoundError, match="no pool 'kv'"):
        destroy("kv", house.records)
    with pytest.raises(NotFoundError, match="no pool 'kv'"):
        extend("kv", (2 * M,), house.records)


@pytest.mark.parametrize("mine", [False, True])
def test_a_given_folder(house: House, mine: bool) -> None:
    folder = house.root / "disk" / "pool"
    (folder if mine else folder.parent).mkdir(parents=True)
    if mine:
        folder.chmod(0o700)
        (folder / "notes").write_text("mine")
    made = house.create(path=str(folder))
    assert {path.name for path in folder.iterdir()} >= {"meta", "data.0", "data.1"}
    assert made.record.path == str(folder)
    destroy("kv", house.records)
    assert folder.exists() == mine
    assert not mine or [path.name for path in folder.iterdir()] == ["notes"]


def test_folders_that_others_may_write_to_are_refused(house: House) -> None:
    house.folder.parent.mkdir(mode=0o700)
    house.folder.parent.chmod(0o777)
    before = house.picture()
    with pytest.raises(RefusedError, match="0777"):
        house.create()
    assert house.picture() == before
    house.folder.parent.rmdir()
    target = house.root / "target"
    target.mkdir()
    house.folder.parent.symlink_to(target)
    with pytest.raises(RefusedError, match="symbolic link"):
        house.create()
    assert list(target.iterdir()) == []


def test_a_pool_without_a_record_is_not_touched(house: House) -> None:
    house.create()
    house.records.remove("kv")
    before = house.picture()
    with pytest.raises(RefusedError, match="no record"):
        house.create()
    assert house.picture() == before
    (house.folder / "meta").rename(house.folder / "meta.new")  # a creation cut off
    house.create()
    house.whole()


def test_two_at_a_time(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacctl.pool.recordsteps.LOCK_WAIT", 0.05)
    house.records.folder.mkdir(parents=True)
    fd = os.open(house.records.folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="in use"):
            house.create()
    finally:
        os.close(fd)
    assert list(house.shm.iterdir()) == []


def test_too_many_extents(house: House) -> None:
    house.create()
    with pytest.raises(CtlError, match="limit of 64"):
        extend("kv", (2 * M,) * 63, house.records)


def test_no_room_is_said_beforehand(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    before = house.picture()
    with pytest.raises(CtlError, match=r"needs \d+ MiB, .* has \d+ MiB left") as caught:
        house.create(1 << 49)
    assert "smaller" in caught.value.hint
    assert house.picture() == before
