# SPDX-License-Identifier: Apache-2.0
"""The files of root, ports, endpoints, decoders and regions, as the kernel shows them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from cxlsim import endpoints, regions
from cxlsim.answers import Refused
from cxlsim.parts import Decoder, Memdev, Port, Region, State, SwitchDecoder, Window
from cxlsim.tree import Files, Store, action, file, folder, link

if TYPE_CHECKING:
    from cxlsim.kernel import Kernel

__all__ = ["BUS", "ROOT", "cxl_files", "device", "uevent"]

PLATFORM = "/sys/devices/platform/ACPI0017:00"
ROOT = f"{PLATFORM}/root0"
BUS = "/sys/bus/cxl"


def uevent(value: str) -> None:
    """Asks for an event to be sent; none is."""
    if value.removesuffix("\n") not in ("add", "remove", "change", "bind", "unbind"):
        raise Refused(errno.EINVAL)


def device(path: str, kind: str, alias: str, driver: str = "", extra: str = "") -> Files:
    """What every device of the cxl bus has. extra: lines of its uevent."""
    name = path.rpartition("/")[2]
    lines = [f"DEVTYPE={kind}", *([f"DRIVER={driver}"] if driver else []), f"MODALIAS={alias}"]
    files: Files = {
        f"{path}/devtype": file(kind),
        f"{path}/modalias": file(alias),
        f"{path}/subsystem": link(BUS),
        f"{path}/uevent": file(extra + "\n".join(lines), uevent),
        f"{BUS}/devices/{name}": link(path),
    }
    if driver:
        files[f"{path}/driver"] = link(f"{BUS}/drivers/{driver}")
        files[f"{BUS}/drivers/{driver}/{name}"] = link(path)
    return files


def cxl_files(kernel: Kernel) -> Files:
    files = _bus(kernel)
    files[f"{PLATFORM}/modalias"] = file("acpi:ACPI0017:")
    acpi = "/sys/devices/LNXSYSTM:00/LNXSYBUS:00"
    for name, hid in [("ACPI0017:00", "ACPI0017")] + [
        (f"ACPI0016:{n:02x}", "ACPI0016") for n, _ in enumerate(kernel.bridges)
    ]:
        files[f"{acpi}/{name}/hid"] = file(hid)
        files[f"/sys/bus/acpi/devices/{name}"] = link(f"{acpi}/{name}")
    files["/sys/bus/platform/devices/ACPI0017:00"] = link(PLATFORM)
    files["/sys/bus/platform/drivers/cxl_acpi/ACPI0017:00"] = link(PLATFORM)
    files[f"{PLATFORM}/driver"] = link("/sys/bus/platform/drivers/cxl_acpi")
    files[f"{PLATFORM}/uevent"] = file("DRIVER=cxl_acpi\nMODALIAS=acpi:ACPI0017:", uevent)
    files |= device(ROOT, "cxl_port", "cxl:t4")
    files[f"{ROOT}/decoders_committed"] = file(0)
    files[f"{ROOT}/uport"] = link(PLATFORM)
    files |= device(f"{ROOT}/nvdimm-bridge0", "cxl_nvdimm_bridge", "cxl:t1")
    for bridge in kernel.bridges:
        files[f"{ROOT}/dport{bridge.uid}"] = link(bridge.path)
    for window in kernel.windows:
        files |= _window(kernel, window)
    for port in kernel.routes.ports:
        files |= _port(port)
    for memdev in kernel.memdevs:
        if memdev.present and memdev.probed:
            files |= _endpoint(kernel, memdev)
    for window in kernel.windows:
        for region in window.regions:
            files |= _region(kernel, region)
    return files


def _bus(kernel: Kernel) -> Files:
    files: Files = {f"{BUS}/devices": folder()}
    bound: dict[str, tuple[Store, Store]] = {
        "cxl_region": (kernel.bind_region, kernel.unbind_region),
        "cxl_mem": (kernel.bind_mem, kernel.unbind_mem),
        "cxl_port": (kernel.cannot, kernel.cannot),
    }
    for driver in ("cxl_dax_region", "cxl_mem", "cxl_port", "cxl_region"):
        at = f"{BUS}/drivers/{driver}"
        files[f"{at}/uevent"] = action(uevent)
        if driver in bound:
            files[f"{at}/bind"] = action(bound[driver][0])
            files[f"{at}/unbind"] = action(bound[driver][1])
    files[f"{BUS}/drivers_autoprobe"] = file(1, kernel.cannot)
    files[f"{BUS}/drivers_probe"] = action(kernel.cannot)
    files[f"{BUS}/flush"] = action(kernel.flush)
    files[f"{BUS}/uevent"] = action(uevent)
    return files


def _window(kernel: Kernel, window: Window) -> Files:
    path = f"{ROOT}/{window.name}"

    def create(value: str) -> None:
        regions.create(kernel, window, value)

    def delete(value: str) -> None:
        regions.delete(kernel, window, value)

    files = device(path, "cxl_decoder_root", "cxl:t0")
    for name in ("cap_pmem", "cap_ram", "cap_type2", "cap_type3"):
        files[f"{path}/{name}"] = file(int(name != "cap_ram" or kernel.windows_take_ram))
    files[f"{path}/create_pmem_region"] = file(f"region{window.next_id}", kernel.cannot)
    if kernel.windows_take_ram:
        files[f"{path}/create_ram_region"] = file(f"region{window.next_id}", create)
    return files | {
        f"{path}/delete_region": action(delete),
        f"{path}/interleave_granularity": file(window.granularity),
        f"{path}/interleave_ways": file(window.ways),
        f"{path}/locked": file(0),
        f"{path}/qos_class": file(0),
        f"{path}/size": file(f"{window.bytes:#x}"),
        f"{path}/start": file(f"{window.start:#x}", mode=0o400),
        f"{path}/target_list": file(",".join(str(b.uid) for b in window.bridges)),
    }


def _port(port: Port) -> Files:
    files = device(port.path, "cxl_port", "cxl:t3", "cxl_port")
    committed = sum(1 for d in port.decoders if d.committed)
    files[f"{port.path}/decoders_committed"] = file(committed)
    files[f"{port.path}/parent_dport"] = link(port.parent_dport)
    files[f"{port.path}/uport"] = link(port.uport)
    for number, dport in port.dports.items():
        files[f"{port.path}/dport{number}"] = link(dport)
    for decoder in port.decoders:
        files |= _switch_decoder(port, decoder)
    return files


def _switch_decoder(port: Port, decoder: SwitchDecoder) -> Files:
    path, region, shown = f"{port.path}/{decoder.name}", decoder.region, decoder.shown
    return device(path, "cxl_decoder_switch", "cxl:t0") | {
        f"{path}/interleave_granularity": file(shown.granularity),
        f"{path}/interleave_ways": file(shown.ways),
        f"{path}/locked": file(0),
        f"{path}/region": file(region.name if region else ""),
        f"{path}/size": file(f"{shown.size:#x}"),
        f"{path}/start": file(f"{shown.start:#x}", mode=0o400),
        f"{path}/target_list": file(",".join(str(t) for t in shown.targets)),
        f"{path}/target_type": file("expander"),
    }


def _endpoint(kernel: Kernel, memdev: Memdev) -> Files:
    path = memdev.folder
    files = device(path, "cxl_port", "cxl:t3", "cxl_port")
    committed = sum(1 for d in memdev.decoders if d.committed)
    files[f"{path}/decoders_committed"] = file(committed)
    files[f"{path}/parent_dport"] = link(memdev.dport)
    files[f"{path}/uport"] = link(f"{memdev.path}/{memdev.name}")
    for decoder in memdev.decoders:
        files |= _decoder(kernel, memdev, decoder)
    return files


def _decoder(kernel: Kernel, memdev: Memdev, decoder: Decoder) -> Files:
    path, region, shown = f"{memdev.folder}/{decoder.name}", decoder.region, decoder.shown
    dpa = decoder.dpa_start if decoder.dpa_bytes else (1 << 64) - 1

    def set_mode(value: str) -> None:
        endpoints.set_mode(decoder, value, kernel.no_pmem)

    def set_size(value: str) -> None:
        endpoints.set_size(decoder, value, kernel.no_mode)

    return device(path, "cxl_decoder_endpoint", "cxl:t0") | {
        f"{path}/dpa_resource": file(f"{dpa:#x}"),
        f"{path}/dpa_size": file(f"{decoder.dpa_bytes:#018x}", set_size),
        f"{path}/interleave_granularity": file(shown.granularity),
        f"{path}/interleave_ways": file(shown.ways),
        f"{path}/locked": file(0),
        f"{path}/mode": file(decoder.mode, set_mode),
        f"{path}/region": file(region.name if region else ""),
        f"{path}/size": file(f"{shown.size:#x}"),
        f"{path}/start": file(f"{shown.start:#x}", mode=0o400),
        f"{path}/target_type": file("expander"),
    }


def _region(kernel: Kernel, region: Region) -> Files:
    path = kernel.region_path(region)
    files = device(path, "cxl_region", "cxl:t6", "cxl_region" if region.bound else "")
    files |= {
        f"{path}/commit": file(
            int(region.state >= State.COMMITTED), lambda v: regions.commit(kernel, region, v)
        ),
        f"{path}/interleave_granularity": file(
            region.granularity, lambda v: regions.set_granularity(region, v)
        ),
        f"{path}/interleave_ways": file(region.ways, lambda v: regions.set_ways(region, v)),
        f"{path}/mode": file("ram"),
        f"{path}/resource": file(f"{region.start % (1 << 64):#x}"),
        f"{path}/size": file(f"{region.bytes:#x}", lambda v: regions.set_size(region, v)),
        f"{path}/uuid": file(""),
        f"{path}/access0": folder(),
        f"{path}/access1": folder(),
    }
    if kernel.version == "7.3":
        files[f"{path}/locked"] = file(0)
    if kernel.bandwidth and region.state >= State.ACTIVE:
        for access in ("access0", "access1"):
            for way in ("read", "write"):
                files[f"{path}/{access}/{way}_bandwidth"] = file(kernel.bandwidth * region.ways)
                files[f"{path}/{access}/{way}_latency"] = file(250)
    for position, target in enumerate(region.targets[: region.ways]):
        files[f"{path}/target{position}"] = file(
            target.name if target else "",
            lambda v, p=position: regions.set_target(kernel, region, p, v),  # type: ignore[misc]
        )
    if region.dax is not None:
        files |= device(region.dax.folder, "cxl_dax_region", "cxl:t8", "cxl_dax_region")
    return files
