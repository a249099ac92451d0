# SPDX-License-Identifier: Apache-2.0
"""Faults as the kernel shows them, without the product: what sacctl's own handling of them
is built on."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from vm.guest import cxl
from vm.guest.kit import child_signal, equal, host, kernel, sh, until

LIMIT = 120


def region() -> tuple[str, str]:
    """Over both devices; its dax device is bound to device_dax."""
    name = cxl.create("decoder0.2", list(cxl.devices().values()))
    dax = cxl.dax_of(name)
    return name, dax


def test_poison_is_listed_and_still_read() -> None:
    name, dax = region()
    device = cxl.devices()[1]
    host.qmp("cxl-inject-poison", path="/machine/peripheral/mem1", start=0x40000, length=64)
    cxl.must(f"{device.name}/trigger_poison_list", 1)
    listed = json.loads(sh("cxl", "list", "-L", "-m", device.name).out)
    (record,) = listed[0]["media_errors"]
    equal(record["offset"], 0x40000, "the device's address")
    equal(record["length"], 64, "the length of the record")
    with cxl.Mapped(dax) as memory:
        assert bytes(memory[0x80100:0x80108]) == bytes(8)
    cxl.destroy(name)


def test_a_device_is_pulled_out_while_mapped_and_comes_back() -> None:
    name, dax = region()
    with cxl.Mapped(dax, 2 * cxl.MIB) as memory:
        memory[:8] = b"survivor"
        before = set(cxl.devices())
        host.unplug(0)
        until("the endpoint to go", lambda: set(cxl.devices()) == before - {0})
        equal(child_signal(lambda: memory[0]), signal.SIGBUS, "a load from what has gone")
    assert not Path(f"/sys/bus/dax/devices/{dax}").exists()
    equal(cxl.read(f"{name}/commit"), "0", "commit of the region that is left")
    cxl.destroy(name)
    host.plug(0)
    until("the device to come back", lambda: set(cxl.devices()) == before)
    name, dax = region()
    with cxl.Mapped(dax, 2 * cxl.MIB) as memory:
        equal(bytes(memory[:8]), b"survivor", "what it held before")
    cxl.destroy(name)


def test_the_driver_lets_go_while_mapped() -> None:
    name, dax = region()
    pci = cxl.devices()[0].pci
    with cxl.Mapped(dax, 2 * cxl.MIB) as memory:
        memory[:4] = b"data"
        cxl.must("/sys/bus/pci/drivers/cxl_pci/unbind", pci)
        equal(child_signal(lambda: memory[0]), signal.SIGBUS, "a load from what has gone")
    cxl.must("/sys/bus/pci/drivers/cxl_pci/bind", pci)
    until("the endpoint to come back", lambda: 0 in cxl.devices())
    cxl.destroy(name)
    for found in cxl.devices().values():
        if cxl.number(f"{found.decoder()}/dpa_size"):
            cxl.must(f"{found.decoder()}/dpa_size", 0)


def test_errors_of_the_link_are_counted() -> None:
    device = cxl.devices()[0]
    counters = Path(f"/sys/bus/pci/devices/{device.pci}")
    # AER is masked at first: firmware leaves that to the system.
    sh("setpci", "-s", device.pci, "ECAP_AER+0x14.l=0", "ECAP_AER+0x08.l=0")
    before = (counters / "aer_dev_correctable").read_text()
    host.qmp(
        "cxl-inject-correctable-error", path="/machine/peripheral/mem0", type="cache-data-ecc"
    )
    if kernel() < (7, 0):
        until(
            "a correctable error in the counters",
            lambda: (counters / "aer_dev_correctable").read_text() != before,
        )
