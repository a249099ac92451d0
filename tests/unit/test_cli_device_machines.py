# SPDX-License-Identifier: Apache-2.0
"""``sacctl device topology``, and verdicts on machines of all kinds."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cxlsim
import pytest
from unit.device_kit import Run, listed, look, record, runner

from sacctl.cxl.sysfs import Sysfs

MIB = 1 << 20


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(tmp_path, monkeypatch)


# --------------------------------------------------------------------------- topology


def test_topology_as_text(run: Run, tmp_path: Path) -> None:
    out = run("--sysroot", look(tmp_path, "6.12-sw4", "region"), "device", "topology").stdout
    assert out.splitlines()[0] == "CXL: 1 window, 1 host bridge, 4 devices"
    order = [line.split(":")[0].strip() for line in out.splitlines()[1:8]]
    assert order == [
        "window decoder0.0", "region0", "position 0", "position 1", "position 2", "position 3",
        "dax0.0",
    ]  # fmt: skip
    assert "    switch 0000:0d:00.0 at 0000:0c:00.0: port2, 1 of 4 decoders used\n" in out
    assert "      mem2 (0x100, 0000:0f:00.0) at 0000:0e:00.0: 256 MiB" in out
    assert out.isascii()


def test_topology_as_json_has_every_reference(run: Run, tmp_path: Path) -> None:
    at = look(tmp_path, "6.12-2hb4", "region")
    found = json.loads(run("--sysroot", at, "-o", "json", "device", "topology").stdout)
    assert found["schema"] == "sac.device.topology/1"
    names = {d["name"] for d in found["devices"]}
    ports = {p["name"]: p for p in found["ports"]}
    windows = {w["name"] for w in found["windows"]}
    for region in found["regions"]:
        assert set(region["devices"]) == names
        assert region["window"] in windows
    for device in found["devices"]:
        assert ports[device["ports"][-1]]["at"] == device["host_bridge"]
        assert device["host_bridge"] in found["bridges"]
    assert found["policy"]["block_bytes"] == 128 * MIB


def test_devices_without_an_endpoint_are_in_the_tree(run: Run, tmp_path: Path) -> None:
    for name, text in (
        ("unbound", "mem1 (0x101, 0000:35:00.0): 256 MiB"),
        ("noacpi", "elsewhere"),
    ):
        at = look(tmp_path, "6.12-2hb2", name)
        assert text in run("--sysroot", at, "device", "topology").stdout
    at = look(tmp_path, "6.12-2hb2", "unloaded")
    result = run("--sysroot", at, "device", "topology")
    assert "not used\n    0000:0d:00.0" in result.stdout
    assert "sacctl device list says why" in result.stderr


def test_a_terminal_gets_a_drawn_tree(run: Run, tmp_path: Path) -> None:
    at = look(tmp_path, "6.12-sw4", "region")
    above, below = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "sacctl", "--sysroot", at, "device", "topology"],
        stdout=below,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "200", "LANG": "C.UTF-8"},
    ) as process:
        os.close(below)
        out = b""
        while True:
            try:
                got = os.read(above, 4096)
            except OSError:
                break
            if not got:
                break
            out += got
        assert process.wait(60) == 0
    os.close(above)
    assert "├── " in out.decode()
    assert "└── " in out.decode()


# ------------------------------------------------------------------------ simulated


@pytest.mark.parametrize(
    ("situation", "verdict", "why", "hint"),
    [
        ("kmem-offline", "in use", "0 of 4 blocks online", "sacctl pool adopt NAME region2"),
        ("kmem-online-movable", "in use", "zone Movable", "--force-offline"),
        ("kmem-online-normal", "in use", "zone Normal", "memhp_default_state=offline"),
        ("system-ram", "in use", "System RAM from boot", "EFI_MEMORY_SP"),
        ("no-endpoint", "unusable", "cxl_mem", "dmesg"),
        ("committed-no-region", "unusable", "there is no region", "kexec"),
        ("devdax", "in use", "device_dax has it", "sacctl pool adopt NAME region2"),
    ],
)
def test_what_firmware_made(
    run: Run, tmp_path: Path, situation: str, verdict: str, why: str, hint: str
) -> None:
    with cxlsim.Machine(tmp_path / "m", "2hb2", firmware=situation) as machine:
        found = listed(run, str(machine.root))["devices"]
        one = next(d for d in found if d["serial"] == "0x100")
        assert one["verdict"] == verdict
        assert why in one["why"]
        assert hint in one["hint"]
        run("--sysroot", str(machine.root), "device", "topology")
        run("--sysroot", str(machine.root), "device", "show", "0x100")


@pytest.mark.parametrize(
    ("situation", "why", "hint"),
    [
        ("hmem", "zone Normal", "memhp_default_state=offline"),
        ("hmem-offline", "0 of 4 blocks online", "sacctl pool adopt NAME dax"),
        ("hmem-devdax", "device_dax has it", "sacctl pool adopt NAME dax"),
    ],
)
def test_memory_of_firmware_tables(
    run: Run, tmp_path: Path, situation: str, why: str, hint: str
) -> None:
    """No device, no region: listed with what can be done, and who put it online."""
    with cxlsim.Machine(tmp_path / "m", "2hb2", firmware=situation) as machine:
        found = listed(run, str(machine.root))
        assert found["devices"] == []
        (dax,) = found["dax"]
        assert dax["kind"] == "hmem"
        (one,) = found["skipped"]
        assert one["name"] == dax["name"]
        assert why in one["why"]
        assert "hmem" in one["why"]
        assert hint in one["hint"]
        out = run("--sysroot", str(machine.root), "device", "topology").stdout
        assert "dax devices without a region" in out
        record(tmp_path, "kv", (f"hmem:{dax['start']:#x}",))
        (one,) = listed(run, str(machine.root))["skipped"]
        assert one["why"].startswith("in use by pool kv")
        assert one["hint"] == ""


@pytest.mark.parametrize("topology", ["1hb1", "1hb4", "2hb4", "4hb4", "sw2", "sw4"])
def test_every_topology_of_the_simulator(run: Run, tmp_path: Path, topology: str) -> None:
    with cxlsim.Machine(tmp_path / "m", topology) as machine:
        found = listed(run, str(machine.root))
        assert len(found["devices"]) == int(topology[-1])
        for one in found["devices"]:
            assert (one["verdict"], one["why"]) == ("usable", "capacity unassigned")
            assert one["health"] == "ok"
            assert bool(one["switches"]) == topology.startswith("sw")


def test_an_unplugged_device(run: Run, tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path / "m", "1hb2") as machine:
        machine.unplug(0x101)
        assert [d["serial"] for d in listed(run, str(machine.root))["devices"]] == ["0x100"]
        machine.plug(0x101)
        assert len(listed(run, str(machine.root))["devices"]) == 2


# -------------------------------------------------------------------------- verdicts


def one_of(run: Run, at: str, serial: str = "0x100") -> dict[str, Any]:
    found: dict[str, Any] = next(d for d in listed(run, at)["devices"] if d["serial"] == serial)
    return found


def change(at: str, path: str, text: str) -> None:
    """Changes an attribute behind a bus link or a folder in the tree."""
    Path(Sysfs(at).at(path)).resolve(strict=True).write_text(text)


def test_why_not(run: Run, tmp_path: Path) -> None:
    """Each case on a machine of its own: what is changed, and what must be said."""
    bus = "/sys/bus/cxl/devices"
    cases: list[tuple[dict[str, str], str, str]] = [
        ({f"{bus}/mem1/ram/size": "0x0", f"{bus}/mem1/pmem/size": "0x10000000"},
         "persistent memory", "cxl set-partition mem1"),
        ({f"{bus}/mem1/ram/size": "0x0"}, "no capacity", "dmesg"),
        ({f"{bus}/mem1/security/state": "locked"}, "security state is locked", "unlock"),
        ({f"{bus}/mem1/security/state": "sanitize"}, "being erased", "wait"),
        ({f"{bus}/decoder0.0/cap_ram": "0"}, "not for volatile memory", "firmware"),
        ({f"{bus}/decoder0.0/size": "0x0"}, "has no room left", "device topology"),
        ({f"{bus}/decoder2.{n}/locked": "1" for n in range(4)}, "locked by firmware", "setup"),
        ({f"{bus}/decoder2.0/dpa_size": "0x10000000", f"{bus}/decoder2.0/mode": "ram"},
         "hold 256 MiB without a region", "cxl free-dpa mem1"),
    ]  # fmt: skip
    for number, (changes, why, hint) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        at = look(folder, "6.12-1hb2", "before")
        for path, text in changes.items():
            change(at, path, text + "\n")
        found = one_of(run, at)
        assert found["verdict"] == "unusable", (changes, found["why"])
        assert why in found["why"]
        assert hint in found["hint"]


def test_a_device_that_no_window_reaches(run: Run, tmp_path: Path) -> None:
    at = look(tmp_path, "6.12-2hb4", "before")
    for name in ("decoder0.0", "decoder0.2"):
        change(
            at,
            f"/sys/bus/cxl/devices/{name}/target_list",
            "52\n" if name[-1] == "0" else "52,52\n",
        )
    found = one_of(run, at)
    assert "no window leads to its host bridge pci0000:0c" in found["why"]
    assert "decoder0.1 to pci0000:34" in found["why"]
    assert one_of(run, at, "0x102")["verdict"] == "usable"


def test_health_in_a_word(run: Run, tmp_path: Path) -> None:
    at = look(tmp_path, "6.12-1hb2", "before")
    function = str(Path(Sysfs(at).at("/sys/bus/cxl/devices/mem1")).resolve().parent)
    function = function.removeprefix(at)
    for path, text, word in (
        ("current_link_width", "4\n", "link degraded"),
        ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 2\n", "errors"),
        ("aer_dev_fatal", "TOTAL_ERR_FATAL 1\n", "fatal errors"),
    ):
        change(at, f"{function}/{path}", text)
        assert one_of(run, at)["health"] == word
    out = run("--sysroot", at, "device", "list").stdout
    assert "32 GT/s x4 of 32 GT/s x16" in out


def test_a_device_with_room_left(run: Run, tmp_path: Path) -> None:
    at = look(tmp_path, "6.12-1hb2", "region")
    change(at, "/sys/bus/cxl/devices/mem1/ram/size", hex(1024 * MIB) + "\n")
    assert one_of(run, at)["why"].endswith("; 768 MiB of it are unassigned")


# ------------------------------------------------------------------- the program cxl


def fake_cxl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    program = bin_ / "cxl"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")


def test_the_program_is_not_asked_about_a_simulated_tree(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would tell of the devices of this machine."""
    fake_cxl(tmp_path, monkeypatch, f"touch {tmp_path}/asked\n")
    at = look(tmp_path, "6.12-1hb2", "before")
    result = run("--sysroot", at, "device", "show", "mem0", "-v")
    assert "a simulated tree" in result.stderr
    assert not (tmp_path / "asked").exists()


def test_the_machine_itself_is_read_at_once(run: Run) -> None:
    """Whatever machine this is: an answer, and soon."""
    began = time.monotonic()
    run("device", "list")
    run("device", "topology")
    assert time.monotonic() - began < 30
