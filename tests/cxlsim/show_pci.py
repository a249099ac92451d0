# SPDX-License-Identifier: Apache-2.0
"""The files of PCI: bridges, slots, switches, devices; and of each memdev in its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cxlsim.answers import number
from cxlsim.parts import Memdev
from cxlsim.show_ports import BUS, device, uevent
from cxlsim.tree import Entry, Files, action, file, folder, link

if TYPE_CHECKING:
    from cxlsim.kernel import Kernel

__all__ = ["CORRECTABLE", "UNCORRECTABLE", "pci_files"]

PCI = "/sys/bus/pci"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CORRECTABLE = _words("RxErr BadTLP BadDLLP Rollover Timeout NonFatalErr CorrIntErr HeaderOF")
UNCORRECTABLE = _words(
    """Undefined DLP SDES TLP FCP CmpltTO CmpltAbrt UnxCmplt RxOF MalfTLP ECRC UnsupReq
    ACSViol UncorrIntErr BlockedTLP AtomicOpBlocked TLPBlockedErr PoisonTLPBlocked
    DMWrReqBlocked IDECheck MisIDETLP PCRC_CHECK TLPXlatBlocked"""
)


def _setting(value: str) -> None:
    """A number that may be set, and changes nothing here."""
    number(value.removeprefix("-"))


def pci_files(kernel: Kernel) -> Files:
    files: Files = {
        f"{PCI}/devices": folder(),
        f"{PCI}/rescan": action(kernel.rescan),
        f"{PCI}/drivers/cxl_pci/bind": action(kernel.bind_pci),
        f"{PCI}/drivers/cxl_pci/unbind": action(kernel.unbind_pci),
        f"{PCI}/drivers/pcieport": folder(),
        "/sys/class/pci_bus": folder(),
    }
    for bridge in kernel.bridges:
        files[f"{bridge.path}/uevent"] = file("", uevent)
        files[f"{bridge.path}/pci_bus/0000:{bridge.uid:02x}/uevent"] = file("", uevent)
    for port in kernel.routes.ports:
        switch = port.uport != port.parent_dport
        if switch:
            files |= _function(port.uport, _UPSTREAM)
        for dport in port.dports.values():
            files |= _function(dport, _DOWNSTREAM if switch else _ROOT_PORT)
    for memdev in kernel.memdevs:
        if memdev.plugged:
            files |= _memory_device(kernel, memdev)
    return files


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a PCI function is. fastest, widest: what its link could do."""

    vendor: str
    product: str
    kind: str
    sub: tuple[str, str]
    driver: str
    fastest: str = "32.0"
    widest: int = 16


# Those of QEMU.
_ROOT_PORT = _Kind("0x8086", "0x7075", "0x060400", ("0x8086", "0x0000"), "pcieport", "64.0", 32)
_UPSTREAM = _Kind("0x19e5", "0xa128", "0x060400", ("0x0000", "0x0000"), "pcieport")
_DOWNSTREAM = _Kind("0x19e5", "0xa129", "0x060400", ("0x0000", "0x0000"), "pcieport", "64.0")
_MEMORY = _Kind("0x8086", "0x0d93", "0x050210", ("0x1af4", "0x1100"), "cxl_pci")


def _function(
    path: str,
    what: _Kind,
    *,
    bound: bool = True,
    speed: str = "32.0",
    width: int = 16,
    counts: dict[str, dict[str, int]] | None = None,
) -> Files:
    """What every PCI function has, as far as anybody looks."""
    address = path.rpartition("/")[2]
    vendor, product, kind = what.vendor, what.product, what.kind
    driver = what.driver if bound else ""
    lines = [
        *([f"DRIVER={driver}"] if driver else []),
        f"PCI_CLASS={kind[3:].upper()}",
        f"PCI_ID={vendor[2:].upper()}:{product[2:].upper()}",
        f"PCI_SLOT_NAME={address}",
    ]
    files: Files = {
        f"{path}/class": file(kind),
        f"{path}/vendor": file(vendor),
        f"{path}/device": file(product),
        f"{path}/revision": file("0x01"),
        f"{path}/subsystem_vendor": file(what.sub[0]),
        f"{path}/subsystem_device": file(what.sub[1]),
        f"{path}/current_link_speed": file(f"{speed} GT/s PCIe"),
        f"{path}/current_link_width": file(width),
        f"{path}/max_link_speed": file(f"{what.fastest} GT/s PCIe"),
        f"{path}/max_link_width": file(what.widest),
        f"{path}/numa_node": file(-1, _setting),
        f"{path}/power_state": file("D0"),
        f"{path}/local_cpulist": file("0-1"),
        f"{path}/enable": file(int(bound), _setting),
        f"{path}/subsystem": link(PCI),
        f"{path}/uevent": file("\n".join(lines), uevent),
        f"{PCI}/devices/{address}": link(path),
    }
    if driver:
        files[f"{path}/driver"] = link(f"{PCI}/drivers/{driver}")
        files[f"{PCI}/drivers/{driver}/{address}"] = link(path)
    for which, names, total in (
        ("correctable", CORRECTABLE, "COR"),
        ("nonfatal", UNCORRECTABLE, "NONFATAL"),
        ("fatal", UNCORRECTABLE, "FATAL"),
    ):
        had = (counts or {}).get(which, {})
        rows = [f"{name} {had.get(name, 0)}" for name in names]
        rows.append(f"TOTAL_ERR_{total} {sum(had.values())}")
        files[f"{path}/aer_dev_{which}"] = file("\n".join(rows))
    return files


def _memory_device(kernel: Kernel, memdev: Memdev) -> Files:
    files = _function(
        memdev.path,
        _MEMORY,
        bound=memdev.bound,
        speed=memdev.speed,
        width=memdev.width,
        counts=memdev.aer,
    )
    files[f"{memdev.path}/remove"] = Entry(
        "f", 0o220, "", lambda v: kernel.remove_pci(memdev, v)
    )
    if memdev.present:
        files |= _memdev(kernel, memdev)
    return files


def _memdev(kernel: Kernel, memdev: Memdev) -> Files:
    path, name = f"{memdev.path}/{memdev.name}", memdev.name
    node = f"MAJOR=251\nMINOR={memdev.number}\nDEVNAME=cxl/{name}\n"
    files = device(path, "cxl_memdev", "cxl:t5", "cxl_mem" if memdev.probed else "", node)
    del files[f"{path}/devtype"], files[f"{path}/modalias"]
    debug = f"/sys/kernel/debug/cxl/{name}"
    rows = [f"00000000-{memdev.bytes - 1:08x} : ram"]
    rows += [
        f"  {d.dpa_start:08x}-{d.dpa_start + d.dpa_bytes - 1:08x} : {d.name}"
        for d in memdev.decoders
        if d.dpa_bytes
    ]
    return files | {
        f"{path}/dev": file(f"251:{memdev.number}"),
        f"{path}/firmware_version": file("BWFW VERSION 00"),
        f"{path}/label_storage_size": file(1 << 20),
        f"{path}/numa_node": file(-1),
        f"{path}/payload_max": file(2048),
        f"{path}/pmem/size": file("0x0"),
        f"{path}/ram/size": file(f"{memdev.bytes:#x}"),
        f"{path}/security/state": file("disabled"),
        f"{path}/security/sanitize": action(kernel.cannot),
        f"{path}/serial": file(f"{memdev.serial:#x}"),
        f"{path}/trigger_poison_list": action(lambda v: kernel.list_poison(memdev, v)),
        f"{debug}/dpamem": file("\n".join(rows)),
        f"{debug}/inject_poison": action(lambda v: kernel.poison(memdev, v, True)),
        f"{debug}/clear_poison": action(lambda v: kernel.poison(memdev, v, False)),
        f"{BUS}/devices": folder(),
        f"/dev/cxl/{name}": file("", mode=0o600),
    }
