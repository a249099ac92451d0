# SPDX-License-Identifier: Apache-2.0
"""An uncorrectable error of a device under a pool: the kernel resets the device, the memory
is away, daemon and clients go on, and the pool is assembled again."""

from __future__ import annotations

from pathlib import Path

from vm.guest import cxl
from vm.guest.kit import equal, host, kernel_log, sacctl, sh, until
from vm.guest.product import Pages, daemon, pool, record, room
from vm.scenarios.faults import codes, lost, put

# Later kernels do not take the device's errors here, whatever its masks say.
KERNELS = ("6.12",)
TOPOLOGIES = ("1hb1",)
LEAVES = "errors in registers of the port, which also needs to be as it was at boot"
LIMIT = 400


def test_the_pool_is_lost_and_comes_back() -> None:
    device = cxl.devices()[0]
    names = ",".join(d.name for d in cxl.devices().values())
    with daemon(), pool("other", "--emulate", "32M"), pool("kv", "--devices", names, *room()):
        pages, others = Pages("kv", "chat"), Pages("other", "chat")
        for one in (pages, others):
            one.put()
            equal(one.found(), 4, "pages found")
        port = Path(f"/sys/bus/pci/devices/{device.pci}").resolve().parent.name
        for function in (port, device.pci):
            # The masks that firmware would have taken away.
            sh("setpci", "-s", function, "ECAP_AER+0x08.l=0", "ECAP_AER+0x14.l=0")
        errors = [{"type": "cache-address-parity", "header": list(range(32))}]
        host.qmp(
            "cxl-inject-uncorrectable-errors", path="/machine/peripheral/mem0", errors=errors
        )
        until("the pool to be lost", lambda: record("kv")["state"] == "lost", 90)
        assert "Uncorrectable (Fatal)" in kernel_log(), kernel_log(30)
        equal(lost(pages), 0, "pages found in what is gone")
        equal(others.found(), 4, "pages of the other pool")
        assert "SAC210" in codes()
        until("the kernel to be done", lambda: "device recovery" in kernel_log(), 60)
        if 0 not in cxl.devices():
            _taken_again(device)
        sacctl("pool", "assemble", "kv", "--wait", "30", limit=300)
        equal(record("kv")["state"], "serving", "state")
        until("the client to attach anew", lambda: put(pages), 60)
        equal(pages.found(), 4, "pages put anew by the same process")
        for one in (pages, others):
            one.close()


def _taken_again(device: cxl.Device) -> None:
    """The kernel lets go of a device by a work item, and its recovery, which has priority over
    such work, may try to take it again before that has run: EBUSY, and the device stays without
    a driver. On a machine with one processor that depends on what else there is to do."""
    assert "probe with driver cxl_mem failed with error -16" in kernel_log(), kernel_log(20)
    shown = sacctl("device", "show", device.pci, "-o", "json", limit=120).json["device"]
    assert "cxl_mem has not taken it" in shown["why"], shown
    cxl.must("/sys/bus/cxl/drivers/cxl_mem/bind", device.name)
    until("the device", lambda: 0 in cxl.devices())
