# SPDX-License-Identifier: Apache-2.0
"""Pools of CXL devices on a simulated machine: made, found again, assembled, taken apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.cxl_house import CxlHouse, M

from sacctl.cxl import guard, regionsteps
from sacctl.cxl.made import Made
from sacctl.cxl.read import read
from sacctl.cxl.regionplan import plan_region
from sacctl.errors import (
    BusyError,
    CtlError,
    DeniedError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from sacctl.pool import native
from sacctl.pool.cxl_isolated import create as isolate
from sacctl.pool.cxl_isolated import find as find_isolated
from sacctl.pool.cxl_spec import CxlSpec, divide, meta_bytes
from sacctl.pool.opening import open_files
from sacctl.pool.places import LOCK_WAIT
from sacctl.pool.record import Record
from sacctl.pool.scrub import Untouched
from sacctl.pool.steps import carry_out

# The real ones: the house puts others in their place.
CORE = {name: getattr(native, name) for name in ("format_pool", "inspect_pool")}

MAPPER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 1 << 21) as memory:
    file.close()
    print("mapped", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("topology", ["1hb1", "2hb4", "sw2"])
def test_made_and_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: str
) -> None:
    with CxlHouse(tmp_path, monkeypatch, topology) as house:
        before = house.look()
        dry = house.create(dry_run=True)
        assert house.look() == before
        made = house.create(daemon=True)
        assert made.steps[:-2] == dry.steps  # and the daemon got it
        record = made.record
        assert house.daemon.pools.keys() == {"kv"}
        assert record == house.record()
        assert record.state == "ready"
        part = record.cxl
        assert part is not None
        region = part.regions[0]
        assert region.ways == len(house.devices())
        assert set(region.devices) == set(house.devices())
        found = read(house.machine.sysfs)
        assert [d.bytes for d in found.dax] == list(region.parts)
        assert sum(region.parts) == region.bytes == found.regions[0].bytes
        assert {d.driver for d in found.dax} == {"device_dax"}
        assert found.policy.autoprobe is True
        again = house.create(*reversed(house.devices()), daemon=True)
        assert not again.created
        assert again.record == record
        house.destroy(daemon=True)
        assert house.look() == before
        assert house.daemon.pools == {}
        assert sum(m.used_bytes for m in read(house.machine.sysfs).memdevs) == 0


def test_another_spec_is_another_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        house.create()
        before = house.look()
        for more, says in (
            ({"bytes": 1 << 30}, "size: it has 512M, asked is 1G"),
            ({"granularity": 1024}, "granularity: it has 256, asked is 1024"),
            ({"mode": "system-ram"}, "mode: it has devdax"),
            ({"room": 64 * M}, "room for isolated namespaces"),
        ):
            with pytest.raises(CtlError, match=says):
                house.create(**more)
        one = house.devices()[0]
        with pytest.raises(CtlError, match=f"devices: it has .*, asked are {one}"):
            house.create(one)
        assert house.look() == before


def test_rules_are_named_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        before = house.look()
        with pytest.raises(UsageError, match="granularity 300"):
            house.create(granularity=300)
        with pytest.raises(UsageError, match="twice"):
            house.create(*house.devices()[:1] * 2)
        with pytest.raises(CtlError, match="leave nothing for data"):
            house.create(room=508 * M)
        assert house.look() == before
        assert house.machine.writes == []


def test_several_regions_are_extents_of_one_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three devices below two bridges cannot be one region.
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        record = house.create(*house.devices()[:3], daemon=True).record
        part = record.cxl
        assert part is not None
        assert len(part.regions) == len(record.data) == 2
        assert [len(region.parts) for region in part.regions] == [2, 1]
        assert part.regions[0].weight != part.regions[1].weight
        assert not house.create(*house.devices()[:3], daemon=True).created
        house.reboot()
        assert house.assemble().record.uuid == record.uuid
        house.destroy()
        now = read(house.machine.sysfs)
        assert now.regions == ()
        assert sum(m.used_bytes for m in now.memdevs) == 0


def test_a_device_that_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        with pytest.raises(UsageError, match="does not need mem"):
            house.create(*house.devices()[:3], bytes=256 * M)
        assert house.machine.writes == []


def test_reboot_and_assemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        made = house.create().record
        at = made.sizes[0] - 4096
        with open(made.data[0], "r+b") as memory:  # noqa: PTH123
            memory.seek(at)
            memory.write(b"rows")
        house.reboot()
        monkeypatch.setenv("SAC_SYSROOT", str(house.machine.root))
        with pytest.raises(NotFoundError, match="not assembled since") as caught:
            open_files(house.record())
        assert caught.value.hint == "sudo sacctl pool assemble kv"
        done = house.assemble(daemon=True)
        assert done.changed
        assert done.served
        assert not done.formatted
        record = done.record
        assert record.uuid == made.uuid
        assert record.cxl is not None
        assert made.cxl is not None
        assert record.cxl.regions[0].devices == made.cxl.regions[0].devices
        with open(record.data[0], "rb") as memory:  # noqa: PTH123
            memory.seek(at)
            assert memory.read(4) == b"rows"
        assert not house.assemble(daemon=True).changed
        for fd in open_files(record):
            os.close(fd)


def test_memory_that_lost_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        house.reboot()
        for file in (house.machine.root / ".memory").iterdir():
            size = file.stat().st_size
            os.truncate(file, 0)
            os.truncate(file, size)
        done = house.assemble()
        assert done.formatted
        assert done.record.uuid != made.uuid
        assert house.record().state == "ready"


def test_memory_of_another_pool_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        house.records.write(made.with_(uuid="ab" * 16))
        house.reboot()
        before = house.look()
        with pytest.raises(RefusedError, match=f"holds pool {made.uuid}"):
            house.assemble()
        assert house.look() == before


def test_missing_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        house.create()
        house.reboot()
        house.machine.unplug(0x101)
        before = house.look()
        with pytest.raises(NotFoundError, match="needs serial:0x101, which is not there"):
            house.assemble()
        assert house.look() == before
        house.machine.plug(0x101)
        assert not house.assemble().formatted


def test_device_that_goes_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        house.machine.unplug(0x100)
        with pytest.raises(NotFoundError, match="0x100"):
            house.assemble()
        house.machine.plug(0x100)
        done = house.assemble()
        assert done.changed
        assert not done.formatted
        assert done.record.uuid == made.uuid
        house.destroy()
        assert sum(m.used_bytes for m in read(house.machine.sysfs).memdevs) == 0


@pytest.mark.parametrize("reboot", [False, True])
def test_destroyed_without_its_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reboot: bool
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        house.create()
        if reboot:
            house.reboot()
        house.machine.unplug(0x101)
        before = house.look()
        with pytest.raises(RefusedError, match="cannot be scrubbed whole: serial:0x101") as no:
            house.destroy()
        assert "serial:0x100: not scrubbed either" in no.value.message
        assert "--allow-leak" in no.value.hint
        with pytest.raises(RefusedError, match="cannot be scrubbed whole"):
            house.destroy(dry_run=True)
        assert house.look() == before
        gone = house.destroy(allow_leak=True)
        assert any("serial:0x101 is not there" in left for left in gone.left)
        assert house.records.names() == []
        now = read(house.machine.sysfs)
        assert now.regions == ()
        assert sum(m.used_bytes for m in now.memdevs) == 0


def test_bound_to_kmem_behind_its_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, auto_online="online") as house:
        record = house.create(daemon=True).record
        assert record.cxl is not None
        sysfs, drivers = house.machine.sysfs, "/sys/bus/dax/drivers"
        for name in record.cxl.regions[0].dax:
            sysfs.write(f"{drivers}/device_dax/unbind", name)
            sysfs.write(f"{drivers}/device_dax/remove_id", name)
        sysfs.write(f"{drivers}/kmem/bind", record.cxl.regions[0].dax[0])
        before = house.look()
        for force in (False, True):
            with pytest.raises(RefusedError, match="Normal"):
                house.destroy(daemon=True, force_offline=force)
            assert house.look() == before
        gone = house.destroy(daemon=True, force_offline=True, allow_leak=True)
        assert any("could not be scrubbed" in left for left in gone.left)
        assert read(house.machine.sysfs).regions == ()
        assert house.records.names() == []


def test_destroyed_after_a_reboot_is_scrubbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        with open(made.data[0], "r+b") as memory:  # noqa: PTH123
            memory.seek(1 << 20)
            memory.write(b"secret" * 1000)
        house.reboot()
        assert house.destroy().left == []
        for serial in (0x100, 0x101):
            assert b"secret" not in house.machine.peek(serial, 0, 4 << 20)
            assert not house.machine.peek(serial, 0, 4 << 20).strip(b"\0")


def untouched(record: Record) -> bool:
    with open(record.meta, "rb") as file:  # noqa: PTH123
        look = Untouched(file.fileno, record.uuid)
        look.apply()
    return look.yes


def test_pool_made_anew_over_its_old_memory_is_scrubbed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head was lost, or zeroed by a destruction that was cut off; the rest may be there."""
    with CxlHouse(tmp_path, monkeypatch) as house:
        for name, function in CORE.items():
            monkeypatch.setattr(native, name, function)
        made = house.create().record
        assert untouched(made)
        for path in (made.meta, *made.data):
            with open(path, "r+b") as memory:  # noqa: PTH123
                memory.write(bytes(8192))
        house.reboot()
        assembled = house.assemble()
        assert assembled.formatted
        assert not untouched(assembled.record)


def test_destroy_is_refused_while_somebody_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacctl.pool.cxl_files.LOCK_WAIT", LOCK_WAIT / 100)
    with CxlHouse(tmp_path, monkeypatch) as house:
        record = house.create(daemon=True).record
        before = house.look()
        house.daemon.refuse["pool.remove"] = BusyError("client 17 is attached", object="kv")
        with pytest.raises(RefusedError, match="client 17"):
            house.destroy(daemon=True)
        with pytest.raises(BusyError, match="in use"):
            house.destroy()  # as if the daemon did not answer: it has its files locked
        assert house.look() == before
        house.daemon.stop()
        with subprocess.Popen(
            [sys.executable, "-c", MAPPER, record.data[0]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as user:
            try:
                assert user.stdout is not None
                assert user.stdout.readline() == b"mapped\n"
                with pytest.raises(
                    RefusedError, match=rf"mapped or open in \w+ \({user.pid}\)"
                ):
                    house.destroy()
                assert house.look() == before
            finally:
                user.kill()
        house.destroy()


def test_isolated_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        empty = house.look()
        house.create(room=256 * M, daemon=True)
        before = house.look()
        sysfs, records = house.machine.sysfs, house.records

        def isolated(quota: int, name: str = "bank") -> None:
            isolate("kv", name, quota, {"mode": "0600"}, sysfs, records, house.daemon)

        with pytest.raises(RefusedError, match="of room left"):
            isolated(300 * M)
        assert house.look() == before
        isolated(64 * M)
        record = find_isolated(records, "kv", "bank")
        assert record is not None
        assert record.sizes == (66 * M,)
        assert house.daemon.namespaces == {("kv.bank", "bank")}
        with pytest.raises(CtlError, match=r"'kv\.bank' already"):
            isolated(64 * M)
        with pytest.raises(RefusedError, match=r"in its room: kv\.bank"):
            house.destroy(daemon=True)
        with Path(record.data[0]).open("r+b") as memory:
            memory.write(b"secret")
        house.destroy(daemon=True, name="kv.bank")
        assert house.look() == before
        house.daemon.refuse["namespace.create"] = CtlError("no such layout")
        with pytest.raises(CtlError, match="no such layout"):
            isolated(64 * M)
        assert house.look() == before
        assert house.daemon.pools.keys() == {"kv"}
        house.destroy(daemon=True)
        assert house.look() == empty


def test_isolated_namespace_after_a_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        house.create(room=256 * M, daemon=True)
        records = house.records
        isolate("kv", "bank", 64 * M, {}, house.machine.sysfs, records, house.daemon)
        made = records.get("kv.bank")
        house.reboot()
        with pytest.raises(NotFoundError, match="region of pool 'kv' is not there"):
            house.assemble(name="kv.bank")
        house.assemble()
        done = house.assemble(name="kv.bank")
        assert not done.formatted
        assert done.record.uuid == made.uuid
        house.destroy(name="kv.bank")
        house.destroy()
        assert sum(m.used_bytes for m in read(house.machine.sysfs).memdevs) == 0


def test_room_is_only_where_it_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        house.create()
        with pytest.raises(RefusedError, match="no room") as caught:
            isolate("kv", "b", M, {}, house.machine.sysfs, house.records, house.daemon)
        assert "--isolated-room" in caught.value.hint


def test_only_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        monkeypatch.setattr(type(house.machine.sysfs), "simulated", False)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        for work in (
            house.create,
            lambda: house.adopt("region0"),
            house.destroy,
            house.assemble,
        ):
            with pytest.raises(DeniedError, match="only root") as caught:
                work()
            assert caught.value.hint.startswith("sudo sacctl pool ")


# -------------------------------------------------------------------------- sizes


@given(st.lists(st.integers(1, 1 << 16), min_size=1, max_size=8), st.integers(0, 512))
def test_regions_are_divided(units: list[int], room: int) -> None:
    regions = [unit * 256 * M for unit in units]
    try:
        parts = divide("kv", regions, room * 2 * M, True)
    except CtlError:
        assert (
            regions[0] - room * 2 * M - meta_bytes(max(0, sum(regions) - room * 2 * M)) < 4 * M
        )
        return
    data, meta = parts[0]
    assert data + meta + room * 2 * M == regions[0]
    assert [part[0] for part in parts[1:]] == regions[1:]
    assert all(size % (2 * M) == 0 and size > 0 for part in parts for size in part)
    total = data + sum(regions[1:])
    assert meta >= total // 128 + total // (2 * M) * 8 + 16 * M


def test_specs() -> None:
    assert CxlSpec("kv", ("serial:0x1",), room=1).room == 2 * M
    with pytest.raises(UsageError, match="cannot be a pool's name"):
        CxlSpec("a/b", ("serial:0x1",))
    with pytest.raises(UsageError, match="modes are devdax and system-ram"):
        CxlSpec("kv", ("serial:0x1",), mode="fsdax")
    with pytest.raises(UsageError, match="needs --mode devdax"):
        CxlSpec("kv", ("serial:0x1",), mode="system-ram", room=M)


# --------------------------------------------------- what belongs to somebody else


def test_devices_of_a_half_made_pool_are_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        for number in (1, 9):
            assert house.kill_at(number, house.create)
            with pytest.raises(RefusedError, match="pool 'kv', which is half made") as caught:
                house.create(name="other")
            assert "sacctl pool destroy kv" in caught.value.hint
            house.destroy()
        house.create(name="other")


def test_pool_that_is_not_assembled_keeps_its_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        house.reboot()
        with pytest.raises(RefusedError, match="which is not assembled now") as caught:
            house.create(name="other")
        assert "sudo sacctl pool assemble kv" in caught.value.hint
        assert house.assemble().record.uuid == made.uuid


def test_unreadable_record_keeps_its_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        path = house.records.path("kv")
        whole = path.read_text()
        house.reboot()
        for text in (
            whole[: len(whole) // 2],
            whole.replace('"ready"', '"of a newer version"'),
        ):
            path.write_text(text)
            before = house.look()
            with pytest.raises(RefusedError, match="the record of pool 'kv' cannot be read"):
                house.create(name="other")
            assert house.look() == before
        path.write_text(whole)
        assert house.assemble().record.uuid == made.uuid


def test_unreadable_record_of_an_isolated_namespace_keeps_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        house.create(room=128 * M)
        house.records.path("kv.bank").write_text("[")
        with pytest.raises(RefusedError, match=r"the record of pool 'kv\.bank' cannot be read"):
            house.destroy()
        house.records.path("kv.bank").unlink()
        house.destroy()


def steal(house: CxlHouse) -> None:
    """A region of all devices, made with other tools."""
    topology = read(house.machine.sysfs)
    plan = plan_region(topology, topology.memdevs)
    region = Made()
    carry_out([*guard.Guard(house.machine.sysfs).begin], lambda _: None)
    carry_out(regionsteps.create(house.machine.sysfs, plan, region), lambda _: None)
    house.machine.sysfs.write("/sys/bus/dax/drivers/device_dax/new_id", region.dax[0])
    house.machine.sysfs.write("/sys/bus/dax/drivers_autoprobe", "1")


@pytest.mark.parametrize("number", [0, 1])
def test_region_made_meanwhile_is_left_alone_by_clearing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        assert house.kill_at(number, house.create)  # before it has made a region
        steal(house)
        before = read(house.machine.sysfs)
        house.destroy()
        assert house.records.names() == []
        assert read(house.machine.sysfs).regions == before.regions
        assert read(house.machine.sysfs).dax == before.dax


def test_region_of_others_after_a_reboot_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        house.create()
        house.reboot()
        steal(house)
        before = read(house.machine.sysfs)
        with pytest.raises(RefusedError, match="did not make it"):
            house.assemble()
        with pytest.raises(RefusedError, match="stays, for its memory could not be scrubbed"):
            house.destroy()
        assert house.record().state == "ready"
        assert read(house.machine.sysfs).regions == before.regions
        assert read(house.machine.sysfs).dax == before.dax


def test_another_pools_superblock_stops_a_destruction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        house.records.write(made.with_(uuid="ab" * 16))
        before = house.look()
        with pytest.raises(RefusedError, match=f"holds pool {made.uuid}"):
            house.destroy()
        assert house.look() == before


def test_pools_on_parts_of_the_same_devices_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, "1hb2", size=512 * M) as house:
        for name, made in (("b", "2026-01-01"), ("a", "2026-01-02")):
            record = house.create(name=name, bytes=512 * M).record
            house.records.write(record.with_(created=made))
        uuids = [house.records.get(name).uuid for name in "ba"]
        house.reboot()
        with pytest.raises(RefusedError, match="pool 'b' lies before pool 'a'"):
            house.assemble(name="a")
        with pytest.raises(RefusedError, match="pool 'a' lies behind pool 'b'") as caught:
            house.destroy(name="b")
        assert caught.value.hint == "sudo sacctl pool assemble a"
        done = [house.assemble(name=name) for name in "ba"]
        assert [one.record.uuid for one in done] == uuids
        assert not any(one.formatted for one in done)


def test_killed_isolated_namespace_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        house.create(room=256 * M)
        before = house.look()
        sysfs, records = house.machine.sysfs, house.records

        def isolated() -> None:
            isolate("kv", "bank", 64 * M, {}, sysfs, records, house.daemon)

        for number in range(1, 8):
            assert house.kill_at(number, isolated)
            assert records.get("kv.bank").state == "creating"
            if number % 2:
                house.destroy(name="kv.bank")
                assert house.look() == before
        assert house.kill_at(3, isolated)
        isolated()
        assert house.daemon.namespaces == {("kv.bank", "bank")}
