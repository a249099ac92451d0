# SPDX-License-Identifier: Apache-2.0
"""Pools of regions that are there already: what firmware or another tool has made."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from unit.cxl_house import CxlHouse, M

from sacctl.cxl.read import read
from sacctl.errors import CtlError, NotFoundError, PartlyError, RefusedError
from sacctl.pool import superblock
from sacctl.pool.cxl_destroy import destroy


def region_of(house: CxlHouse) -> str:
    return read(house.machine.sysfs).regions[0].name


def devices(house: CxlHouse) -> list[tuple[str, int, str]]:
    return [(d.region, d.bytes, d.driver) for d in read(house.machine.sysfs).dax]


@pytest.mark.parametrize("situation", ["devdax", "kmem-offline"])
def test_adopted_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, situation: str
) -> None:
    kmem = situation != "devdax"
    with CxlHouse(tmp_path, monkeypatch, firmware=situation, kmem=kmem) as house:
        name = region_of(house)
        made = house.adopt(name, daemon=True)
        record = made.record
        assert made.created
        assert record.cxl is not None
        region = record.cxl.regions[0]
        assert record.cxl.adopted
        assert not region.made
        assert devices(house) == [(name, size, "device_dax") for size in region.parts]
        assert not house.adopt(name).created
        with pytest.raises(RefusedError, match="is part of pool 'kv'"):
            house.adopt(name, name="other")
        house.destroy(daemon=True)
        assert devices(house) == [(name, 512 * M, "device_dax")]
        assert house.records.names() == []


def test_only_with_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, firmware="kmem-online-movable") as house:
        before = house.look()
        with pytest.raises(RefusedError, match="blocks online in zone Movable") as caught:
            house.adopt(region_of(house))
        assert "--force-offline" in caught.value.hint
        assert house.look() == before
        house.adopt(region_of(house), force_offline=True)
        assert {driver for *_, driver in devices(house)} == {"device_dax"}


def test_a_block_that_stays_online_undoes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, firmware="kmem-online-movable") as house:
        before = house.look()
        house.machine.stick(max(house.machine.kernel.memory.blocks))
        with pytest.raises(RefusedError, match="pages in use"):
            house.adopt(region_of(house), force_offline=True)
        assert house.look() == before


@pytest.mark.parametrize(
    ("situation", "says", "helps"),
    [
        ("kmem-online-normal", "zone Normal", "memhp_default_state=offline"),
        ("system-ram", "System RAM from boot", "EFI_MEMORY_SP"),
    ],
)
def test_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    situation: str,
    says: str,
    helps: str,
) -> None:
    with CxlHouse(tmp_path, monkeypatch, firmware=situation) as house:
        before = house.look()
        for force in (False, True):
            with pytest.raises(RefusedError, match=says) as caught:
                house.adopt(region_of(house), force_offline=force)
            assert helps in caught.value.hint
        assert house.look() == before
        with pytest.raises(NotFoundError, match="region77"):
            house.adopt("region77")


def test_failed_adoption_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, firmware="devdax", kmem=False) as house:
        before = house.look()
        number = 0
        while True:
            house.machine.fail_at(number, errno.EIO)
            at = len(house.machine.writes)
            try:
                house.adopt(region_of(house), daemon=True)
            except PartlyError:
                raise
            except CtlError:
                assert house.look() == before, f"write {number}"
            else:
                if len(house.machine.writes) <= at + number:
                    break
                house.destroy(daemon=True)
                assert house.look() == before, f"write {number}"
            number += 1
        assert number > 8


def test_killed_adoption_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, firmware="devdax", kmem=False) as house:
        before = house.look()
        name = region_of(house)
        number = 0
        while house.kill_at(number, lambda: house.adopt(name)):
            destroy("kv", house.machine.sysfs, house.records)
            assert house.look() == before, f"write {number}"
            number += 1
        assert number > 8


def test_a_pool_of_ours_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        house.records.remove("kv")  # /etc was lost
        found = house.adopt(region_of(house), daemon=True).record
        assert found.uuid == made.uuid
        assert (found.meta, found.data) == (made.meta, made.data)
        house.destroy(daemon=True)


def test_half_a_pool_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        Path(made.meta).write_bytes(bytes(8192))
        house.records.remove("kv")
        with pytest.raises(RefusedError, match=f"a part of pool {made.uuid}"):
            house.adopt(region_of(house))


def test_a_refused_adoption_leaves_no_pool_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, firmware="devdax", kmem=False) as house:
        name = region_of(house)
        house.daemon.refuse["pool.add"] = RefusedError("not from you")
        with pytest.raises(RefusedError, match="not from you"):
            house.adopt(name, daemon=True)
        assert house.adopt(name, daemon=True).created


def test_an_adoption_that_was_killed_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, firmware="devdax", kmem=False) as house:
        name = region_of(house)
        made = house.adopt(name).record
        # As a kill leaves it between the superblocks and the record's last writing.
        assert made.cxl is not None
        before = tuple(n for n in (name, *made.cxl.regions[0].dax[:1]))
        house.records.write(
            made.with_(uuid="", state="creating", cxl=made.cxl.with_(before=before))
        )
        house.destroy()
        assert devices(house) == [(name, 512 * M, "device_dax")]
        assert house.adopt(name).created


def test_plan_of_an_adoption_has_all_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, firmware="kmem-offline") as house:
        name = region_of(house)
        planned = house.adopt(name, dry_run=True).steps
        at = len(house.machine.writes)
        house.adopt(name)
        done = {f"{value} > {path}" for path, value, _ in house.machine.writes[at:]}
        shown = {step.removeprefix("echo ") for step in planned if step.startswith("echo ")}
        # remove_id and the like are only tried; paths are shown as they are reached.
        for write in done:
            value, path = write.split(" > ")
            assert any(
                line.startswith(f"{value} > ") and line.split("/")[-1].split()[0] ==
                path.split("/")[-1] for line in shown
            ), write  # fmt: skip


def test_devices_that_a_region_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, firmware="kmem-online-movable") as house:
        name = region_of(house)
        with pytest.raises(RefusedError, match=f"{name} has it; .* zone Movable") as caught:
            house.create()
        assert caught.value.hint == f"sacctl pool adopt kv {name} --force-offline"
        house.adopt(name, force_offline=True, name="other")
        with pytest.raises(RefusedError, match="which is pool 'other'"):
            house.create()


@pytest.mark.parametrize("damage", ["torn", "newer"])
def test_a_superblock_that_is_not_understood_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    with CxlHouse(tmp_path, monkeypatch, firmware="devdax", kmem=False) as house:
        device = house.machine.root / "dev" / read(house.machine.sysfs).dax[0].name
        block = bytearray(4096)
        struct.pack_into("<8sII16sQII", block, 0, b"SACPOOL\0", 2, 0, b"u" * 16, 1, 1, 0)
        if damage == "newer":
            struct.pack_into("<I", block, 4092, superblock.crc32c(bytes(block[:-4])))
        with device.open("r+b") as file:
            file.write(block)
        before = house.look()
        with pytest.raises(RefusedError, match="damaged, or of another version"):
            house.adopt(region_of(house))
        assert house.look() == before
        with device.open("rb") as file:
            assert file.read(4096) == bytes(block)


def test_a_dry_run_says_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, firmware="kmem-offline", kmem=True) as house:
        name = region_of(house)
        planned = house.adopt(name, dry_run=True).steps
        done: list[str] = []
        house.adopt(name, say=done.append)
        assert planned == done
        unbound = [step for step in done if step.endswith("/unbind")]
        assert [step.split("/")[-2] for step in unbound] == ["kmem", "device_dax"]
