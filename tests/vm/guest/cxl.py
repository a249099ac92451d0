# SPDX-License-Identifier: Apache-2.0
"""CXL by the kernel's own files, without the product: for scenarios about the kernel itself
and for looking behind the product's back."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "BUS",
    "DAX",
    "Device",
    "Mapped",
    "bind",
    "clean",
    "create",
    "dax_of",
    "destroy",
    "devices",
    "driver",
    "leftovers",
    "number",
    "read",
    "unbind",
    "write",
]

BUS = Path("/sys/bus/cxl/devices")
DAX = Path("/sys/bus/dax")
AUTOPROBE = DAX / "drivers_autoprobe"
MIB = 1 << 20
PART = 256 * MIB  # the smallest part of a device that a region takes


def write(path: str | Path, value: object) -> str:
    """Writes an attribute, a path relative to the CXL devices or an absolute one: "OK" or
    the name of the errno."""
    try:
        fd = os.open(BUS / path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        return f"open: {errno.errorcode[error.errno or 0]}"
    try:
        os.write(fd, str(value).encode())
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    finally:
        os.close(fd)
    return "OK"


def must(path: str | Path, value: object) -> None:
    """As write(), for what has to work."""
    got = write(path, value)
    assert got == "OK", f"echo {value} > {path}: {got}"


def read(path: str | Path) -> str:
    return (BUS / path).read_text().strip()


def number(path: str | Path) -> int:
    return int(read(path), 0)


@dataclass(frozen=True)
class Device:
    """A memory device. index: 0 for serial 0x100, as the host counts."""

    name: str
    index: int
    endpoint: str

    def decoder(self, which: int = 0) -> str:
        return f"decoder{self.endpoint.removeprefix('endpoint')}.{which}"

    @property
    def pci(self) -> str:
        return (BUS / self.name).resolve().parent.name


def devices() -> dict[int, Device]:
    """By the host's count; only those that have an endpoint."""
    found = {}
    for endpoint in BUS.glob("endpoint*"):
        name = (endpoint / "uport").resolve().name
        try:
            index = number(f"{name}/serial") - 0x100
        except OSError:  # on its way, in or out
            continue
        found[index] = Device(name, index, endpoint.name)
    return dict(sorted(found.items()))


def create(
    root: str,
    order: list[Device],
    granularity: int = 256,
    each: int = PART,
    *,
    kmem: bool = False,
) -> str:
    """A committed and bound region over devices by position; its name. Its dax device is
    bound to device_dax, unless kmem is to take it."""
    region = read(f"{root}/create_ram_region")
    must(f"{root}/create_ram_region", region)
    must(f"{region}/interleave_granularity", granularity)
    must(f"{region}/interleave_ways", len(order))
    for device in order:
        must(f"{device.decoder()}/mode", "ram")
        must(f"{device.decoder()}/dpa_size", hex(each))
    must(f"{region}/size", hex(each * len(order)))
    for position, device in enumerate(order):
        must(f"{region}/target{position}", device.decoder())
    must(f"{region}/commit", 1)
    if not kmem:
        must(AUTOPROBE, 0)
    try:
        must("/sys/bus/cxl/drivers/cxl_region/bind", region)
        dax = dax_of(region)
        if not kmem:
            # Still guarded: a device that is to be seen may not have been probed yet.
            bind(dax)
    finally:
        if not kmem:
            must(AUTOPROBE, 1)
    return region


def dax_of(region: str, seconds: float = 5) -> str:
    """The region's first dax device, which some kernels make a little later."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for found in sorted((BUS / region).glob("dax_region*/dax*.*")):
            return found.name
        time.sleep(0.02)
    raise AssertionError(f"{region} has no dax device")


def driver(name: str) -> str:
    """Of a dax device: "device_dax", "kmem" or ""."""
    link = DAX / "devices" / name / "driver"
    return link.resolve().name if link.exists() else ""


def unbind(name: str) -> None:
    if driver(name):
        must(DAX / "drivers" / driver(name) / "unbind", name)


def bind(name: str, to: str = "device_dax") -> None:
    """To that driver and no other. Writing the name into new_id binds it."""
    if driver(name) == to:
        return
    unbind(name)
    write(DAX / "drivers" / to / "new_id", name)
    if driver(name) != to and write(DAX / "drivers" / to / "bind", name) != "OK":
        # The probe that new_id began may be at it still.
        end = time.monotonic() + 5
        while driver(name) != to:
            assert time.monotonic() < end, f"{name} is not bound to {to}"
            time.sleep(0.02)


def destroy(region: str) -> None:
    """Everything of a region, its devices' decoders included. Says nothing of what fails."""
    if not (BUS / region).exists():
        return
    root = (BUS / region).resolve().parent.name
    ways = number(f"{region}/interleave_ways")
    decoders = [read(f"{region}/target{n}") for n in range(ways)]
    for dax in sorted((BUS / region).glob("dax_region*/dax*.*")):
        link = dax / "driver"
        if link.exists():
            write(link.resolve() / "unbind", dax.name)
        for name in ("device_dax", "kmem"):
            write(DAX / "drivers" / name / "remove_id", dax.name)
    write("/sys/bus/cxl/drivers/cxl_region/unbind", region)
    write(f"{region}/commit", 0)
    for position in range(ways):
        write(f"{region}/target{position}", "\n")
    write(f"{root}/delete_region", region)
    for decoder in decoders:
        if decoder:
            write(f"{decoder}/dpa_size", 0)


class Mapped:
    """A dax device in memory. Use `with`."""

    def __init__(self, name: str, length: int = 0, offset: int = 0) -> None:
        self.length = length or number(DAX / "devices" / name / "size")
        fd = os.open(f"/dev/{name}", os.O_RDWR | os.O_CLOEXEC)
        try:
            access = mmap.PROT_READ | mmap.PROT_WRITE
            self.bytes = mmap.mmap(fd, self.length, mmap.MAP_SHARED, access, offset=offset)
        finally:
            os.close(fd)

    def __enter__(self) -> mmap.mmap:
        return self.bytes

    def __exit__(self, *exc: object) -> None:
        self.bytes.close()


# -------------------------------------------------- is the machine as it was at its start?


def _policy() -> dict[str, str]:
    found = {}
    for path in (
        "/sys/devices/system/memory/auto_online_blocks",
        str(AUTOPROBE),
    ):
        if Path(path).exists():
            found[path] = Path(path).read_text().strip()
    return found


_AT_START = _policy()
_DEVICES = set(devices())


def leftovers() -> list[str]:
    """What a scenario has left: regions, taken memory, changed policies, processes."""
    left = [f"region {r.name}" for r in sorted(BUS.glob("region*"))]
    left += [f"device {index} is gone" for index in sorted(_DEVICES - set(devices()))]
    for decoder in sorted(BUS.glob("decoder*/dpa_size")):
        size = decoder.read_text().strip()
        if int(size, 0):
            left.append(f"{decoder.parent.name} holds {size} of its device")
    for path, value in _policy().items():
        if value != _AT_START.get(path):
            left.append(f"{path} is {value}, was {_AT_START.get(path)}")
    for found in subprocess.run(
        ["pgrep", "-a", "-f", r"sacctl.* (daemon|device monitor)|libsac"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines():
        left.append(f"process {found}")
    return left


def clean() -> None:
    """Puts the machine back, as far as it can."""
    subprocess.run(
        ["pkill", "-9", "-f", r"sacctl.* (daemon|device monitor)|libsac"], check=False
    )
    for region in sorted(BUS.glob("region*")):
        destroy(region.name)
    for decoder in sorted(BUS.glob("decoder*/dpa_size"), reverse=True):
        if int(decoder.read_text().strip(), 0):
            write(decoder, 0)
    for path, value in _AT_START.items():
        write(path, value)
