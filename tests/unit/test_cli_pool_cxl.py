# SPDX-License-Identifier: Apache-2.0
"""``sacctl pool`` and ``namespace`` on simulated machines with CXL devices."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cxlsim
import pytest
from click.testing import CliRunner, Result
from unit.cxl_house import Core
from unit.pool_kit import picture

from sacctl.cli import root
from sacctl.pool import native

Run = Callable[..., Result]
Boot = Callable[..., cxlsim.Machine]


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Boot]:
    """Gives a machine, which all commands work on from then."""
    core = Core()
    for name in ("format_pool", "inspect_pool"):
        monkeypatch.setattr(native, name, getattr(core, name))
    (tmp_path / "sac.toml").write_text(f'[pools]\ndir = "{tmp_path}/pools.d"\n')
    monkeypatch.setenv("SAC_CONFIG", str(tmp_path / "sac.toml"))
    monkeypatch.setenv("SAC_SOCKET", str(tmp_path / "s"))
    machines: list[cxlsim.Machine] = []

    def made(topology: str = "2hb2", **options: Any) -> cxlsim.Machine:
        machines.append(cxlsim.Machine(tmp_path / "m", topology, seed=1, **options))
        monkeypatch.setenv("SAC_SYSROOT", str(machines[-1].root))
        return machines[-1]

    yield made
    for machine in machines:
        machine.close()


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(root, list(words))
    assert result.exit_code == code, (words, result.stdout, result.stderr, result.exception)
    return result


def test_a_pool_from_plan_to_destroy(boot: Boot, tmp_path: Path) -> None:
    machine = boot("2hb4")
    before = machine.snapshot()
    plan = json.loads(run("-o", "json", "pool", "plan").stdout)
    assert plan["schema"] == "sac.pool.plan/1"
    assert [region["ways"] for region in plan["regions"]] == [4]
    assert plan["bytes"] == 1 << 30
    assert plan["data_bytes"] + plan["metadata_bytes"] + (2 << 20) == 1 << 30
    assert plan["bandwidth_bytes_per_second"] > 0
    words = ("pool", "create", "kv", "--devices", "mem0,cxl1,0x102,mem3")
    names = {m.name for m in machine.kernel.memdevs}
    words = (
        "pool",
        "create",
        "kv",
        "--devices",
        ",".join(sorted(names)).replace("mem1", "cxl1"),
    )
    dry = run(*words, "--dry-run")
    assert "cxl1 means mem1" in dry.stderr
    steps = dry.stdout.splitlines()
    writes = [step for step in steps if step.startswith("echo ")]
    assert writes[0] == "echo 0 > /sys/bus/dax/drivers_autoprobe"
    assert writes[1].endswith("/decoder0.2/create_ram_region")
    assert any(
        step.startswith("#   cxl create-region -t ram -d decoder0.2 -w 4") for step in steps
    )
    assert any("daxctl create-device -r 2" in step for step in steps)
    said = json.loads(run("-o", "json", *words, "--dry-run").stdout)
    assert said["steps"] == [step for step in steps if not step.startswith("#")]
    assert said["equivalent"] == [step[4:] for step in steps if step.startswith("#   ")]
    assert machine.snapshot() == before
    assert not (tmp_path / "pools.d").exists()
    made = json.loads(run("-o", "json", *words).stdout)
    assert made["created"] is True
    pool = made["pool"]
    assert (pool["kind"], pool["state"]) == ("cxl", "offline")
    assert pool["cxl"]["mode"] == "devdax"
    region = pool["cxl"]["regions"][0]
    assert (region["region"], region["ways"], region["made"]) == ("region2", 4, True)
    again = run(*words)
    assert "was there already, the same" in again.stderr
    shown = run("pool", "show", "kv").stdout
    assert "region2" in shown
    assert "serial:0x100" in shown
    assert "cxl" in run("pool", "list").stdout.splitlines()[1]
    assert "differs: size" in run(*words, "--size", "2G", code=1).stderr
    asked = run("pool", "destroy", "kv", code=4)
    assert "Destroy pool kv of" in asked.stderr
    run("pool", "destroy", "kv", "--yes")
    assert len(machine.snapshot()) == len(before)
    assert "no pools" in run("pool", "list").stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("create --devices mem0 --emulate 1G", 2, "give one"),
        ("create --emulate 1G --granularity 256", 2, "--granularity goes with --devices"),
        ("create --devices mem0 --huge 2M", 2, "--huge goes with --emulate"),
        ("create --devices mem0,,mem1", 2, "commas"),
        ("create --devices mem0,mem7", 3, "there is no CXL memory device 'mem7'"),
        ("create --devices mem0,mem1 --granularity 3", 2, "powers of two"),
        ("create --devices mem0,mem1 --size 300M", 2, "multiple of 256 MiB x 2"),
        ("create --devices mem0,mem1 --isolated-room 8G", 1, "leave nothing for data"),
        (
            "create --devices mem0 --mode system-ram --isolated-room 1M",
            2,
            "needs --mode devdax",
        ),
        ("adopt kv region9", 3, "there is no region or dax device 'region9'"),
        ("adopt a b c", 2, "too many names"),
        ("assemble", 2, "--all"),
        ("assemble kv", 3, "no pool 'kv'"),
        ("destroy kv", 3, "no pool 'kv'"),
    ],
)
def test_refused(boot: Boot, tmp_path: Path, words: str, code: int, says: str) -> None:
    machine = boot()
    result = run("pool", *words.split(), code=code)
    assert says in result.stderr
    assert result.stdout == ""
    assert machine.writes == []
    assert picture(tmp_path / "pools.d") == {}


def test_a_device_in_use_is_left_out_of_a_plan(boot: Boot) -> None:
    boot("2hb4")
    run("pool", "create", "kv", "--devices", "0x100,0x101")
    plan = json.loads(run("-o", "json", "pool", "plan").stdout)
    assert len(plan["left_out"]) == 2
    assert all("has the rest)" in one["why"] for one in plan["left_out"])
    assert "left out" in run("pool", "plan").stdout
    run("pool", "create", "two", "--devices", "0x102,0x103")
    assert "no device has memory to give" in run("pool", "plan", code=2).stderr


def test_stranded_bytes_are_shown(boot: Boot) -> None:
    boot("2hb2", size=[256 << 20, 512 << 20])
    plan = json.loads(run("-o", "json", "pool", "plan").stdout)
    assert list(plan["stranded"].values()) == [256 << 20]
    assert "256 MiB of mem" in run("pool", "plan").stdout


def test_adopt(boot: Boot) -> None:
    boot(firmware="kmem-online-movable")
    refused = run("pool", "adopt", "kv", "region2", code=4)
    assert "blocks online in zone Movable" in refused.stderr
    assert "--force-offline" in refused.stderr
    made = json.loads(
        run("-o", "json", "pool", "adopt", "kv", "region2", "--force-offline").stdout
    )
    assert made["schema"] == "sac.pool.adopt/1"
    assert made["pool"]["cxl"]["adopted"] is True
    run("pool", "destroy", "kv", "--yes")
    run("pool", "adopt", "dax2.0")
    assert "default" in run("pool", "list").stdout


@pytest.mark.parametrize("situation", ["hmem-devdax", "hmem-offline"])
def test_adopt_hmem(boot: Boot, situation: str) -> None:
    machine = boot("1hb1", firmware=situation)
    names = [d.name for d in machine.kernel.dax.devices]
    made = json.loads(run("-o", "json", "pool", "adopt", "kv", names[0]).stdout)
    region = made["pool"]["cxl"]["regions"][0]
    assert region["devices"][0].startswith("hmem:0x")
    assert region["region"] == ""
    run("pool", "assemble", "kv")
    run("pool", "destroy", "kv", "--yes")
    assert [d.driver for d in machine.kernel.dax.devices] == ["device_dax"]


def test_assemble(boot: Boot) -> None:
    machine = boot("2hb4")
    run("pool", "create", "a", "--devices", "0x100,0x101")
    run("pool", "create", "b", "--devices", "0x102,0x103")
    machine.kernel.media.keep()
    machine.close()
    machine = boot("2hb4")
    listed = run("pool", "show", "a").stdout
    assert "not assembled since the machine started" in listed
    assert "sudo sacctl pool assemble a" in listed
    planned = run("pool", "assemble", "a", "--dry-run").stdout.splitlines()
    assert any(line.endswith("/create_ram_region") for line in planned)
    machine.unplug(0x103)
    partly = run("-o", "json", "pool", "assemble", "--all", code=7)
    assert "1 of 2 pools are not assembled: b" in partly.stderr
    assert "serial:0x103" in partly.stderr
    done = json.loads(partly.stdout)["pools"]
    assert [one["pool"] for one in done] == ["a", "b"]
    assert (done[0]["changed"], done[0]["formatted"]) == (True, False)
    assert done[1]["error"]["kind"] == "not_found"
    run("pool", "assemble", "b", code=3)
    machine.plug(0x103)
    assert "made again" in run("pool", "assemble", "b").stdout
    assert "were there" in run("pool", "assemble", "--all").stdout


def test_memory_that_was_away_is_checked(boot: Boot) -> None:
    machine = boot("2hb2")
    run("pool", "create", "kv", "--devices", "0x100,0x101")
    assert "kept" in run("pool", "assemble", "kv").stdout
    machine.unplug(0x101)
    machine.plug(0x101)
    done = run("pool", "assemble", "kv")
    assert "only pages with a checksum that holds were kept" in done.stderr
    assert "checked" in done.stdout
    assert "kept" not in done.stdout
    machine.unplug(0x101)
    machine.plug(0x101)
    one = json.loads(run("-o", "json", "pool", "assemble", "kv").stdout)["pools"][0]
    assert (one["checked"], one["pages"], one["formatted"]) == (True, None, False)


def test_devices_without_serial_numbers(boot: Boot) -> None:
    machine = boot("2hb2", serials=[0, 0])
    addresses = sorted(m.pci for m in machine.kernel.memdevs)
    refused = run("pool", "create", "kv", "--devices", "0,0", code=2)
    assert "serial number of 2 devices" in refused.stderr
    made = json.loads(
        run("-o", "json", "pool", "create", "kv", "--devices", ",".join(addresses)).stdout
    )
    devices = made["pool"]["cxl"]["regions"][0]["devices"]
    assert sorted(devices) == [f"pci:{address}" for address in addresses]
    run("pool", "destroy", "kv", "--yes")


def test_isolated_needs_a_quota_and_room(boot: Boot) -> None:
    boot()
    words = ("namespace", "create", "b", "--layout", "deepseek-v3.2-fp8", "--isolated")
    assert "--isolated needs --quota" in run(*words, code=2).stderr
    assert "no pool leaves room" in run(*words, "--quota", "1G", code=3).stderr
    assert "no such user" in run(*words, "--owner", "nobody-at-all", code=2).stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_signals_take_everything_back(
    boot: Boot, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    machine = boot()
    before, old = machine.snapshot(), signal.getsignal(number)
    # To this thread: in the kernel's, which is in this process, it would come too early.
    this = threading.get_ident()
    machine.before(9, lambda path, value: signal.pthread_kill(this, number))
    words = ["pool", "create", "kv", "--devices", "mem0,mem1"]
    with pytest.raises(SystemExit) as ended:
        root.main(words, standalone_mode=False)
    assert ended.value.code == code
    assert machine.snapshot() == before
    assert picture(tmp_path / "pools.d") == {}
    assert signal.getsignal(number) == old
    run(*words)


def test_a_refused_write_says_that_all_was_taken_back(boot: Boot) -> None:
    machine = boot()
    machine.fail_at(9)
    failed = run("pool", "create", "kv", "--devices", "mem0,mem1", code=1)
    assert "everything was taken back" in failed.stderr
    assert "the kernel refused 'echo " in failed.stderr
