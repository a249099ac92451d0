# SPDX-License-Identifier: Apache-2.0
"""``sacctl device list`` and ``show`` over real looks at sysfs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unit.device_kit import Run, listed, look, record, runner

MIB = 1 << 20


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(tmp_path, monkeypatch)


# ------------------------------------------------------------------------------- list


def test_free_devices(run: Run, tmp_path: Path) -> None:
    at = look(tmp_path, "6.12-2hb4", "before")
    lines = run("--sysroot", at, "device", "list").stdout.splitlines()
    assert len(lines) == 5
    assert lines[1].split()[:3] == ["mem0", "0x102", "0000:35:00.0"]
    for line in lines[1:]:
        assert "usable: capacity unassigned" in line
        assert "32 GT/s x16" in line
    assert "sacctl pool create NAME --devices mem0" in lines[1]
    found = listed(run, at)
    assert found["schema"] == "sac.device.list/1"
    assert [d["free_bytes"] for d in found["devices"]] == [256 * MIB] * 4
    assert found["looked"] == found["skipped"] == []


def test_sysroot_from_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAC_SYSROOT", look(tmp_path, "6.12-1hb2", "before"))
    assert "mem1" in run("device", "list").stdout
    # The option wins.
    other = look(tmp_path, "6.12-2hb2", "unloaded")
    assert "mem1" not in run("device", "list", "--sysroot", other).stdout
    monkeypatch.setenv("SAC_SYSROOT", str(tmp_path / "nothing"))
    assert "there is no folder" in run("device", "list", code=3).stderr


def test_a_region_that_no_pool_has(run: Run, tmp_path: Path) -> None:
    for dump, name, word, hint in (
        ("6.12-sw4", "split", "device_dax has it", "sacctl pool adopt NAME region0"),
        ("6.12-2hb2", "kmem", "4 of 4 blocks online in zone Normal", "memhp_default_state"),
        ("6.12-2hb2", "offline", "0 of 4 blocks online", "sacctl pool adopt NAME region2"),
        ("6.12-2hb2", "nodriver", "has no driver", "sacctl pool adopt NAME region2"),
    ):
        for one in listed(run, look(tmp_path, dump, name))["devices"]:
            assert one["verdict"] == "in use"
            assert word in one["why"]
            assert hint in one["hint"]
            assert one["regions"]


def test_what_is_not_a_device_is_listed_with_its_reason(run: Run, tmp_path: Path) -> None:
    out = run("--sysroot", look(tmp_path, "6.12-2hb2", "gone"), "device", "list").stdout
    assert "not in the list:\nNAME          WHY NOT" in out
    assert "0000:0d:00.0  it is CXL memory, and cxl_pci has not taken it" in out
    assert "1 of its 2 devices has gone" in out


def test_nothing_found_says_where_was_looked(run: Run, tmp_path: Path) -> None:
    at = look(tmp_path, "6.12-2hb2", "unloaded")
    result = run("--sysroot", at, "device", "list")
    assert "no CXL memory device was found:" in result.stderr
    assert "the driver cxl_acpi does not have it. next: modprobe cxl_acpi" in result.stderr
    assert "2 CXL memory devices without their driver" in result.stderr
    looked = listed(run, at)["looked"]
    assert {one["hint"] for one in looked} >= {"modprobe cxl_acpi", "modprobe cxl_pci"}


def test_a_machine_without_cxl(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    result = run("--sysroot", str(empty), "device", "list")
    assert result.stdout == ""
    assert "no ACPI0017" in result.stderr
    assert "pool create NAME --emulate" in result.stderr
    assert "modprobe -a cxl_acpi cxl_pci cxl_mem cxl_port" in result.stderr


def put(root_: Path, path: str, text: str) -> None:
    at = root_ / path
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(text)


def test_firmware_that_gave_the_memory_to_the_system(run: Run, tmp_path: Path) -> None:
    at = tmp_path / "srat"
    nodes = "sys/devices/system/node"
    put(at, f"{nodes}/node0/cpulist", "0-7\n")
    put(at, f"{nodes}/node0/meminfo", "Node 0 MemTotal:  1048576 kB\n")
    put(at, f"{nodes}/node2/cpulist", "\n")
    put(at, f"{nodes}/node2/meminfo", "Node 2 MemTotal:  2097152 kB\n")
    put(at, f"{nodes}/node3/cpulist", "\n")
    put(at, f"{nodes}/node3/meminfo", "Node 3 MemTotal:  0 kB\n")
    put(at, "proc/iomem", "100000000-1ffffffff : Soft Reserved\n")
    said = run("--sysroot", str(at), "device", "list").stderr
    assert "node2: 2048 MiB of memory and no CPU" in said
    assert "EFI_MEMORY_SP" in said
    assert "node0" not in said
    assert "node3" not in said
    assert "Soft Reserved" in said
    assert "modprobe dax_hmem" in said


# ------------------------------------------------------------------------------ pools


def test_devices_of_a_pool(run: Run, tmp_path: Path) -> None:
    record(tmp_path, "kv", ("serial:0x100", "serial:0x101"))
    found = listed(run, look(tmp_path, "6.12-2hb2", "nodriver"))["devices"]
    assert [d["pools"] for d in found] == [["kv"], ["kv"]]
    assert found[0]["verdict"] == "in use"
    assert found[0]["why"] == "by pool kv: region2 (x2; dax2.0 unbound)"
    assert found[0]["hint"] == "sacctl health"  # the pool cannot use it so
    # One of them has left: what to do when it is back.
    (left,) = listed(run, look(tmp_path, "6.12-2hb2", "gone"))["devices"]
    assert left["why"] == "by pool kv: region2 (x2, not committed, position 0 has no device)"
    assert left["hint"].startswith("sacctl pool assemble kv")
    # Not assembled at all, as after a boot.
    found = listed(run, look(tmp_path, "6.12-1hb2", "before"))["devices"]
    assert found[0]["why"] == "by pool kv, which has no region on it now"
    assert found[0]["hint"] == "sacctl pool assemble kv"


def test_a_pool_that_a_kill_left_half_made(run: Run, tmp_path: Path) -> None:
    record(tmp_path, "half", ("serial:0x100",), state="creating")
    found = listed(run, look(tmp_path, "6.12-1hb2", "before"))["devices"]
    one = next(d for d in found if d["pools"])
    assert "was being created when that was cut off" in one["why"]
    assert one["hint"] == "sacctl pool destroy half"


def test_a_record_that_cannot_be_read(run: Run, tmp_path: Path) -> None:
    record(tmp_path, "kv", ("serial:0x100", "serial:0x101"))
    (tmp_path / "pools.d" / "bad.toml").write_text("no = [toml")
    result = run("--sysroot", look(tmp_path, "6.12-1hb2", "before"), "device", "list")
    assert "bad.toml is no TOML file" in result.stderr
    assert result.stdout.count("in use by pool kv") == 2


# ------------------------------------------------------------------------------- show


@pytest.mark.parametrize("name", ["cxl1", "mem1", "0x101", "257", "0000:35:00.0", "35:00.0"])
def test_show(run: Run, tmp_path: Path, name: str) -> None:
    at = look(tmp_path, "6.12-2hb2", "kmem")
    result = run("--sysroot", at, "device", "show", name)
    for text in (
        "name:         mem1", "serial:       0x101", "decoder4.0  ram", "0x4d0000000",
        "4 of 4 online in zone Normal", "security:     disabled", "target node:  3",
    ):  # fmt: skip
        assert text in result.stdout
    expected = "cxl1 means mem1 (serial:0x101)\n" if name == "cxl1" else ""
    assert result.stderr == expected


def test_show_json(run: Run, tmp_path: Path) -> None:
    at = look(tmp_path, "6.12-sw4", "split")
    found = json.loads(run("--sysroot", at, "-o", "json", "device", "show", "0x100").stdout)
    one = found["device"]
    assert one["switches"] == ["0000:0d:00.0"]
    assert one["dports"] == ["0000:0c:00.0", "0000:0e:00.0"]
    assert one["decoders"][0]["dpa_bytes"] == 256 * MIB
    assert one["aer"] == {"correctable": 0, "nonfatal": 0, "fatal": 0}
    # Nobody told: absent, not zero.
    assert not {"temperature", "life_used_percent", "poison"} & set(one)
    assert [d["name"] for d in found["dax"]] == ["dax0.0", "dax0.1"]
    (region,) = found["regions"]
    assert region["devices"].index(one["name"]) == 0


def test_show_what_is_not_there(run: Run, tmp_path: Path) -> None:
    at = look(tmp_path, "6.12-2hb2", "gone")
    said = run("--sysroot", at, "device", "show", "cxl7", code=3).stderr
    assert "there is mem1 (serial:0x101)" in said
    said = run("--sysroot", at, "device", "show", "0000:0d:00.0", code=3).stderr
    assert "cxl_pci has not taken it" in said
