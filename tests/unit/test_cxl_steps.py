# SPDX-License-Identifier: Apache-2.0
"""Regions and dax devices made, read back, and taken apart."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from unit.region_kit import DAX, META, UNIT, House, differences, quiet

from sacctl.cxl import daxsteps, regionsteps
from sacctl.cxl.made import Made
from sacctl.errors import (
    BusyError,
    CtlError,
    DeniedError,
    NotFoundError,
    UsageError,
)
from sacctl.pool.steps import carry_out


def interleave(house: House, made: Made) -> None:
    """Bytes written through the dax devices lie on the device and at the place that the
    region's positions say."""
    topology = house.topology()
    region = topology.region(made.region)
    assert region is not None
    at = 0
    for name in made.dax:
        size = house.sysfs.number(f"{DAX}/devices/{name}/size")
        for offset in (0, 300, 5 * region.granularity + 7, size // 2 + 4096, size - 8):
            with house.sysfs.at(f"/dev/{name}").open("r+b") as file:
                file.seek(offset)
                file.write(f"{at + offset:08x}".encode())
            granule, rest = divmod(at + offset, region.granularity)
            owner = topology.owner_of(region.targets[granule % region.ways])
            assert owner is not None
            dpa = granule // region.ways * region.granularity + rest
            least = min(8, region.granularity - rest)
            found = house.machine.peek(owner.serial, dpa, least)
            assert found == f"{at + offset:08x}".encode()[:least]
        at += size


@pytest.mark.parametrize("topology", ["1hb1", "1hb4", "2hb4", "2hb2g4k", "4hb4", "sw4"])
def test_created_and_destroyed(tmp_path: Path, topology: str) -> None:
    house = House(tmp_path, topology)
    clean = house.machine.snapshot()
    planned = house.plan()
    made = house.create()
    region = house.topology().region(made.region)
    assert region is not None
    assert (region.committed, region.driver) == (True, "cxl_region")
    assert region.targets == planned.decoders
    assert (region.ways, region.bytes) == (planned.ways, planned.bytes)
    sizes = {d.name: d.bytes for d in house.topology().dax}
    assert sizes == {made.dax[0]: planned.bytes - META, made.dax[1]: META}
    assert [house.driver(name) for name in made.dax] == ["device_dax"] * 2
    interleave(house, made)
    assert house.topology().policy.autoprobe is True
    house.destroy(made.region)
    assert not differences(clean, house.machine.snapshot())
    house.close()


def test_the_writes_are_the_kernels_sequence(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2")
    planned = house.plan()
    first, second = planned.decoders
    made = house.create()
    assert house.written() == [
        ("dax/drivers_autoprobe", "0"),
        ("decoder0.2/create_ram_region", "region2"),
        ("region2/interleave_granularity", "256"),
        ("region2/interleave_ways", "2"),
        (f"{first}/mode", "ram"),
        (f"{first}/dpa_size", "0x10000000"),
        (f"{second}/mode", "ram"),
        (f"{second}/dpa_size", "0x10000000"),
        ("region2/size", "0x20000000"),
        ("region2/target0", first),
        ("region2/target1", second),
        ("region2/commit", "1"),
        ("cxl_region/bind", "region2"),
        ("dax2.0/size", str(2 * UNIT - META)),
        ("dax_region/create", "1"),
        ("dax2.1/size", str(META)),
        ("device_dax/new_id", "dax2.0"),
        ("device_dax/new_id", "dax2.1"),
        ("dax/drivers_autoprobe", "1"),
    ]
    since = len(house.machine.writes)
    house.destroy(made.region)
    assert house.written(since) == [
        ("dax/drivers_autoprobe", "0"),
        ("device_dax/unbind", "dax2.1"),
        ("device_dax/remove_id", "dax2.1"),
        ("device_dax/unbind", "dax2.0"),
        ("device_dax/remove_id", "dax2.0"),
        ("dax2.1/size", "0"),
        ("dax_region/delete", "dax2.1"),
        ("dax2.0/size", str(2 * UNIT)),
        ("cxl_region/unbind", "region2"),
        ("region2/commit", "0"),
        ("region2/target1", ""),
        ("region2/target0", ""),
        (f"{second}/dpa_size", "0"),
        (f"{first}/dpa_size", "0"),
        ("dax/drivers_autoprobe", "1"),
        ("decoder0.2/delete_region", "region2"),
    ]
    house.close()


def test_what_is_said_before_is_what_is_written(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb4")
    made = Made()
    steps = house.steps(made, house.plan())
    before = [step.what for step in steps]
    assert not house.machine.writes
    said: list[str] = []
    carry_out(steps, said.append)
    assert said == before
    lines = [line.split("  #")[0] for line in said if line.startswith("echo ")]
    written = [
        f"echo {value} > {path}" for path, value, code in house.machine.writes if not code
    ]
    extra = [line for line in lines if line.endswith("device_dax/bind")]
    real = f"{DAX}/devices/dax2.0/../dax_region/create"
    assert [line for line in lines if line not in extra and real not in line] == [
        line for line in written if "dax_region/create" not in line
    ]
    house.close()


def test_other_kernel(tmp_path: Path) -> None:
    """7.3: the dax device comes a moment after the region was bound."""
    house = House(tmp_path, "2hb2", version="7.3")
    made = house.create()
    assert [house.driver(name) for name in made.dax] == ["device_dax"] * 2
    house.destroy(made.region)
    assert not house.topology().regions
    house.close()


def test_no_dax_device_is_an_error_and_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reported as: creating "succeeds", and the range is already System RAM."""
    monkeypatch.setattr("sacctl.cxl.regionsteps.DAX_WAIT", 0.2)
    house = House(tmp_path, "1hb1")
    clean = house.machine.snapshot()
    root = house.topology().root("decoder0.0")
    assert root is not None
    assert root.start is not None
    house.machine.kernel.memory.firmware.append((root.start, UNIT))
    with pytest.raises(CtlError, match=r"region0"):
        house.create()
    house.machine.kernel.memory.firmware.clear()
    house.machine.write(f"{DAX}/drivers_autoprobe", "1")
    assert not differences(clean, house.machine.snapshot())
    house.close()


def test_a_guest_without_cache_invalidation_says_what_the_kernel_lacks(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2", invalidates=False)
    house.sysfs.at("/proc/cpuinfo").write_text("flags\t\t: fpu hypervisor sse2\n")
    clean = house.machine.snapshot()
    with pytest.raises(CtlError, match="Failed to synchronize CPU cache state") as error:
        house.create()
    assert error.value.errno == errno.ENXIO
    assert "CONFIG_CXL_REGION_INVALIDATION_TEST" in error.value.hint
    assert not differences(clean, house.machine.snapshot())
    house.close()


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (5, errno.ENOSPC, "the device has less memory free"),
        (8, errno.ERANGE, "the window has no hole of this size"),
        (9, errno.ENXIO, "not below the bridge or port of this position"),
        (9, errno.EBUSY, "HPA order"),
        (10, errno.EOPNOTSUPP, "does not support these ways or this granularity"),
        (11, errno.ENXIO, "a target is missing"),
    ],
)
def test_an_errno_is_explained(tmp_path: Path, number: int, code: int, said: str) -> None:
    house = House(tmp_path, "2hb2")
    house.machine.fail_at(number, code)
    with pytest.raises(CtlError, match=said) as error:
        house.create()
    assert error.value.errno == code
    assert isinstance(error.value, BusyError) == (code == errno.EBUSY)
    house.close()


def test_who_is_not_root_is_told(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2")
    house.machine.fail_at(0, errno.EACCES)
    with pytest.raises(DeniedError) as error:
        house.create()
    assert error.value.hint == "run it as root"
    house.close()


def test_a_kernel_that_cannot_make_regions_of_ram(tmp_path: Path) -> None:
    house = House(tmp_path, "2hb2")
    for name in ("decoder0.0", "decoder0.1", "decoder0.2"):
        house.sysfs.at(f"/sys/bus/cxl/devices/{name}/create_ram_region").unlink()
    with pytest.raises(UsageError, match=r"Linux 6\.3 and later have it"):
        house.create()
    assert not house.machine.writes
    house.close()


# ------------------------------------------------------------------------- dax devices


def test_sizes_of_a_split_are_checked(tmp_path: Path) -> None:
    house = House(tmp_path, "1hb1")
    for sizes in ((), (0,), (UNIT - 4096, 4096), (-UNIT,)):
        with pytest.raises(UsageError, match="multiples of 2 MiB"):
            daxsteps.split(house.sysfs, Made(), sizes)
    house.close()


def test_three_dax_devices(tmp_path: Path) -> None:
    house = House(tmp_path, "1hb1", kmem=False)
    made = Made()
    sizes = (UNIT - 2 * META, META, META)
    carry_out(regionsteps.create(house.sysfs, house.plan(), made), quiet)
    carry_out(daxsteps.split(house.sysfs, made, sizes), quiet)
    assert made.dax == ["dax0.0", "dax0.1", "dax0.2"]
    carry_out(daxsteps.bind(house.sysfs, made, "device_dax", (2,)), quiet)
    assert [house.driver(name) for name in made.dax] == ["", "", "device_dax"]
    house.destroy(made.region)
    assert not house.topology().dax
    house.close()


def test_more_than_the_region_has_is_refused_and_undone(tmp_path: Path) -> None:
    house = House(tmp_path, "1hb1", kmem=False)
    made = Made()
    carry_out(regionsteps.create(house.sysfs, house.plan(), made), quiet)
    before = house.machine.snapshot()
    with pytest.raises(CtlError, match="the region has less memory free"):
        carry_out(daxsteps.split(house.sysfs, made, (UNIT - META, 2 * META)), quiet)
    assert not differences(before, house.machine.snapshot())
    assert made.dax == ["dax0.0"]
    house.close()


def test_a_driver_that_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacctl.cxl.driver._WAIT", 0.05)
    house = House(tmp_path, "1hb1", kmem=False)
    with pytest.raises(NotFoundError, match="kmem is not loaded") as error:
        carry_out(house.steps(Made(), house.plan(), "kmem", split=False), quiet)
    assert error.value.hint == "modprobe kmem"
    with pytest.raises(UsageError, match="no driver 'dax_pmem'"):
        carry_out(house.steps(Made(), house.plan(), "dax_pmem", split=False), quiet)
    assert not house.topology().regions
    house.close()


def test_system_ram_needs_a_whole_memory_block(tmp_path: Path) -> None:
    """Reported as kmem's "Invalid argument" for 256 MiB."""
    house = House(tmp_path, "1hb1", block_bytes=2 << 30)
    with pytest.raises(UsageError, match="at least one whole memory block of 2 GiB"):
        carry_out(house.steps(Made(), house.plan(), "kmem", split=False), quiet)
    assert not house.topology().regions
    house.close()


def test_modules_need_nothing_that_a_guest_lacks() -> None:
    code = (
        "import sys; import sacctl.cxl.regionsteps, sacctl.cxl.daxsteps, sacctl.cxl.adopt, "
        "sacctl.cxl.plan, sacctl.cxl.equivalents, sacctl.cxl.guard; "
        "print({m.split('.')[0] for m in sys.modules} & {'click', 'rich', 'numpy', 'libsac'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_the_driver_that_is_read_back_counts(tmp_path: Path) -> None:
    """Reported as "reconfigured 0 devices" though it had worked, and as the opposite."""
    house = House(tmp_path, "1hb1")
    made = Made()
    carry_out(regionsteps.create(house.sysfs, house.plan(), made), quiet)
    assert house.driver(made.dax[0]) == "kmem"  # nothing was guarded
    with pytest.raises(CtlError, match=r"dax0\.0 is bound to kmem, not device_dax"):
        carry_out(daxsteps.bind(house.sysfs, made, "device_dax"), quiet)
    assert house.driver(made.dax[0]) == "kmem"
    house.close()
    house = House(tmp_path / "other", "1hb1", kmem=False)
    made = Made()
    carry_out(regionsteps.create(house.sysfs, house.plan(), made), quiet)
    for _ in range(2):  # what is done already is done
        carry_out(daxsteps.bind(house.sysfs, made, "device_dax"), quiet)
        assert house.driver(made.dax[0]) == "device_dax"
    house.close()
