# SPDX-License-Identifier: Apache-2.0
"""Pools that are taken apart while a device is missing, or their memory is not as it was."""

from __future__ import annotations

import os
from pathlib import Path

import cxlsim
import pytest
from unit.cxl_house import CxlHouse, M
from unit.pool_house import killed

from sacctl.cxl.read import read
from sacctl.errors import BusyError, CtlError, RefusedError
from sacctl.pool.cxl_files import FormatExtents
from sacctl.pool.record import Record
from sacctl.pool.scrub import ScrubExtent

SECRET = b"secret" * 1000


def two_regions(house: CxlHouse) -> Record:
    """Three devices below two bridges: 0x101 alone, 0x100 with 0x102. Both hold pages."""
    record = house.create(*house.devices()[:3], daemon=True).record
    assert record.cxl is not None
    assert sorted(r.ways for r in record.cxl.regions) == [1, 2]
    for path in record.data:
        with open(path, "r+b") as memory:  # noqa: PTH123
            memory.seek(100 * M)
            memory.write(SECRET)
    assert all(any(kept(house, s) for s in serials(record, ways)) for ways in (1, 2))
    return record


def serials(record: Record, ways: int) -> list[int]:
    """Of the region's devices."""
    assert record.cxl is not None
    region = next(r for r in record.cxl.regions if r.ways == ways)
    return [int(d.partition(":")[2], 16) for d in region.devices]


def kept(house: CxlHouse, serial: int) -> bool:
    """Whether a device has something of the pages."""
    house.machine.kernel.media.keep()
    return b"secret" in house.machine.peek(serial, 0, 256 * M)


def forget(house: CxlHouse) -> None:
    """The memory loses its power while the machine is off."""
    house.reboot()
    for file in (house.machine.root / ".memory").iterdir():
        size = file.stat().st_size
        os.truncate(file, 0)
        os.truncate(file, size)


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("reboot", [False, True])
def test_the_whole_region_is_scrubbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, reboot: bool
) -> None:
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        record = two_regions(house)
        gone, *stay = serials(record, lost)
        whole = serials(record, 3 - lost)
        if reboot:
            house.reboot()
        house.machine.unplug(gone)
        before = house.look()
        with pytest.raises(RefusedError, match=f"cannot be scrubbed whole: serial:{gone:#x}"):
            house.destroy(daemon=True)
        assert house.look() == before
        done = house.destroy(daemon=True, allow_leak=True)
        assert f"serial:{gone:#x} is not there: it keeps what it holds of the pool" in done.left
        left = " ".join(done.left)
        assert all(f"serial:{serial:#x}: not scrubbed either" in left for serial in stay)
        assert not any(f"{serial:#x}" in left for serial in whole)
        assert not any(kept(house, serial) for serial in whole)
        assert house.records.names() == []
        assert house.daemon.pools == {}
        now = read(house.machine.sysfs)
        assert now.regions == ()
        assert sum(m.used_bytes for m in now.memdevs) == 0


def test_a_device_that_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon holds what is left of the pool: it lets go first."""
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        record = two_regions(house)
        gone = serials(record, 2)[0]
        house.machine.unplug(gone)
        house.machine.plug(gone)
        assert house.destroy(daemon=True).left == []
        assert not any(kept(house, s) for ways in (1, 2) for s in serials(record, ways))
        assert house.daemon.pools == {}
        assert read(house.machine.sysfs).regions == ()


def test_clients_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        record = two_regions(house)
        house.machine.unplug(serials(record, 2)[0])
        before = house.look()
        house.daemon.refuse["pool.remove"] = BusyError("1 client is attached")
        with pytest.raises(RefusedError, match="attached"):
            house.destroy(daemon=True, allow_leak=True)
        assert house.look() == before
        assert house.daemon.pools.keys() == {"kv"}


def test_killed_in_the_scrub_of_a_survivor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        record = two_regions(house)
        house.daemon.stop()
        house.machine.unplug(serials(record, 2)[0])
        with monkeypatch.context() as patch:
            patch.setattr(ScrubExtent, "apply", lambda self: os.kill(os.getpid(), 9))
            assert killed(lambda: house.destroy(allow_leak=True))
        assert house.record().state == "destroying"
        before = house.look()
        with pytest.raises(RefusedError, match="cannot be scrubbed whole"):
            house.destroy()
        assert house.look() == before
        house.destroy(allow_leak=True)
        assert not kept(house, serials(record, 1)[0])
        assert house.records.names() == []
        now = read(house.machine.sysfs)
        assert now.regions == ()
        assert sum(m.used_bytes for m in now.memdevs) == 0


def test_memory_that_cannot_be_scrubbed_is_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices of the same serial numbers, but smaller."""
    with CxlHouse(tmp_path, monkeypatch, size=512 * M) as house:
        house.create()
        house.machine.kernel.media.keep()
        house.machine.close()
        house.machine = cxlsim.Machine(house.root / "m", "2hb2", [256 * M, 512 * M], seed=2)
        before = house.look()
        with pytest.raises(RefusedError, match=r"stays, .* has 256 MiB free") as caught:
            house.destroy()
        assert caught.value.hint == (
            "to give its memory away as it is, unscrubbed, remove "
            f"{house.records.path('kv')} by hand"
        )
        assert house.look() == before


def test_a_torn_superblock_does_not_keep_it_from_the_scrub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        record = house.create().record
        with open(record.data[0], "r+b") as memory:  # noqa: PTH123
            for at in (0, 4096):
                memory.seek(at)
                memory.write(b"SACPOOL\0" + b"\xff" * 64)
            memory.seek(100 * M)
            memory.write(SECRET)
        house.reboot()
        with pytest.raises(RefusedError, match="is damaged"):
            house.assemble()
        assert house.destroy().left == []
        assert not any(kept(house, serial) for serial in (0x100, 0x101))


@pytest.mark.parametrize("then", ["assemble", "destroy", "reboot"])
def test_killed_behind_the_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        forget(house)
        real = FormatExtents.apply

        def die(self: FormatExtents) -> None:
            real(self)
            os.kill(os.getpid(), 9)

        with monkeypatch.context() as patch:
            patch.setattr(FormatExtents, "apply", die)
            assert killed(house.assemble)
        assert house.record().uuid == ""
        if then == "reboot":
            house.reboot()
        if then == "destroy":
            assert house.destroy().left == []
            assert house.records.names() == []
            return
        done = house.assemble()
        assert done.formatted
        assert done.record.uuid not in ("", made.uuid)
        assert house.record() == done.record
        assert not house.assemble().formatted


def test_a_format_that_fails_leaves_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        house.create()
        forget(house)
        before = house.look()

        def fail(self: FormatExtents) -> None:
            raise CtlError("no")

        with monkeypatch.context() as patch:
            patch.setattr(FormatExtents, "apply", fail)
            with pytest.raises(CtlError, match="no"):
                house.assemble()
        assert house.look() == before
        assert house.assemble().formatted


@pytest.mark.parametrize("reboot", [False, True])
def test_a_copied_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reboot: bool) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        record = house.create().record
        house.records.write(record.with_(name="evil"))
        if not reboot:  # the names of the devices are enough
            house.records.write(record.with_(name="evil", uuid="ab" * 16))
        else:
            house.reboot()
        before = house.look()
        for name in ("kv", "evil"):
            with pytest.raises(RefusedError, match="one of them is a copy"):
                house.destroy(name=name)
        if reboot:
            with pytest.raises(RefusedError, match="one of them is a copy"):
                house.assemble(name="evil")
        assert house.look() == before
        house.records.remove("evil")
        assert house.destroy().left == []
