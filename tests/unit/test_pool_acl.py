# SPDX-License-Identifier: Apache-2.0
"""sacctl.pool.acl: the files of a pool are shared with a daemon of another user."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.pool_house import House, M

from sacctl.daemon.link import Peer
from sacctl.errors import CtlError, DeniedError, RefusedError
from sacctl.pool import acl
from sacctl.pool.extend import extend
from sacctl.pool.places import Places

NAME = "system.posix_acl_access"
OTHER = 54321  # no user of this machine, one hopes


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    probe = tmp_path / "probe"
    probe.touch()
    try:
        os.setxattr(probe, NAME, acl.access_list(OTHER))
    except OSError as error:
        pytest.skip(f"no POSIX ACLs in {tmp_path}: {error}")
    probe.unlink()
    made = House(tmp_path, monkeypatch)
    made.daemon.peer = Peer(1, OTHER, OTHER)
    yield made
    made.daemon.stop()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    with Places(os.geteuid()) as made:
        path = tmp_path / "data.0"
        path.touch(0o600)
        assert made.open_file(str(path)) is not None
        yield made


def lists(house: House) -> dict[str, bytes | None]:
    return {path.name: read(path) for path in house.folder.iterdir()}


def read(path: Path) -> bytes | None:
    return os.getxattr(path, NAME) if NAME in os.listxattr(path) else None


def fail(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def setxattr(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "setxattr", setxattr)


def test_the_list_is_the_kernels_form() -> None:
    found = acl.access_list(7)
    assert struct.unpack_from("<I", found) == (2,)
    entries = list(struct.iter_unpack("<HHI", found[4:]))
    nobody = 0xFFFFFFFF
    assert entries == [
        (0x01, 6, nobody),
        (0x02, 6, 7),
        (0x04, 0, nobody),
        (0x10, 6, nobody),
        (0x20, 0, nobody),
    ]


def test_create_and_extend_share_with_the_daemon(house: House) -> None:
    planned = house.create(daemon=True, dry_run=True)
    step = f"let the daemon's user {OTHER} open 3 files of pool 'kv' (ACL)"
    assert planned.steps[-2] == step
    assert house.create(daemon=True).steps == planned.steps
    shared = acl.access_list(OTHER)
    assert lists(house) == dict.fromkeys(("meta", "data.0", "data.1"), shared)
    done = extend("kv", (2 * M,), house.records, daemon=house.daemon)
    assert f"let the daemon's user {OTHER} open 1 file of pool 'kv' (ACL)" in done.steps
    assert lists(house)["data.2"] == shared
    for path in house.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o660  # the mask; who owns it is not asked
    house.daemon.stop()
    again = house.create(4 * M, 4 * M, 2 * M, daemon=True)
    assert (again.created, again.served) == (False, True)
    house.whole()


def test_a_pool_that_is_there_is_shared_when_it_is_handed_over(house: House) -> None:
    house.create()
    assert set(lists(house).values()) == {None}
    house.daemon.refuse["pool.add"] = CtlError("no")
    with pytest.raises(CtlError, match="no"):
        house.create(daemon=True)
    assert set(lists(house).values()) == {None}
    for path in house.folder.iterdir():  # the mask did not become the group's
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    house.create(daemon=True)
    assert set(lists(house).values()) == {acl.access_list(OTHER)}


def test_another_daemons_list_is_replaced_and_comes_back(house: House) -> None:
    house.create(daemon=True)
    house.daemon.stop()
    house.daemon.peer = Peer(1, OTHER + 1, OTHER)
    house.daemon.refuse["pool.add"] = CtlError("no")
    with pytest.raises(CtlError, match="no"):
        house.create(daemon=True)
    assert set(lists(house).values()) == {acl.access_list(OTHER)}
    house.create(daemon=True)
    assert set(lists(house).values()) == {acl.access_list(OTHER + 1)}


@pytest.mark.parametrize("uid", [0, os.geteuid()])
def test_root_and_the_owner_need_none(house: House, uid: int) -> None:
    house.daemon.peer = Peer(1, uid, uid)
    assert "ACL" not in str(house.create(daemon=True).steps)
    assert set(lists(house).values()) == {None}


def test_a_list_that_is_there_is_not_taken_back(house: House, places: Places) -> None:
    (path,) = places.files
    os.setxattr(path, NAME, acl.access_list(OTHER))
    (step,) = acl.share(house.daemon, places, "kv", [path])
    step.apply()
    step.undo()
    assert read(Path(path)) == acl.access_list(OTHER)


def test_a_file_system_without_lists_is_refused(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = house.picture()
    fail(monkeypatch, errno.ENOTSUP)
    with pytest.raises(RefusedError, match=r"no access lists \(POSIX ACLs\)") as caught:
        house.create(daemon=True)
    assert "--path" in caught.value.hint
    assert f"run the daemon as user {os.geteuid()}" in caught.value.hint
    assert house.picture() == before


def test_who_may_not_change_the_list_is_told(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, errno.EPERM)
    with pytest.raises(DeniedError, match="only their owner may") as caught:
        house.create(daemon=True)
    assert "as root" in caught.value.hint
    house.gone()
