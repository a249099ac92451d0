# SPDX-License-Identifier: Apache-2.0
"""sacctl.pool.record and .spec: records as TOML, names, sizes."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacctl.errors import CtlError, NotFoundError, UsageError
from sacctl.pool.cxl_record import CxlPart, RegionPart
from sacctl.pool.record import Record, Records, check_name, render
from sacctl.pool.spec import SLAB, Spec, format_sizes, parse_sizes

G, M = 1 << 30, 1 << 20

RECORD = Record(
    name="kv",
    uuid="0123456789abcdef" * 2,
    created="2026-11-29T12:00:00+00:00",
    meta="/dev/shm/sac-0/kv/meta",
    data=("/dev/shm/sac-0/kv/data.0", "/dev/shm/sac-0/kv/data.1"),
    sizes=(G, G),
    uid=1000,
    folders=("/dev/shm/sac-0", "/dev/shm/sac-0/kv"),
)

REGION = RegionPart(
    devices=("serial:0x100", "serial:0x101"),
    ways=2,
    granularity=256,
    bytes=G,
    region="region2",
    dax=("dax2.0", "dax2.1"),
    parts=(G - 64 * M, 32 * M),
)
CXL = RECORD.with_(
    kind="cxl",
    meta="/dev/dax2.1",
    data=("/dev/dax2.0",),
    sizes=(G - 64 * M,),
    folders=(),
    cxl=CxlPart((REGION,), boot="b1", room=32 * M),
)

paths = st.text(
    st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=30
).filter(lambda text: text != "..")


@given(paths, st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 32) - 1))
def test_what_is_written_is_read(name: str, size: int, uid: int) -> None:
    record = RECORD.with_(meta=f"/{name}/meta", data=(f"/{name}/x",), sizes=(size,), uid=uid)
    assert Record.from_dict(tomllib.loads(render(record))) == record


def test_files(tmp_path: Path) -> None:
    records = Records(tmp_path / "pools.d")
    assert records.names() == []
    assert records.find("kv") is None
    with pytest.raises(NotFoundError, match="no pool 'kv'") as caught:
        records.get("kv")
    assert caught.value.hint == "sacctl pool list"
    records.folder.mkdir()
    records.write(RECORD)
    records.write(RECORD.with_(name="a.b"))
    (records.folder / ".x.toml").write_text("")
    (records.folder / "notes.txt").write_text("")
    assert records.names() == ["a.b", "kv"]
    assert records.get("kv") == RECORD
    assert [record.name for record in records.all()] == ["a.b", "kv"]
    assert stat.S_IMODE(records.path("kv").stat().st_mode) == 0o644
    with pytest.raises(NotFoundError, match=r"there are a\.b, kv"):
        records.get("other")
    records.remove("kv")
    records.remove("kv")
    assert records.names() == ["a.b"]


def test_failed_write_keeps_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(tmp_path)
    records.write(RECORD)

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CtlError, match="No space"):
        records.write(RECORD.with_(uid=7))
    assert records.get("kv") == RECORD
    assert [path.name for path in tmp_path.iterdir()] == ["kv.toml"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "../kv"),
        ("name", None),
        ("kind", "dax"),
        ("state", "odd"),
        ("uuid", "0123"),
        ("uuid", 7),
        ("meta", "relative"),
        ("meta", "/a/../b"),
        ("data", []),
        ("data", "/x"),
        ("data", [1]),
        ("data", ["/only-one"]),
        ("sizes", [True, 1]),
        ("sizes", [-1, 1]),
        ("sizes", None),
        ("huge", "4M"),
        ("uid", "root"),
        ("folders", [""]),
    ],
)
def test_records_that_are_not_whole(key: str, value: Any, tmp_path: Path) -> None:
    values = RECORD.to_dict()
    values[key] = value
    if value is None:
        del values[key]
    with pytest.raises(CtlError, match=r"rec\.toml") as caught:
        Record.from_dict(values, "rec.toml")
    assert key in str(caught.value) or "sizes" in str(caught.value)


def test_files_that_are_no_records(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.path("kv").write_bytes(b"\xff = 1")
    with pytest.raises(CtlError, match="no TOML file"):
        records.get("kv")
    records.path("kv").write_text(render(RECORD.with_(name="other")))
    with pytest.raises(CtlError, match="must agree"):
        records.get("kv")
    for text in ("x = " + "9" * 5000, "x = " + "[" * 5000, "x = " + "[" * 5000 + "]" * 5000):
        records.path("kv").write_text(render(RECORD) + text)
        with pytest.raises(CtlError, match="no TOML file"):
            records.get("kv")
    records.path("kv").write_text(render(RECORD) + "#" * (1 << 20))
    with pytest.raises(CtlError, match="too long"):
        records.get("kv")
    os.mkfifo(records.path("pipe"))  # nobody writes to it
    records.path("zero").symlink_to("/dev/zero")
    records.path("folder").mkdir()
    for name in ("pipe", "zero", "folder"):
        with pytest.raises(CtlError, match="not a regular file"):
            records.get(name)
    records.path("kv").write_text(render(RECORD) + 'later = "a newer version\'s"\n')
    assert records.get("kv") == RECORD


@pytest.mark.parametrize("name", ["", ".x", "-x", "a/b", "a b", "x" * 64, "ü"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4G", (4 * G,)),
        ("2x1G", (G, G)),
        ("3 X 2M", (2 * M,) * 3),
        ("2*1.5G", (3 << 29,) * 2),
        ("1", (2 * M,)),
        ("3M", (4 * M,)),
        ("64x1G", (G,) * 64),
    ],
)
def test_sizes(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes
    assert parse_sizes(format_sizes(sizes)) == sizes


@pytest.mark.parametrize(
    "text", ["", "x", "2x", "x1G", "0x1G", "65x1G", "0", "1GB", "-1G", "2x2x1G", "2E", "1.5"]
)
def test_sizes_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError):
        parse_sizes(text)


def test_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Spec("kv", (G,), path="x/../pool").path == str(tmp_path / "pool")
    assert Spec("kv", (G, 2 * M)).file_bytes() == (G + SLAB, 2 * M + SLAB)
    assert Spec("kv", (G, 2 * M), huge="2M").file_bytes() == (G + SLAB, 2 * M + SLAB)
    assert Spec("kv", (G, 3 << 29), huge="1G").file_bytes() == (G, 2 * G)
    assert Spec("kv", (G,)).meta_bytes() % (64 << 10) == 0
    with pytest.raises(UsageError, match="give one"):
        Spec("kv", (G,), huge="2M", path="/tmp/x")
    with pytest.raises(UsageError, match="2M and 1G"):
        Spec("kv", (G,), huge="4M")
    with pytest.raises(UsageError, match="64"):
        Spec("kv", (G,) * 65)
    same = Spec.of(RECORD)
    assert same.differences(RECORD) == []
    assert len(Spec("kv", (G,), path="/x").differences(RECORD.with_(huge="2M"))) == 3


# ----------------------------------------------------------------------- CXL pools


identities = st.one_of(
    st.integers(1, (1 << 64) - 1).map(lambda n: f"serial:{n:#x}"),
    st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 7)).map(
        lambda t: f"pci:0000:{t[0]:02x}:{t[1]:02x}.{t[2]}"
    ),
)


@given(
    st.lists(identities, min_size=1, max_size=16, unique=True),
    st.integers(0, (1 << 50)),
    st.booleans(),
    st.sampled_from(["", "kv"]),
)
def test_cxl_record_is_read_as_written(
    devices: list[str], room: int, adopted: bool, parent: str
) -> None:
    region = REGION.with_(devices=tuple(devices), ways=len(devices), made=not adopted)
    part = CxlPart((region,), adopted=adopted, boot="b", room=room, parent=parent,
                   before=("region0", "decoder3.0", "dax0.0"))  # fmt: skip
    record = CXL.with_(cxl=part)
    assert Record.from_dict(tomllib.loads(render(record))) == record


def _changed(where: str, value: Any) -> dict[str, Any]:
    values = tomllib.loads(render(CXL))
    table: Any = values
    *path, last = where.split(".")
    for step in path:
        table = table[int(step)] if step.isdigit() else table[step]
    if value is None:
        del table[last]
    else:
        table[int(last) if last.isdigit() else last] = value
    return values


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        ("cxl", None, "cxl is missing"),
        ("cxl", 7, "cxl is no table"),
        ("kind", "emulated", "cxl is there"),
        ("kind", "nvdimm", "knows emulated, cxl"),
        ("cxl.mode", "fsdax", "cxl.mode is 'fsdax'"),
        ("cxl.mode", "system-ram", "cxl.mount is for mode system-ram"),
        ("cxl.mount", "/run/x", "cxl.mount is for mode system-ram"),
        ("cxl.room", -1, "cxl.room is -1"),
        ("cxl.room", True, "cxl.room is True"),
        ("cxl.parent", "../x", "which no pool is called"),
        ("cxl.before", ["../../etc"], "cxl.before holds"),
        ("cxl.regions", [], "cxl.regions are 0"),
        ("cxl.regions", "all", "no list of tables"),
        ("cxl.regions.0", "x", r"cxl.regions\[0\] is no table"),
        ("cxl.regions.0.devices", ["mem0", "mem1"], "'mem0', which names no device"),
        ("cxl.regions.0.devices", ["serial:0x1", "serial:0x1"], "hold a device twice"),
        ("cxl.regions.0.devices", ["serial:0x1"], "ways is 2 for 1 devices"),
        ("cxl.regions.0.ways", 17, "ways is 17"),
        ("cxl.regions.0.granularity", 300, "no power of two"),
        ("cxl.regions.0.bytes", 0, "bytes is 0"),
        ("cxl.regions.0.bytes", 1 << 20, "are more than the region's"),
        ("cxl.regions.0.region", "region2/../..", "which no region is called"),
        ("cxl.regions.0.dax", ["sda", "sdb"], "which no dax device is called"),
        ("cxl.regions.0.dax", ["dax0.0"] * 3, "3 names for 2 parts"),
        ("cxl.regions.0.parts", [M, 0], "must have one or two sizes"),
        ("cxl.regions.0.parts", [M, M, M], "must have one or two sizes"),
        ("cxl.regions.0.weight", 0, "weight is 0"),
        ("cxl.regions.0.made", "yes", "true or false"),
        ("data", ["/dev/dax2.0", "/dev/dax3.0"], "sizes has 1 entries"),
        ("meta", "/dev/../etc/passwd", "no absolute path"),
    ],
)
def test_cxl_records_that_are_wrong(where: str, value: Any, says: str) -> None:
    with pytest.raises(CtlError, match=says):
        Record.from_dict(_changed(where, value), "kv.toml")


def test_cxl_record_of_two_regions_needs_two_extents() -> None:
    values = tomllib.loads(render(CXL))
    other = {**values["cxl"]["regions"][0], "devices": ["serial:0x7", "serial:0x8"]}
    values["cxl"]["regions"].append(other)
    with pytest.raises(CtlError, match="regions are 2 for 1 extents"):
        Record.from_dict(values)
    other["devices"] = ["serial:0x100", "serial:0x8"]
    with pytest.raises(CtlError, match="hold a device twice"):
        Record.from_dict(values)
