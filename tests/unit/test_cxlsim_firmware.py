# SPDX-License-Identifier: Apache-2.0
"""What a simulated machine can have at boot, and what people reported of real ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import cxlsim
import pytest
from unit.cxl_region import make, take, writes

CXL = "/sys/bus/cxl/devices"
DAX = "/sys/bus/dax"
MEMORY = "/sys/devices/system/memory"


def seen(m: cxlsim.Machine) -> dict[str, object]:
    """Regions, dax devices with their drivers, and states and zones of added memory."""
    blocks = [n for n, b in sorted(m.kernel.memory.blocks.items()) if b.added]
    return {
        "regions": [n for n in m.sysfs.names(CXL) if n.startswith("region")],
        "committed": [
            m.sysfs.read(f"{CXL}/{n}/commit")
            for n in m.sysfs.names(CXL)
            if n.startswith("region")
        ],
        "dax": {
            n: m.sysfs.target(f"{DAX}/devices/{n}/driver")
            for n in m.sysfs.names(f"{DAX}/devices")
        },
        "blocks": {
            (
                m.sysfs.read(f"{MEMORY}/memory{n}/state"),
                m.sysfs.read(f"{MEMORY}/memory{n}/valid_zones"),
            )
            for n in blocks
        },
    }


KMEM = {"regions": ["region2"], "committed": ["1"], "dax": {"dax2.0": "kmem"}}
NONE: dict[str, object] = {"regions": [], "committed": [], "dax": {}, "blocks": set()}
AT_BOOT: dict[str, dict[str, object]] = {
    "devdax": {**KMEM, "dax": {"dax2.0": "device_dax"}, "blocks": set()},
    "kmem-offline": {**KMEM, "blocks": {("offline", "Normal Movable")}},
    "kmem-online-movable": {**KMEM, "blocks": {("online", "Movable")}},
    "kmem-online-normal": {**KMEM, "blocks": {("online", "Normal")}},
    "system-ram": {**KMEM, "dax": {}, "blocks": set()},
    "hmem": {**NONE, "dax": {"dax3.0": "kmem"}, "blocks": {("online", "Normal")}},
    "hmem-offline": {
        **NONE,
        "dax": {"dax3.0": "kmem"},
        "blocks": {("offline", "Normal Movable")},
    },
    "hmem-devdax": {**NONE, "dax": {"dax3.0": "device_dax"}},
    "no-endpoint": NONE,
    "no-driver": NONE,
    "committed-no-region": NONE,
}


@pytest.mark.parametrize("version", ["6.12", "7.3"])
@pytest.mark.parametrize("situation", cxlsim.SITUATIONS)
def test_situations_at_boot(situation: str, version: str, tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", firmware=situation, version=version) as m:
        assert seen(m) == AT_BOOT[situation]
        memdevs = [n for n in m.sysfs.names(CXL) if n.startswith("mem")]
        endpoints = [n for n in m.sysfs.names(CXL) if n.startswith("endpoint")]
        hmem, lame = situation.startswith("hmem"), situation in ("no-endpoint", "no-driver")
        assert len(memdevs) == (0 if hmem else 2 - (situation == "no-driver"))
        assert len(endpoints) == (0 if hmem else 2 - lame)
        assert m.sysfs.number(f"{CXL}/root0/decoders_committed") == 0
        assert m.log == []
        if situation == "system-ram":
            assert "    4d0000000-4efffffff : System RAM" in m.sysfs.read("/proc/iomem")
        if hmem:
            assert m.sysfs.real(f"{DAX}/devices/dax3.0") == (
                "/sys/devices/platform/hmem.3/dax3.0"
            )
        if situation == "committed-no-region":
            counts = {m.sysfs.read(f"{CXL}/{n}/decoders_committed") for n in endpoints}
            assert counts == {"1"}


def test_an_unknown_situation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kmem-offline"):
        cxlsim.Machine(tmp_path, "2hb2", firmware="nonsense")


def test_situations_fit_every_topology(tmp_path: Path) -> None:
    for topology in cxlsim.SHAPES:
        with cxlsim.Machine(tmp_path / topology, topology, firmware="devdax") as m:
            size = m.sysfs.number(f"{DAX}/devices/{m.sysfs.names(f'{DAX}/devices')[0]}/size")
            assert size == len(m.kernel.memdevs) * (256 << 20)


# ------------------------------------------------------------------ what people reported


def codes(m: cxlsim.Machine, todo: list[tuple[str, str]]) -> dict[str, int]:
    """The errno of each write that fails, by the file's name."""
    done = [(path.rpartition("/")[2], m.write(path, value)) for path, value in todo]
    return {name: code for name, code in done if code}


def test_devices_below_the_other_bridge(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb4") as m:
        todo = [
            (path.replace("decoder0.2", "decoder0.0"), value.replace("region2", "region0"))
            for path, value in writes(m, [2, 3])
        ]
        todo = [(path.replace("region2", "region0"), value) for path, value in todo]
        assert codes(m, todo) == {
            "target0": errno.ENXIO,
            "target1": errno.ENXIO,
            "commit": errno.ENXIO,
            "bind": errno.ENXIO,
        }


def test_both_devices_of_a_region_below_one_bridge(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb4") as m:
        assert codes(m, writes(m, [0, 1])) == {
            "target1": errno.ENXIO,
            "commit": errno.ENXIO,
            "bind": errno.ENXIO,
        }


def test_a_granularity_other_than_the_windows(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2g4k") as m:
        found = codes(m, writes(m, [0, 1], granularity=8192))
        assert found["interleave_granularity"] == errno.EINVAL
        assert found["size"] == errno.ENXIO


def test_always_system_ram_and_it_does_not_go_offline(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", firmware="kmem-online-normal") as m:
        blocks = [n for n, b in m.kernel.memory.blocks.items() if b.added]
        assert {m.write(f"{MEMORY}/memory{n}/state", "offline") for n in blocks} == {
            errno.EBUSY
        }
    with cxlsim.Machine(tmp_path, "2hb2", firmware="kmem-online-movable") as m:
        m.stick(blocks[1])
        found = [m.write(f"{MEMORY}/memory{n}/state", "offline") for n in blocks]
        assert found == [0, errno.EBUSY, 0, 0]
        m.stick(blocks[1], False)
        assert m.write(f"{MEMORY}/memory{blocks[1]}/state", "offline") == 0
        assert m.write(f"{DAX}/drivers/kmem/unbind", "dax2.0") == 0
        assert m.log == []


@pytest.mark.parametrize(
    ("policy", "state", "zone"),
    [
        ("offline", "offline", "Normal Movable"),
        ("online", "online", "Normal"),
        ("online_kernel", "online", "Normal"),
        ("online_movable", "online", "Movable"),
    ],
)
def test_the_kernels_policy_puts_memory_online(
    policy: str, state: str, zone: str, tmp_path: Path
) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", auto_online=policy) as m:
        make(m, [0, 1])
        assert seen(m)["blocks"] == {(state, zone)}


def test_smaller_than_a_memory_block(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "1hb1", block_bytes=2 << 30) as m:
        dax = f"dax{make(m, [0])[6:]}.0"
        assert m.sysfs.target(f"{DAX}/devices/{dax}/driver") == ""
        assert m.write(f"{DAX}/drivers/kmem/bind", dax) == errno.EINVAL
        assert m.sysfs.read(f"{MEMORY}/block_size_bytes") == "80000000"


def test_a_device_bound_to_kmem_cannot_be_opened(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", firmware="kmem-offline") as m:
        with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
            os.open(m.sysfs.at("/dev/dax2.0"), os.O_RDWR)
        m.sysfs.write(f"{DAX}/drivers/kmem/unbind", "dax2.0")
        take(m, "dax2.0")
        os.close(os.open(m.sysfs.at("/dev/dax2.0"), os.O_RDWR))


def test_no_region_for_volatile_memory(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "1hb1", take_ram=False) as m:
        assert not m.sysfs.exists(f"{CXL}/decoder0.0/create_ram_region")
        assert m.sysfs.read(f"{CXL}/decoder0.0/cap_ram") == "0"


def test_the_same_device_has_other_names_on_another_host(tmp_path: Path) -> None:
    names = set()
    for seed in range(4):
        with cxlsim.Machine(tmp_path / str(seed), "4hb4", seed=seed) as m:
            names.add(m.memdev(0x102).name)
    assert len(names) > 1
