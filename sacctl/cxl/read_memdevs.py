# SPDX-License-Identifier: Apache-2.0
"""Memory devices and their endpoint decoders, from sysfs."""

from __future__ import annotations

import re

from sacctl.cxl.model import EndpointDecoder, Link, Memdev, Skipped
from sacctl.cxl.read_attrs import CXL, Attributes, UnreadableError, names, number_of
from sacctl.cxl.sysfs import Sysfs

__all__ = ["link_of", "memdevs", "unclaimed"]

_PCI = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_MODES = ("ram", "pmem", "mixed", "none")
_FIRMWARE = 64  # characters of its version; a device has 16


def memdevs(sysfs: Sysfs) -> tuple[list[Memdev], list[Skipped]]:
    """The devices that the kernel knows as memN."""
    made: list[Memdev] = []
    skipped: list[Skipped] = []
    found = names(sysfs, f"{CXL}/devices")
    endpoints = {}
    for name in found:
        if re.fullmatch(r"endpoint\d+", name):
            owner = sysfs.real(f"{CXL}/devices/{name}/uport")
            endpoints[owner] = sysfs.real(f"{CXL}/devices/{name}")
    for name in found:
        if not re.fullmatch(r"mem\d+", name):
            continue
        real = sysfs.real(f"{CXL}/devices/{name}")
        try:
            if not real:
                raise UnreadableError("it went away while it was being read")
            made.append(_memdev(sysfs, name, real, endpoints.get(real, "")))
        except UnreadableError as why:
            skipped.append(Skipped(name, str(why)))
    return made, skipped


def _memdev(sysfs: Sysfs, name: str, real: str, endpoint: str) -> Memdev:
    at = Attributes(sysfs, real)
    function = real.rsplit("/", 1)[0]
    above = Attributes(sysfs, function)
    pci = above.name if re.fullmatch(_PCI, above.name) else ""
    path = _Path(sysfs, endpoint)
    return Memdev(
        name=name,
        serial=at.number("serial"),
        pci=pci,
        vendor=number_of(above.optional("vendor")) or 0,
        device=number_of(above.optional("device")) or 0,
        firmware=at.optional("firmware_version")[:_FIRMWARE],
        numa_node=at.signed("numa_node"),
        ram_bytes=at.number("ram/size"),
        pmem_bytes=number_of(at.optional("pmem/size")) or 0,
        driver=at.link("driver"),
        host_bridge=path.bridge or _bridge_of(real),
        ports=path.ports,
        dports=path.dports,
        endpoint=path.name,
        decoders=path.decoders,
        link=link_of(sysfs, function),
        aer=_aer(above),
        security=at.optional("security/state"),
        problem=path.problem or ("" if endpoint else _no_endpoint(sysfs, at)),
        committed=path.committed,
        path=real,
    )


class _Path:
    """From the root down to an endpoint, and its decoders. Raises UnreadableError."""

    def __init__(self, sysfs: Sysfs, endpoint: str) -> None:
        self.name = endpoint.rsplit("/", 1)[-1]
        parts = endpoint.split("/")
        self.ports = tuple(part for part in parts[:-1] if re.fullmatch(r"port\d+", part))
        self.bridge, self.problem = "", ""
        self.dports: tuple[str, ...] = ()
        self.decoders: tuple[EndpointDecoder, ...] = ()
        self.committed = 0
        if not endpoint:
            return
        at = Attributes(sysfs, endpoint)
        taken = []
        for number, part in enumerate(parts):
            if part in self.ports or number == len(parts) - 1:
                taken.append(sysfs.target("/".join(parts[: number + 1]) + "/parent_dport"))
        self.bridge, self.dports = taken[0], tuple(taken[1:])
        self.committed = number_of(at.optional("decoders_committed")) or 0
        inside = [n for n in at.names() if re.fullmatch(r"decoder\d+\.\d+", n)]
        self.decoders = tuple(_decoder(sysfs, f"{endpoint}/{n}") for n in inside)
        if not at.link("driver"):
            self.problem = f"{self.name} has no driver (modprobe cxl_port)"
        elif not inside:
            self.problem = f"{self.name} has no decoders"


def _decoder(sysfs: Sysfs, folder: str) -> EndpointDecoder:
    at = Attributes(sysfs, folder)
    try:
        mode, size = at.text("mode"), at.number("dpa_size")
        if mode not in _MODES:
            raise UnreadableError(f"its attribute mode is {mode[:24]!r}")
        locked = at.flag("locked")
        region = at.text("region")
    except UnreadableError as why:
        raise UnreadableError(f"{at.name}: {why}") from None
    if not re.fullmatch(r"(region\d+)?", region):
        raise UnreadableError(f"{at.name}: its attribute region is {region[:24]!r}")
    start = at.address("dpa_resource") if size else None
    return EndpointDecoder(at.name, mode, start, size, region, locked)


def _no_endpoint(sysfs: Sysfs, at: Attributes) -> str:
    """Why the drivers made no endpoint for a device."""
    # cxl_mem waits for the root: without it, it has not taken the device either.
    if not any(re.fullmatch(r"root\d+", n) for n in names(sysfs, f"{CXL}/devices")):
        return "there is no CXL root: the driver cxl_acpi is not loaded (modprobe cxl_acpi)"
    if not at.link("driver"):
        if sysfs.real(f"{CXL}/drivers/cxl_mem"):
            return "the driver cxl_mem has not taken it (dmesg says why)"
        return "the driver cxl_mem is not loaded (modprobe cxl_mem)"
    if not sysfs.real(f"{CXL}/drivers/cxl_port"):
        return "the driver cxl_port is not loaded (modprobe cxl_port)"
    return (
        "the drivers made no endpoint for it: its link is not in CXL mode, or a port above "
        "it failed (dmesg says why)"
    )


def _bridge_of(real: str) -> str:
    parts = real.split("/")
    return next(
        (part for part in parts if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part)), ""
    )


def link_of(sysfs: Sysfs, function: str) -> Link | None:
    """Of a PCI function's folder, against what it and the slot above it can do. None where
    there is no link, or its state is unknown."""
    now = _speed_width(Attributes(sysfs, function), "current")
    most = _speed_width(Attributes(sysfs, function), "max")
    if now is None or most is None:
        return None
    slot = _speed_width(Attributes(sysfs, function.rsplit("/", 1)[0]), "max") or most
    return Link(now[0], now[1], min(most[0], slot[0]), min(most[1], slot[1]))


def _speed_width(at: Attributes, which: str) -> tuple[float, int] | None:
    speed = re.match(r"([0-9]{1,4}(\.[0-9]{1,3})?) GT/s", at.optional(f"{which}_link_speed"))
    width = number_of(at.optional(f"{which}_link_width"), 10)
    if not speed or not width or width > 64:
        return None
    return float(speed[1]), width


def _aer(at: Attributes) -> dict[str, int]:
    counts = {}
    for kind, total in (("correctable", "COR"), ("nonfatal", "NONFATAL"), ("fatal", "FATAL")):
        found = re.search(rf"^TOTAL_ERR_{total} (\d{{1,20}})$", at.optional(f"aer_dev_{kind}"),
                          re.MULTILINE)  # fmt: skip
        if found:
            counts[kind] = int(found[1])
    return counts


def unclaimed(sysfs: Sysfs, known: set[str]) -> list[Skipped]:
    """CXL memory functions on PCI that are no memdev. known: PCI addresses of memdevs."""
    found = []
    for address in names(sysfs, "/sys/bus/pci/devices"):
        if address in known or not re.fullmatch(_PCI, address):
            continue
        folder = f"/sys/bus/pci/devices/{address}"
        if not sysfs.get(f"{folder}/class").startswith("0x0502"):
            continue
        driver = sysfs.target(f"{folder}/driver")
        if driver == "cxl_pci":
            why = "cxl_pci has it and made no memory device of it (dmesg says why)"
        elif driver:
            why = f"it is CXL memory, and the driver {driver} has it, not cxl_pci"
        elif sysfs.real("/sys/bus/pci/drivers/cxl_pci"):
            why = "it is CXL memory, and cxl_pci has not taken it (dmesg says why)"
        else:
            why = "it is CXL memory, and no driver is loaded for it (modprobe cxl_pci)"
        found.append(Skipped(address, why))
    return found
