# SPDX-License-Identifier: Apache-2.0
"""What the names in braces mean on the machine at hand.

Devices are counted in the order of their serial numbers. Looked up anew for each step, since
a device that comes back may have other names.
"""

from __future__ import annotations

import re

from sacctl.cxl.sysfs import Sysfs

__all__ = ["Names", "bare"]

CXL = "/sys/bus/cxl/devices"
DAX = "/sys/bus/dax"
BLOCKS = "/sys/devices/system/memory"


def bare(path: str) -> str:
    """A path of the script: below the cxl bus unless it is a whole one."""
    return path if path.startswith("/") else f"{CXL}/{path}"


class Names:
    """{d0} first decoder of the first device, {d0.1} its second, {mem0}, {pci0}, {bridge0},
    {p0} the first decoder of the port above it;
    {wide} the window with most ways, {near} and {far} a x1 window of the first and of the last
    device's bridge; {each} bytes of a device, {2*each}; after ``set region``: {region},
    {dax}, {dax1}, {home} its dax_region's attributes, {block0} its first memory block."""

    def __init__(self, sysfs: Sysfs) -> None:
        self.sysfs = sysfs
        self.given: dict[str, str] = {}

    # ------------------------------------------------------------------ the machine

    def devices(self) -> list[tuple[int, str, str]]:
        """(serial, memN, endpointN) in the order of serials."""
        found = []
        for name in self.sysfs.names(CXL):
            if name.startswith("endpoint"):
                path = self.sysfs.real(f"{CXL}/{name}/uport")
                serial = self.sysfs.number(f"{path}/serial")
                found.append((serial, path.rpartition("/")[2], name))
        return sorted(found)

    def bridge(self, endpoint: str) -> str:
        """The dport number of the root that an endpoint is below."""
        path = self.sysfs.real(f"{CXL}/{endpoint}/uport")
        for name in self.sysfs.names(f"{CXL}/root0"):
            if name.startswith("dport"):
                at = self.sysfs.real(f"{CXL}/root0/{name}")
                if path.startswith(f"{at}/"):
                    return name.removeprefix("dport")
        return ""

    def windows(self) -> list[tuple[str, int, list[str]]]:
        """(name, ways, targets) of the root decoders."""
        found = []
        for name in self.sysfs.names(f"{CXL}/root0"):
            if re.fullmatch(r"decoder0\.\d+", name):
                targets = self.sysfs.get(f"{CXL}/{name}/target_list").split(",")
                ways = self.sysfs.number(f"{CXL}/{name}/interleave_ways")
                found.append((name, ways, targets))
        return found

    def facts(self) -> dict[str, str]:
        """What sections may need."""
        devices = self.devices()
        bridges = {self.bridge(endpoint) for _, _, endpoint in devices}
        drivers = self.sysfs.names(f"{DAX}/drivers")
        return {
            "devices": str(len(devices)),
            "bridges": str(len(bridges)),
            "ways": str(max((w for _, w, _ in self.windows()), default=0)),
            "granularity": self.sysfs.get(f"{CXL}/{self._wide()}/interleave_granularity"),
            "kmem": "yes" if "kmem" in drivers else "no",
        }

    def _wide(self) -> str:
        return max(self.windows(), key=lambda w: w[1])[0]

    # -------------------------------------------------------------------- the names

    def fill(self, text: str) -> str:
        """The text with its names replaced. Raises KeyError for one that means nothing."""
        return re.sub(r"\{([^}]*)\}", lambda m: self._one(m[1]), text)

    def _one(self, name: str) -> str:
        if name in self.given:
            return self.given[name]
        times = re.fullmatch(r"(?:(\d+)\*)?each", name)
        if times:
            size = self.sysfs.number(f"{CXL}/{self.devices()[0][1]}/ram/size")
            return f"{int(times[1] or 1) * size:#x}"
        found = re.fullmatch(r"(d|mem|pci|bridge|p)(\d+)(?:\.(\d+))?", name)
        if found:
            return self._of_device(found[1], int(found[2]), found[3] or "0")
        if name == "wide":
            return self._wide()
        if name in ("near", "far"):
            bridge = self.bridge(self.devices()[0 if name == "near" else -1][2])
            return next(n for n, ways, to in self.windows() if ways == 1 and to == [bridge])
        if name == "root":
            return f"{CXL}/root0"
        region = self.given["region"]
        number = region.removeprefix("region")
        block = re.fullmatch(r"block(\d+)", name)
        if block:
            return self.blocks()[int(block[1])]
        return {
            "dax": f"dax{number}.0",
            "dax1": f"dax{number}.1",
            "dax2": f"dax{number}.2",
            "home": f"{CXL}/dax_region{number}/dax_region",
        }[name]

    def _of_device(self, what: str, n: int, decoder: str) -> str:
        _, memdev, endpoint = self.devices()[n]
        if what == "d":
            return f"decoder{endpoint.removeprefix('endpoint')}.{decoder}"
        if what == "mem":
            return memdev
        if what == "p":
            port = self.sysfs.real(f"{CXL}/{endpoint}").split("/")[-2]
            return f"decoder{port.removeprefix('port')}.{decoder}"
        if what == "bridge":
            return self.bridge(endpoint)
        return self.sysfs.real(f"{CXL}/{memdev}").split("/")[-2]

    def blocks(self) -> list[str]:
        """Folders of the memory blocks that the region's addresses have."""
        region = f"{CXL}/{self.given['region']}"
        start = self.sysfs.number(f"{region}/resource")
        size = self.sysfs.number(f"{region}/size")
        each = int(self.sysfs.read(f"{BLOCKS}/block_size_bytes"), 16)
        return [f"{BLOCKS}/memory{n}" for n in range(start // each, (start + size) // each)]
