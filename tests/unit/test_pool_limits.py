# SPDX-License-Identifier: Apache-2.0
"""sacctl.pool.limits and .mounts: what a machine has left, on machines made of text files."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from sacctl.errors import CtlError, DeniedError
from sacctl.pool import limits, mounts
from sacctl.pool.limits import Need, check

M, G = 1 << 20, 1 << 30


class Machine:
    """Kernel files under a folder, which is itself "/dev/shm" of a tmpfs."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, monkeypatch
        self.shm = root / "dev shm"
        self.huge = root / "huge"
        self.disk = root / "disk"
        for folder in (self.shm, self.huge, self.disk, root / "cgroup" / "a" / "b"):
            folder.mkdir(parents=True)
        monkeypatch.setattr(mounts, "MOUNTS", root / "mounts")
        monkeypatch.setattr(mounts, "HUGEPAGES", root / "hugepages")
        monkeypatch.setattr(limits, "MEMINFO", root / "meminfo")
        monkeypatch.setattr(limits, "CGROUP", root / "self-cgroup")
        monkeypatch.setattr(limits, "CGROUP_ROOT", root / "cgroup")
        self.free = {self.shm: 64 * G, self.disk: 64 * G, self.huge: 64 * G}
        monkeypatch.setattr("os.statvfs", self.statvfs)
        shm = str(self.shm).replace(" ", r"\040")
        self.write("mounts", f"/dev/vda / ext4 rw 0 0\ntmpfs {shm} tmpfs rw 0 0\nodd\n")
        self.memory(available=64 * G)
        self.write("self-cgroup", "0::/a/b\n")
        self.huge_pages("2048kB", 0, 0)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def memory(self, available: int, swap: int = 0) -> None:
        self.write(
            "meminfo", f"MemAvailable: {available >> 10} kB\nSwapFree: {swap >> 10} kB\n"
        )

    def huge_pages(self, size: str, free: int, promised: int) -> None:
        self.write(f"hugepages/hugepages-{size}/free_hugepages", f"{free}\n")
        self.write(f"hugepages/hugepages-{size}/nr_hugepages", f"{free}\n")
        self.write(f"hugepages/hugepages-{size}/resv_hugepages", f"{promised}\n")

    def mount_huge(self, page: str) -> None:
        with (self.root / "mounts").open("a") as file:
            file.write(f"none {self.huge} hugetlbfs rw,relatime,pagesize={page} 0 0\n")

    def statvfs(self, path: str) -> os.statvfs_result:
        free = next(f for root, f in self.free.items() if Path(path).is_relative_to(root))
        values = (4096, 4096, 64 * G // 4096, free // 4096, free // 4096, 0, 0, 0, 0, 255)
        return os.statvfs_result(values)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def need(folder: Path, size: int, huge: str = "") -> list[Need]:
    return [Need(str(folder / "sac-0" / "kv"), (size,), size, huge)]


def test_enough_of_everything(machine: Machine) -> None:
    check("kv", need(machine.shm, 2 * G))
    check("kv", need(machine.disk, 2 * G))


def test_file_system(machine: Machine) -> None:
    machine.free[machine.shm] = G
    with pytest.raises(CtlError, match=r"needs 2048 MiB, the file system .*dev shm") as caught:
        check("kv", need(machine.shm, 2 * G))
    assert "1024 MiB left" in str(caught.value)
    assert "remount,size=66561M" in caught.value.hint
    assert caught.value.errno == errno.ENOSPC
    machine.free[machine.disk] = G
    with pytest.raises(CtlError) as caught:
        check("kv", need(machine.disk, 2 * G))
    assert "--path" in caught.value.hint


def test_memory_counts_for_tmpfs_only(machine: Machine) -> None:
    machine.memory(available=G, swap=G // 2)
    check("kv", need(machine.shm, G))
    check("kv", need(machine.disk, 2 * G))
    with pytest.raises(CtlError, match=r"MemAvailable\) has 1536 MiB"):
        check("kv", need(machine.shm, 2 * G))


def test_control_group(machine: Machine) -> None:
    machine.write("cgroup/a/b/memory.max", "max\n")
    machine.write("cgroup/a/memory.max", f"{2 * G}\n")
    machine.write("cgroup/a/memory.current", f"{G}\n")
    machine.write("cgroup/a/memory.stat", f"anon 5\ninactive_file {G // 4}\n")
    check("kv", need(machine.shm, G))
    with pytest.raises(CtlError, match=r"group .*/cgroup/a has 1280 MiB"):
        check("kv", need(machine.shm, 2 * G))
    machine.write("self-cgroup", "4:cpu,memory:/a\n0::/\n")
    machine.write("cgroup/memory/a/memory.limit_in_bytes", f"{G}\n")
    machine.write("cgroup/memory/a/memory.usage_in_bytes", "0\n")
    machine.write("cgroup/memory/a/memory.stat", "")
    with pytest.raises(CtlError, match=r"/cgroup/memory/a has 1024 MiB"):
        check("kv", need(machine.shm, 2 * G))


def test_file_size_limit(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (M, resource.RLIM_INFINITY))
    with pytest.raises(CtlError, match=r"RLIMIT_FSIZE\) is 1 MiB") as caught:
        check("kv", need(machine.shm, G))
    assert caught.value.errno == errno.EFBIG


def test_huge_pages(machine: Machine) -> None:
    with pytest.raises(CtlError, match=r"no hugetlbfs with pages of 2M .*0 are free") as caught:
        mounts.huge_mount("2M")
    assert "mount -t hugetlbfs -o pagesize=2M" in caught.value.hint
    assert "nr_hugepages" in caught.value.hint
    with pytest.raises(CtlError, match="this kernel has none of that size"):
        mounts.huge_mount("1G")
    machine.mount_huge("2M")
    assert mounts.huge_mount("2M") == str(machine.huge)
    machine.huge_pages("2048kB", 600, 100)
    assert mounts.free_huge_pages("2M") == 500
    check("kv", need(machine.huge, 500 * 2 * M, "2M"))
    with pytest.raises(CtlError, match="needs 501 pages of 2M, 500 are free") as caught:
        check("kv", need(machine.huge, 500 * 2 * M + 1, "2M"))
    assert "echo 601 >" in caught.value.hint


def test_huge_mount_that_may_not_be_written_to(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.mount_huge("1024M")
    machine.huge_pages("1048576kB", 4, 0)
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(DeniedError, match="may not be written"):
        mounts.huge_mount("1G")


def test_mounts(machine: Machine) -> None:
    found = mounts.mount_of(machine.shm / "x")
    assert found == mounts.Mount(str(machine.shm), "tmpfs", 0)
    assert found is not None
    assert found.in_memory
    other = mounts.mount_of(machine.root / "dev shm2")
    assert other is not None
    assert other.point == "/"
    machine.patch.setattr(mounts, "MOUNTS", machine.root / "none")
    assert mounts.mounts() == []
