# SPDX-License-Identifier: Apache-2.0
"""The reader against a sysfs that lies, hides or leaves: a reading with reasons, never more."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.cxl_dump import tree

from sacctl.cli import root
from sacctl.cxl.devices import View
from sacctl.cxl.model import Memdev, Topology
from sacctl.cxl.read import read
from sacctl.cxl.read_platform import looked_for
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.tools import Readings
from sacctl.render.devices import device_parts, list_parts
from sacctl.render.output import to_json
from sacctl.render.table import plain
from sacctl.render.topology import topology_tree
from sacctl.render.tree import plain_tree

# What no kernel writes into an attribute that is read: none of it is a number, a name or a
# mode, so that whatever a device is described by is what the kernel said before.
GARBAGE = [
    b"", b"\n", b"xyz", b"-5", b"0x", b"1 2 3", b"\0\0\0", b"\xff\xfe\x80", b"9" * 30,
    b"0x" + b"f" * 17, b"1" * 100_000, "\u0663".encode(), b"1e9", b"+1", b"1_0", b"%s%n",
    b"\x1b[31m", b"../../etc",
]  # fmt: skip


def garbage(at: Path) -> list[bytes]:
    """An empty line is what the kernel says of a decoder without a region."""
    return [g for g in GARBAGE if g.strip() or at.name != "region"]


def everything(sysfs: Sysfs) -> Topology:
    """Reads, judges and renders all of it. Fails where anything of that is a traceback."""
    found = read(sysfs)
    view = View(sysfs, found, {}, Readings(), {})
    devices = view.devices()
    regions = [view.region(region) for region in found.regions]
    dax = [view.dax(one) for one in found.dax]
    skipped = view.skipped()
    record = {
        "devices": devices,
        "windows": [view.window(one) for one in found.roots],
        "bridges": list(found.bridges),
        "ports": [view.port(port) for port in found.ports],
        "regions": regions,
        "dax": dax,
        "skipped": skipped,
    }
    json.loads(to_json("device.topology", record))
    plain_tree(topology_tree(record))
    plain(list_parts(record))
    for memdev in found.memdevs:
        plain(device_parts(view.device(memdev, full=True), regions, dax))
    assert all(one["verdict"] and one["why"] for one in devices)
    assert all(one["why"] for one in skipped)
    assert all(looked.where and looked.found for looked in looked_for(sysfs, found))
    return found


class Tree:
    """A dump that can be damaged and made whole again."""

    def __init__(self, folder: Path, dump: str, look: str) -> None:
        self.sysfs = tree(dump, look, folder)
        self.found = read(self.sysfs)
        self.files = sorted(p for p in folder.rglob("*") if p.is_symlink() or p.is_file())
        self._undo: list[tuple[Path, bytes | str]] = []

    def remove(self, at: Path) -> bool:
        """False where a folder that it was in is away already."""
        if not at.is_symlink() and not at.is_file():
            return False
        self._undo.append((at, str(at.readlink()) if at.is_symlink() else at.read_bytes()))
        at.unlink()
        return True

    def replace(self, at: Path, content: bytes) -> None:
        if not at.is_symlink() and self.remove(at):
            at.write_bytes(content)

    def mend(self) -> None:
        for at, was in reversed(self._undo):
            at.unlink(missing_ok=True)
            if isinstance(was, str):
                at.symlink_to(was)
            else:
                at.write_bytes(was)
        self._undo.clear()


@pytest.fixture(scope="module", params=["6.12-2hb4 region", "6.12-sw4 split", "6.12-2hb2 kmem"])
def damaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    dump, look = request.param.split()
    return Tree(tmp_path_factory.mktemp("tree"), dump, look)


def same(found: Memdev, before: Memdev) -> bool:
    """What plans are made over is what it was."""
    return planned(found) == planned(before)


def planned(memdev: Memdev) -> list[object]:
    decoders = [(d.name, d.mode, d.dpa_bytes, d.region, d.locked) for d in memdev.decoders]
    return [memdev.serial, memdev.ram_bytes, decoders]


def check(tree_: Tree) -> None:
    found = everything(tree_.sysfs)
    before = {memdev.name: memdev for memdev in tree_.found.memdevs}
    told = {one.name for one in found.skipped}
    for memdev in found.memdevs:
        was = before[memdev.name]
        # Never another number than the kernel's: a device without an endpoint has no
        # decoders, and says so.
        assert same(memdev, was) or memdev.problem, memdev
    for name, was in before.items():
        there = {memdev.name for memdev in found.memdevs}
        link = tree_.sysfs.at(f"/sys/bus/cxl/devices/{name}")
        assert name in there | told or not link.is_symlink(), was


@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 40))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_files_missing_or_garbled(damaged: Tree, seed: int, count: int) -> None:
    choice = random.Random(seed)
    try:
        for at in choice.sample(attributes(damaged), count):
            if choice.random() < 0.5:
                damaged.remove(at)
            else:
                damaged.replace(at, choice.choice(garbage(at)))
        check(damaged)
    finally:
        damaged.mend()


def attributes(damaged: Tree) -> list[Path]:
    """Every file that says something of CXL or DAX."""
    return [p for p in damaged.files if "/ACPI0017:00/" in str(p) or "/mem" in str(p)]


def test_each_file_missing_or_garbled(tmp_path: Path) -> None:
    damaged = Tree(tmp_path, "6.12-2hb2", "kmem")
    for number, at in enumerate(attributes(damaged)):
        choices = garbage(at)
        content = choices[number // 2 % len(choices)] if number % 2 else None
        try:
            if content is None:
                damaged.remove(at)
            else:
                damaged.replace(at, content)
            check(damaged)
        finally:
            damaged.mend()
    assert read(damaged.sysfs) == damaged.found


class Failing(Sysfs):
    """Reads below a folder fail from the n-th on, with an errno; also links of a device."""

    def __init__(self, at: Sysfs, folder: str, after: int, code: int) -> None:
        super().__init__(at.root)
        self.folder, self.left, self.code = folder, after, code

    def _gone(self, path: str) -> bool:
        if self.folder not in super().real(path.rsplit("/", 1)[0]) + "/" + path:
            return False
        self.left -= 1
        return self.left < 0

    def read(self, path: str) -> str:
        if self._gone(path):
            raise OSError(self.code, os.strerror(self.code), path)
        return super().read(path)

    def real(self, path: str) -> str:
        return "" if self.code == errno.ENODEV and self._gone(path) else super().real(path)

    def names(self, path: str) -> list[str]:
        if self.left < 0 and self.code == errno.EACCES and self.folder in path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().names(path)


@pytest.mark.parametrize("code", [errno.ENODEV, errno.ENXIO])
@pytest.mark.parametrize("what", ["mem0", "endpoint3", "region2", "root0"])
def test_something_leaves_between_two_reads(damaged: Tree, what: str, code: int) -> None:
    before = {memdev.name: memdev for memdev in damaged.found.memdevs}
    for after in range(0, 160, 2 if code == errno.ENODEV else 11):
        sysfs = Failing(damaged.sysfs, f"/{what}/", after, code)
        found = everything(sysfs)
        for memdev in found.memdevs:
            assert same(memdev, before[memdev.name]) or memdev.problem
        told = {one.name for one in found.skipped} | {m.name for m in found.memdevs}
        assert set(before) <= told
        if sysfs.left >= 0:
            break  # it was read without a failure


def test_files_that_an_ordinary_user_may_not_read(damaged: Tree) -> None:
    """0400 in the kernel: addresses. The devices are described all the same."""

    class Hiding(Sysfs):
        def read(self, path: str) -> str:
            if path.rsplit("/", 1)[-1] in ("start", "resource", "align", "end"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return super().read(path)

    found = everything(Hiding(damaged.sysfs.root))
    assert [same(a, b) for a, b in zip(found.memdevs, damaged.found.memdevs, strict=True)]
    assert not found.skipped
    assert {root.start for root in found.roots} == {None}
    assert [r.free_bytes for r in found.roots] == [r.free_bytes for r in damaged.found.roots]


def test_nothing_may_be_read(damaged: Tree) -> None:
    for code in (errno.EACCES, errno.EPERM):
        sysfs = Failing(damaged.sysfs, "/", 0, code)
        found = everything(sysfs)
        assert found.memdevs == ()
        if code == errno.EPERM:  # the folders can be listed
            assert len(found.skipped) >= len(damaged.found.memdevs)
            assert all("user" in one.why for one in found.skipped if "mem" in one.name)


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        ("interleave_ways", "1000000000"),
        ("interleave_ways", "17"),
        ("size", "0xffffffffffffffff"),
        ("commit", "7"),
        ("target0", "decoder999.0"),
        ("target0", "/etc/passwd"),
        ("mode", "dead"),
    ],
)
def test_a_region_of_nonsense(damaged: Tree, attribute: str, text: str) -> None:
    region = damaged.found.regions[0]
    at = damaged.sysfs.at(f"/sys/bus/cxl/devices/{region.name}").resolve() / attribute
    try:
        damaged.replace(at, text.encode() + b"\n")
        found = everything(damaged.sysfs)
    finally:
        damaged.mend()
    for window in found.roots:
        if region.name in window.regions:
            assert 0 <= window.free_bytes <= window.bytes
    if found.region(region.name) is None:
        assert region.name in [one.name for one in found.skipped]
        window = next(root for root in found.roots if region.name in root.regions)
        assert window.free_bytes == 0  # who knows what it takes


def test_links_in_a_circle_and_pipes(tmp_path: Path) -> None:
    sysfs = tree("6.12-1hb2", "before", tmp_path)
    mem0 = sysfs.at("/sys/bus/cxl/devices/mem0")
    mem0.unlink()
    mem0.symlink_to("mem0")
    folder = sysfs.at("/sys/bus/cxl/devices/mem1").resolve()
    (folder / "serial").unlink()
    (folder / "serial").mkdir()
    found = everything(sysfs)
    assert found.memdevs == ()
    assert {"mem0", "mem1"} <= {one.name for one in found.skipped}


@pytest.mark.parametrize("where", ["sys", "sys/bus", "sys/bus/cxl/devices", "sys/devices"])
def test_files_where_folders_should_be(tmp_path: Path, where: str) -> None:
    tree("6.12-1hb2", "before", tmp_path)
    shutil.rmtree(tmp_path / where)
    (tmp_path / where).write_text("no folder")
    everything(Sysfs(tmp_path))


def test_the_command_line_over_a_damaged_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAC_CONFIG", str(tmp_path / "none.toml"))
    (tmp_path / "none.toml").write_text(f"pools.dir = '{tmp_path}/pools.d'\n")
    folder = tmp_path / "tree"
    folder.mkdir()
    sysfs = tree("6.12-2hb4", "region", folder)
    serial = sysfs.at("/sys/bus/cxl/devices/mem1/serial").resolve()
    serial.write_text("\x1b]0;owned\x07\n")
    for words in (["list"], ["topology"], ["show", "mem0"], ["-h"]):
        result = CliRunner().invoke(root, ["--sysroot", str(folder), "device", *words])
        assert result.exit_code == (2 if words == ["-h"] else 0), result.output
        assert "\x1b" not in result.output
    result = CliRunner().invoke(root, ["--sysroot", str(folder), "device", "show", "mem1"])
    assert result.exit_code == 3
    assert "its attribute serial is" in result.stderr
