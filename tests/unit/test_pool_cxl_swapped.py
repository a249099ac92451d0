# SPDX-License-Identifier: Apache-2.0
"""Devices, or what they hold, exchanged while the machine was off: what may be whole when they
are back in their places is not written over."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cxlsim
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from unit.cxl_house import CxlHouse, M
from unit.test_pool_cxl import CORE

from sacctl.cli import root
from sacctl.cxl.read import read
from sacctl.errors import RefusedError
from sacctl.pool import cxl_marks, native, superblock
from sacctl.pool.record import Record

SEEDS = itertools.count(100)  # another boot each time
PAIRS = (("serial:0x100", "serial:0x101"), ("serial:0x102", "serial:0x103"))


def memory(house: CxlHouse, number: int) -> Path:
    """The file with all that a device holds."""
    return house.machine.root / ".memory" / f"mem{number}.raw"


def exchange(house: CxlHouse, one: int, other: int) -> None:
    """Of two devices what they hold, while the machine is off."""
    house.daemon.stop()
    house.machine.kernel.media.keep()
    house.machine.close()
    first, second = memory(house, one), memory(house, other)
    aside = first.with_suffix(".aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    place = house.root / "m"
    house.machine = cxlsim.Machine(place, house.topology, seed=next(SEEDS), **house.options)


def held(house: CxlHouse) -> list[bytes]:
    """All that the devices hold at their beginning, and where metadata begins."""
    house.machine.kernel.media.keep()
    return [
        house.machine.peek(m.serial, at, 4 * M)
        for m in read(house.machine.sysfs).memdevs
        for at in (0, 240 * M)
    ]


def refused(house: CxlHouse, work: Callable[[], object], match: str) -> RefusedError:
    """work is refused, and neither memory nor machine nor records are otherwise then."""
    before, bytes_before = house.look(), held(house)
    with pytest.raises(RefusedError, match=match) as caught:
        work()
    assert house.look() == before
    assert held(house) == bytes_before
    return caught.value


def rows(record: Record) -> None:
    for path in record.data:
        with open(path, "r+b") as file:  # noqa: PTH123
            file.seek(100 * M)
            file.write(b"rows" * 1000)


def without_marks(record: Record) -> None:
    """As an older version made it."""
    for path in record.data:
        with open(path, "r+b") as file:  # noqa: PTH123
            file.seek(cxl_marks.AT)
            file.write(bytes(256 << 10))


def rows_there(record: Record) -> bool:
    found = []
    for path in record.data:
        with open(path, "rb") as file:  # noqa: PTH123
            file.seek(100 * M)
            found.append(file.read(4000) == b"rows" * 1000)
    return all(found)


@pytest.mark.parametrize(
    ("topology", "one", "other", "marks"),
    [
        ("2hb2", 0, 1, True),
        ("2hb2", 0, 1, False),
        ("2hb4", 0, 3, False),
        ("2hb4", 1, 2, False),
        ("2hb2g4k", 0, 1, False),
        ("1hb4", 0, 2, False),
        ("2hb4g4k", 0, 2, False),
        ("2hb4g4k", 1, 3, True),
        ("2hb4g4k", 2, 3, True),
    ],
)
def test_swapped_devices_are_left_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    topology: str,
    one: int,
    other: int,
    marks: bool,
) -> None:
    with CxlHouse(tmp_path, monkeypatch, topology) as house:
        for name, function in CORE.items():
            monkeypatch.setattr(native, name, function)
        made = house.create().record
        rows(made)
        if not marks:
            without_marks(made)
        exchange(house, one, other)
        error = refused(house, house.assemble, "swapped|is damaged")
        assert "sacctl pool assemble kv --format" in error.hint
        assert "back" in error.hint
        exchange(house, one, other)
        done = house.assemble()
        assert not done.formatted
        assert done.record.uuid == made.uuid
        assert rows_there(done.record)


def test_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        house.create()
        exchange(house, 0, 1)
        made = house.record().cxl
        assert made is not None
        first, second = made.regions[0].devices
        said = (
            f"{first} holds what {second} held of pool 'kv', as it seems; nothing was written"
        )
        assert refused(house, house.assemble, said).object == first


def test_what_is_said_of_a_pool_without_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        without_marks(made)
        exchange(house, 0, 1)
        error = refused(house, house.assemble, "the beginning of pool 'kv' stands .* behind")
        assert error.object in ("serial:0x100", "serial:0x101")


@pytest.mark.parametrize(("one", "other"), [(0, 2), (1, 3), (0, 3), (1, 2)])
@pytest.mark.parametrize("marks", [True, False])
def test_a_device_of_another_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: int, other: int, marks: bool
) -> None:
    """Neither pool is written over, whichever of their devices were exchanged."""
    with CxlHouse(tmp_path, monkeypatch, "1hb4") as house:
        for name, function in CORE.items():
            monkeypatch.setattr(native, name, function)
        made = {n: house.create(*d, name=n).record for n, d in zip("ab", PAIRS, strict=True)}
        for record in made.values():
            rows(record)
            if not marks:
                without_marks(record)
        exchange(house, one, other)
        for name in made:
            refused(house, partial(house.assemble, name=name), "swapped|is damaged")
        exchange(house, one, other)
        for name, record in made.items():
            done = house.assemble(name=name)
            assert done.record.uuid == record.uuid
            assert rows_there(done.record)


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 2), (2, 3)])
def test_devices_that_have_nothing_of_a_superblock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: int, other: int
) -> None:
    """In stripes of 64 KiB it lies on one device only: the marks tell the others apart."""
    with CxlHouse(tmp_path, monkeypatch, "1hb4") as house:
        for name, function in CORE.items():
            monkeypatch.setattr(native, name, function)
        made = house.create(granularity=16384).record
        rows(made)
        exchange(house, one, other)
        refused(house, house.assemble, "swapped")
        exchange(house, one, other)
        done = house.assemble()
        assert done.record.uuid == made.uuid
        assert rows_there(done.record)


def test_a_pool_of_an_older_version_has_no_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        without_marks(made)
        house.reboot()
        assert house.assemble().record.uuid == made.uuid


def test_the_second_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata and the first extent are whole: the other extent's devices were swapped."""
    with CxlHouse(tmp_path, monkeypatch, "2hb4") as house:
        made = house.create(*house.devices()[:3]).record
        assert made.cxl is not None
        second = made.cxl.regions[1].devices
        if len(second) == 2:
            exchange(house, *(int(d[-1]) for d in second))
            refused(house, house.assemble, "swapped")
        else:
            exchange(house, *(int(d[-1]) for d in made.cxl.regions[0].devices))
            refused(house, house.assemble, "swapped")


@pytest.mark.parametrize("content", ["zeros", "random", "one device zeros"])
def test_memory_that_lost_its_power_is_formatted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        house.reboot()
        for number in range(1 if content.startswith("one") else 2):
            file = memory(house, number)
            size = file.stat().st_size
            os.truncate(file, 0)
            os.truncate(file, size)
            if content == "random":
                with file.open("r+b") as out:
                    for at in (0, 200 * M):
                        out.seek(at)
                        out.write(os.urandom(56 * M))
        done = house.assemble()
        assert done.formatted
        assert not done.forced
        assert done.record.uuid != made.uuid


def test_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        made = house.create().record
        exchange(house, 0, 1)
        refused(house, house.assemble, "swapped")
        done = house.assemble(anew=True)
        assert (done.formatted, done.forced) == (True, True)
        assert done.record.uuid not in ("", made.uuid)
        assert house.record() == done.record
        house.reboot()
        again = house.assemble(anew=True)  # what is whole is kept, whatever is allowed
        assert not again.formatted
        assert again.record.uuid == done.record.uuid
        house.destroy()
        assert house.records.names() == []


def test_destroyed_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own memory in another order is scrubbed all the same."""
    with CxlHouse(tmp_path, monkeypatch) as house:
        rows(house.create().record)
        exchange(house, 0, 1)
        assert house.destroy().left == []
        assert not any(part.strip(b"\0") for part in held(house))


def test_a_destruction_leaves_the_other_pool_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, "1hb4") as house:
        for name, devices in zip("ab", PAIRS, strict=True):
            house.create(*devices, name=name)
        exchange(house, 0, 3)
        for name in "ab":
            refused(house, partial(house.destroy, name=name), "swapped")
        house.assemble(name="a", anew=True)
        assert house.destroy(name="a").left == []


def test_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of which no record knows."""
    with CxlHouse(tmp_path, monkeypatch, firmware="devdax") as house:
        house.adopt("region2")
        house.records.remove("kv")
        exchange(house, 0, 1)
        region = read(house.machine.sysfs).regions[0].name
        refused(house, lambda: house.adopt(region), "swapped")
        exchange(house, 0, 1)
        region = read(house.machine.sysfs).regions[0].name
        with pytest.raises(RefusedError, match="holds a part"):
            house.adopt(region)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        house.create()
        exchange(house, 0, 1)
        (tmp_path / "sac.toml").write_text(f'pools.dir = "{house.records.folder}"\n')
        monkeypatch.setenv("SAC_CONFIG", str(tmp_path / "sac.toml"))
        monkeypatch.setenv("SAC_SOCKET", str(tmp_path / "no"))
        words = ["--sysroot", str(house.machine.root), "pool", "assemble"]
        done = CliRunner().invoke(root, [*words, "kv"])
        assert done.exit_code == 4, done.output
        assert "swapped" in done.stderr
        assert CliRunner().invoke(root, [*words, "--all", "--format"]).exit_code == 2
        done = CliRunner().invoke(root, [*words, "kv", "--format"])
        assert done.exit_code == 0, done.output
        assert "given up" in done.stderr
        assert "lost its content" not in done.stderr


@given(st.binary(max_size=2048), st.integers(0, 7))
def test_pieces_are_found_where_they_stand(noise: bytes, at: int) -> None:
    head = bytearray(noise.replace(b"SACPOOL", b"sacpool").ljust(2048, b"\1"))
    head[at * 256 : at * 256 + 8] = b"SACPOOL\0"
    head[at * 256 + 16 : at * 256 + 32] = bytes(range(16))
    assert superblock.pieces(bytes(head)) == [(at * 256, bytes(range(16)).hex())]
