# SPDX-License-Identifier: Apache-2.0
"""What people have reported of CXL memory on Linux, and what the command line says there.

All through ``sacctl --sysroot`` on a simulated machine.

| report | where it is tested |
|---|---|
| "no active memdevs found: decoder: decoder0.0 filter: mem1,mem3" | here |
| "failed to set target0 to mem1" | here |
| "For and x2 root, only root decoder granularity (8192) permitted" | here |
| "Failed to synchronize CPU cache state" | here: cpuinfo says hypervisor |
| always system-ram; "Failed to offline: Device or resource busy" | here |
| "kernel policy will auto-online memory, aborting" | here |
| daxctl empty, max_available_extent negative | here: System RAM from boot |
| listed, and neither RAM nor dax | here |
| kmem "Invalid argument" at 256M | here: a memory block larger than the device |
| "reconfigured 0 devices" though it worked | here |
| scans for ever, finds nothing on an hmem path | here |
| wrong physical device on the other host | here: a reboot gives the devices new names |
| "CUDA error: out of memory" in an unrelated kernel | not here: only a GPU can show it |
| errno 6 on open | here |
"""

from __future__ import annotations

import errno
import itertools
import re
from pathlib import Path

import pytest
from unit.told_kit import BOOT_FIX, Situation, situations

from sacctl.cxl.read import read


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Situation:
    return situations(tmp_path, monkeypatch)


def targets(steps: list[str]) -> list[str]:
    """The decoders in the order of their positions."""
    found = [re.fullmatch(r"echo (\S+) > \S+/target(\d+)", step) for step in steps]
    written = [(int(m[2]), m[1]) for m in found if m]
    assert [position for position, _ in written] == list(range(len(written)))
    return [decoder for _, decoder in written]


def test_devices_below_the_other_bridge(machine: Situation) -> None:
    """ "no active memdevs found: decoder: decoder0.0 filter: mem1,mem3": which decoder
    reaches them is found, and said."""
    with machine("2hb4") as told:
        for bridge, window in ((0, "decoder0.0"), (1, "decoder0.1")):
            devices = ",".join(told.below(bridge))
            plan = told.json("pool", "create", "--devices", devices, "--dry-run")
            made = [s for s in plan["steps"] if s.endswith("/create_ram_region")]
            assert [f"/{window}/" in step for step in made] == [True]
            assert any(f"create-region -t ram -d {window} " in e for e in plan["equivalent"])
            assert any(why.startswith(f"window {window}: it leads to") for why in plan["why"])
        # One device of each: another window again.
        both = f"{told.below(0)[0]},{told.below(1)[0]}"
        plan = told.json("pool", "create", "--devices", both, "--dry-run")
        assert "window decoder0.2: it leads to 2 host bridges" in " ".join(plan["why"])


def test_devices_that_no_window_joins(machine: Situation) -> None:
    """Two of four bridges: the windows are over one and over all four. What reaches each
    device is said, and the pool is of two regions."""
    with machine("4hb4") as told:
        devices = f"{told.below(1)[0]},{told.below(2)[0]}"
        plan = told.json("pool", "plan", "--devices", devices)
        assert len(plan["regions"]) == 2
        why = " ".join(plan["why"])
        for region in plan["regions"]:
            assert f"window {region['root']}: it leads to host bridge" in why
        said = told.refused(
            "pool", "create", "--devices", devices, "--granularity", "300", code=2
        )
        assert "granularity 300 is not allowed" in said


def test_positions_whatever_order_is_given(machine: Situation) -> None:
    """ "failed to set target0 to mem1": a window over two bridges wants them in turn."""
    with machine("2hb4") as told:
        names = [*told.below(0), *told.below(1)]
        owner = {
            decoder.name: memdev
            for memdev in read(told.house.machine.sysfs).memdevs
            for decoder in memdev.decoders
        }
        for order in itertools.permutations(names):
            steps = told.json("pool", "create", "--devices", ",".join(order), "--dry-run")
            written = targets(steps["steps"])
            bridges = [owner[decoder].host_bridge for decoder in written]
            assert bridges[0] == bridges[2] != bridges[1] == bridges[3]
            assert {owner[decoder].name for decoder in written} == set(names)
        assert "order " in " ".join(steps["why"])


def test_both_devices_on_one_bridge_of_a_window_over_two(machine: Situation) -> None:
    """The same report, of who had both devices on one bridge: they get a window of that
    bridge, and three devices, which no window takes at once, two regions, with the rule."""
    with machine("2hb4") as told:
        left, right = told.below(0), told.below(1)
        plan = told.json("pool", "plan", "--devices", ",".join(left))
        assert [region["root"] for region in plan["regions"]] == ["decoder0.0"]
        three = ",".join([*left, right[0]])
        plan = told.json("pool", "plan", "--devices", three)
        assert [region["ways"] for region in plan["regions"]] in ([2, 1], [1, 2])
        # Why not one region: the rule that forbids it.
        assert "3 devices" in " ".join(plan["why"])


@pytest.mark.parametrize(("topology", "its"), [("2hb2", 256), ("2hb2g4k", 4096)])
def test_granularity_of_an_interleaved_window(
    machine: Situation, topology: str, its: int
) -> None:
    """ "For and x2 root, only root decoder granularity (8192) permitted": use it or omit it."""
    with machine(topology) as told:
        devices = f"{told.below(0)[0]},{told.below(1)[0]}"
        words = ("pool", "create", "--devices", devices, "--dry-run", "--granularity")
        said = told.refused(*words, "8192", code=2)
        assert "granularity 8192 is not allowed" in said
        assert f"decoder0.2 interleaves over 2 host bridges at {its}" in said
        assert f"next: --granularity {its}, or leave it out" in said
        for right in ([*words, str(its)], list(words[:-1])):
            steps = told.json(*right)["steps"]
            assert any(s == f"echo {its} > {s.split()[-1]}" for s in steps if "granul" in s)


def test_a_kernel_that_cannot_invalidate_caches(machine: Situation) -> None:
    """ "Failed to synchronize CPU cache state": what the kernel lacks; and nothing is left."""
    with machine("2hb2", invalidates=False) as told:
        # As in a guest.
        cpus = told.house.machine.root / "proc" / "cpuinfo"
        cpus.write_text("processor\t: 0\nflags\t\t: fpu vme sse2 hypervisor lahf_lm\n")
        said = told.refused("pool", "create", "--devices", "cxl0,cxl1", code=1)
        assert "cannot invalidate the CPU's caches" in said
        assert "Failed to synchronize CPU cache state" in said
        assert "CONFIG_CXL_REGION_INVALIDATION_TEST" in said
        assert all(m.used_bytes == 0 for m in read(told.house.machine.sysfs).memdevs)


def test_always_system_ram(machine: Situation) -> None:
    """How many blocks of how many are online in which zone, and the boot that helps."""
    with machine("2hb2", firmware="kmem-online-normal") as told:
        said = told.refused("pool", "adopt", "kv", "region2", code=4)
        assert "dax2.0 is system RAM until the next reboot" in said
        assert "4 of 4 blocks online in zone Normal" in said
        assert said.endswith(f"next: {BOOT_FIX}")


def test_a_block_that_stays_online(machine: Situation) -> None:
    """ "Failed to offline .../state: Device or resource busy": which block, and all others
    are online again."""
    with machine("2hb2", firmware="kmem-online-movable") as told:
        blocks = told.house.machine.kernel.memory.blocks
        stuck = max(blocks)
        told.house.machine.stick(stuck)
        said = told.refused("pool", "adopt", "kv", "region2", "--force-offline", code=4)
        assert f"memory{stuck}" in said
        assert BOOT_FIX.split()[-1] in said


@pytest.mark.parametrize(("policy", "rule"), [("online", ""), ("offline", "40-hotplug.rules")])
def test_who_puts_memory_online(machine: Situation, policy: str, rule: str) -> None:
    """ "kernel policy will auto-online memory, aborting": which rule, and that it is memory
    of firmware's tables."""
    with machine("2hb2", firmware="hmem", auto_online="online") as told:
        house = told.house
        if rule:
            at = house.machine.root / "etc" / "udev" / "rules.d"
            at.mkdir(parents=True)
            (at / rule).write_text(
                'SUBSYSTEM=="memory", ACTION=="add", ATTR{state}=="offline", '
                'ATTR{state}="online"\n'
            )
            policy_at = "/sys/devices/system/memory/auto_online_blocks"
            assert house.machine.write(policy_at, "offline") == 0
        (dax,) = read(house.machine.sysfs).dax
        said = told.refused("pool", "adopt", "kv", dax.name, code=4)
        assert "blocks online in zone Normal" in said
        if rule:
            assert f"the udev rule /etc/udev/rules.d/{rule}" in said
            assert "auto_online_blocks" not in said
        else:
            assert f"auto_online_blocks is {policy}" in said
        assert "memory from firmware's tables (hmem) without a CXL region" in said
        assert BOOT_FIX in said


def test_memory_that_firmware_gave_away(machine: Situation) -> None:
    """daxctl is empty, max_available_extent negative: System RAM from boot."""
    with machine("2hb2", firmware="system-ram") as told:
        for verdict, why, hint in told.verdicts():
            assert verdict == "in use"
            assert "region2 has no dax device: its range is System RAM from boot" in why
            assert "EFI_MEMORY_SP" in hint
        said = told.refused("pool", "adopt", "kv", "region2", code=4)
        assert "region2 has no dax device: its range is System RAM from boot" in said
        assert "next: enable Specific Purpose memory (EFI_MEMORY_SP) in firmware" in said
        assert "efi=nosoftreserve" in said


def test_neither_ram_nor_dax(machine: Situation) -> None:
    """Nobody has made a region: say so, and how; and that is a line which works."""
    with machine("2hb2") as told:
        for verdict, why, hint in told.verdicts():
            assert (verdict, why) == ("usable", "capacity unassigned")
            words = hint.replace("NAME", "kv").split()
            assert words[:3] == ["sacctl", "pool", "create"]
            told.run(*words[1:], "--dry-run")


def test_smaller_than_a_memory_block(machine: Situation) -> None:
    """kmem says "Invalid argument" at 256M: how large a block is."""
    with machine("1hb1", block_bytes=1 << 30) as told:
        said = told.refused(
            "pool", "create", "--devices", "cxl0", "--mode", "system-ram", code=2
        )
        assert "dax0.0 (256 MiB) cannot be system RAM" in said
        assert "it needs at least one whole memory block of 1 GiB" in said
        assert "next: --mode devdax, or a larger --size" in said


def test_states_and_no_counts(machine: Situation) -> None:
    """ "reconfigured 0 devices" though it worked, and an exit code of 0 though it did not:
    what is said was read back."""
    with machine("2hb2", firmware="kmem-offline") as told:
        made = told.json("pool", "adopt", "kv", "region2")
        assert made["created"]
        (region,) = made["pool"]["cxl"]["regions"]
        topology = read(told.house.machine.sysfs)
        assert region["dax"] == [d.name for d in topology.dax]
        assert {d.driver for d in topology.dax} == {"device_dax"}
        shown = told.run("device", "list").stdout
        assert "dax2.0 on device_dax, dax2.1 on device_dax" in shown
        # Once more: nothing to be done, and the state is told all the same.
        again = told.json("pool", "adopt", "kv", "region2")
        assert not again["created"]
        assert again["pool"]["cxl"]["regions"] == [region]


def test_a_kernel_that_says_yes_and_does_nothing(
    machine: Situation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine("2hb2", firmware="kmem-offline") as told:
        kernel = told.house.machine.kernel
        really = kernel.write

        def write(path: str, value: str) -> int:
            return 0 if "/drivers/device_dax/" in path else int(really(path, value))

        monkeypatch.setattr(kernel, "write", write)
        said = told.run("pool", "adopt", "kv", "region2", code=1).stderr
        assert "dax2.0 is bound to no driver, not device_dax" in said
        assert told.house.records.names() == []
        assert told.drivers() == {"kmem"}  # as it was


def test_a_foreign_path_is_listed_with_its_reason(machine: Situation) -> None:
    """Scans for ever, and finds nothing: what is skipped is listed, with why and what next."""
    with machine("2hb2", firmware="hmem-offline") as told:
        found = told.json("device", "list")
        assert found["devices"] == []
        (dax,) = read(told.house.machine.sysfs).dax
        (skipped,) = found["skipped"]
        assert skipped["name"] == dax.name
        assert "memory from firmware's tables (hmem) without a CXL region" in skipped["why"]
        assert skipped["hint"] == f"sacctl pool adopt NAME {dax.name}"
        for one in found["looked"]:
            assert one["where"]
            assert one["found"]
        said = told.refused("pool", "create", "--devices", "cxl0", code=3)
        assert dax.name in said


def test_names_that_changed(machine: Situation) -> None:
    """The wrong device on the other host: names differ, serials and UUIDs do not."""
    with machine("2hb2", kmem=False) as told:
        house = told.house
        made = told.json("pool", "create", "kv", "--devices", "cxl0,cxl1")["pool"]
        before = {m.identity: m.name for m in read(house.machine.sysfs).memdevs}
        house.reboot()
        now = {m.identity: m.name for m in read(house.machine.sysfs).memdevs}
        assert before.keys() == now.keys()
        assert before != now  # or this test says nothing
        told.run("pool", "assemble", "kv")
        (region,) = told.json("pool", "show", "kv")["pool"]["cxl"]["regions"]
        assert region["devices"] == made["cxl"]["regions"][0]["devices"]
        names = {m.identity: m.name for m in read(house.machine.sysfs).memdevs}
        order = [names[identity] for identity in region["devices"]]
        shown = told.json("device", "topology")["regions"][0]["devices"]
        assert shown == order
        # Memory of another pool, at the very same names.
        record = house.records.folder / "kv.toml"
        record.write_text(record.read_text().replace(made["uuid"], "ab" * 16))
        house.reboot()
        said = told.refused("pool", "assemble", "kv", code=4)
        assert f"holds pool {made['uuid']}" in said
        assert f"pool 'kv' is {'ab' * 16}" in said


def test_a_pool_whose_memory_kmem_took(machine: Situation) -> None:
    """The same, of a pool that was there: another program has bound its device to kmem."""
    with machine("2hb2", auto_online="offline") as told:
        told.run("pool", "create", "kv", "--devices", "cxl0,cxl1")
        (data,) = (d.name for d in read(told.house.machine.sysfs).dax if d.name.endswith(".0"))
        drivers = "/sys/bus/dax/drivers"
        for path, value in (
            (f"{drivers}/device_dax/unbind", data),
            (f"{drivers}/device_dax/remove_id", data),
            (f"{drivers}/kmem/new_id", data),
        ):
            assert told.house.machine.write(path, value) == 0
        for _, why, hint in told.verdicts():
            assert f"{data} is system RAM: 0 of " in why
            assert hint == "sacctl health"
        told.run("pool", "assemble", "kv")
        assert told.drivers() == {"device_dax"}
        assert {hint for *_, hint in told.verdicts()} == {""}


def test_errno_6_on_open(machine: Situation) -> None:
    """open() says ENXIO: it is bound to kmem, not to device_dax."""
    with machine("2hb2", firmware="kmem-offline") as told:
        assert told.drivers() == {"kmem"}
        with pytest.raises(OSError, match="No such device") as error:
            (told.house.machine.root / "dev" / "dax2.0").open("rb")
        assert error.value.errno == errno.ENXIO
        for _, why, hint in told.verdicts():
            assert "dax2.0 is bound to kmem, not device_dax" in why
            assert hint == "sacctl pool adopt NAME region2"
