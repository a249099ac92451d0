# SPDX-License-Identifier: Apache-2.0
"""The files of the dax bus, of memory blocks and nodes, and /proc/iomem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cxlsim.memory import Block
from cxlsim.parts import DaxDevice, DaxRegion
from cxlsim.show_ports import uevent
from cxlsim.tree import Entry, Files, action, file, folder, link

if TYPE_CHECKING:
    from cxlsim.kernel import Kernel

__all__ = ["dax_files", "iomem", "memory_files"]

DAX = "/sys/bus/dax"
MEMORY = "/sys/devices/system/memory"
NODE = "/sys/devices/system/node"
_DAX_MAJOR = 253


def dax_files(kernel: Kernel) -> Files:
    bus = kernel.dax

    def set_autoprobe(value: str) -> None:
        bus.autoprobe = value[:1] != "0"

    files: Files = {
        f"{DAX}/devices": folder(),
        f"{DAX}/drivers_autoprobe": file(int(bus.autoprobe), set_autoprobe),
        f"{DAX}/drivers_probe": action(bus.probe),
        f"{DAX}/uevent": action(uevent),
    }
    for driver in bus.drivers:
        at = f"{DAX}/drivers/{driver.name}"
        files |= {
            f"{at}/bind": action(lambda v, d=driver: bus.bind(d, v)),  # type: ignore[misc]
            f"{at}/unbind": action(lambda v, d=driver: bus.unbind(d, v)),  # type: ignore[misc]
            f"{at}/new_id": action(lambda v, d=driver: bus.new_id(d, v)),  # type: ignore[misc]
            f"{at}/remove_id": action(lambda v, d=driver: bus.remove_id(d, v)),  # type: ignore[misc]
            f"{at}/uevent": action(uevent),
        }
    for home in bus.regions:
        files |= _region(kernel, home)
        for device in home.devices:
            files |= _device(kernel, device)
    return files


def _region(kernel: Kernel, home: DaxRegion) -> Files:
    at = f"{home.folder}/dax_region"
    return {
        f"{at}/align": file(2 << 20, mode=0o400),
        f"{at}/available_size": file(home.available),
        f"{at}/create": file(
            home.youngest.name if home.youngest else "",
            lambda v: kernel.dax.create(home, v),
        ),
        f"{at}/delete": action(lambda v: kernel.dax.delete(home, v)),
        f"{at}/id": file(home.id),
        f"{at}/seed": file(home.seed.name if home.seed else ""),
        f"{at}/size": file(home.bytes),
    }


def _device(kernel: Kernel, device: DaxDevice) -> Files:
    path, bus = device.folder, kernel.dax
    number = f"{_DAX_MAJOR}:{device.minor}"
    lines = [
        f"MAJOR={_DAX_MAJOR}",
        f"MINOR={device.minor}",
        f"DEVNAME={device.name}",
        *([f"DRIVER={device.driver}"] if device.driver else []),
        "MODALIAS=dax:t0",
    ]
    start = device.ranges[0][0] if device.ranges else 0
    files: Files = {
        f"{path}/align": file(device.align, lambda v: bus.set_align(device, v)),
        f"{path}/dev": file(number),
        f"{path}/mapping": action(kernel.cannot),
        f"{path}/memmap_on_memory": file(
            int(device.memmap), lambda v: bus.set_memmap(device, v)
        ),
        f"{path}/modalias": file("dax:t0"),
        f"{path}/numa_node": file(-1),
        f"{path}/resource": file(f"{start:#x}", mode=0o400),
        f"{path}/size": file(device.bytes, lambda v: bus.resize(device, v)),
        f"{path}/subsystem": link(DAX),
        f"{path}/target_node": file(device.home.node),
        f"{path}/uevent": file("\n".join(lines), uevent),
        f"{DAX}/devices/{device.name}": link(path),
        f"/sys/dev/char/{number}": link(path),
    }
    offset = 0
    for n, (at, size) in enumerate(device.ranges):
        files[f"{path}/mapping{n}/start"] = file(f"{at:#x}", mode=0o400)
        files[f"{path}/mapping{n}/end"] = file(f"{at + size - 1:#x}", mode=0o400)
        files[f"{path}/mapping{n}/page_offset"] = file(f"{offset:#x}", mode=0o400)
        offset += size // 4096
    if device.driver:
        files[f"{path}/driver"] = link(f"{DAX}/drivers/{device.driver}")
        files[f"{DAX}/drivers/{device.driver}/{device.name}"] = link(path)
    return files


def memory_files(kernel: Kernel) -> Files:
    memory = kernel.memory
    files: Files = {
        f"{MEMORY}/auto_online_blocks": file(memory.policy, memory.set_policy),
        f"{MEMORY}/block_size_bytes": file(f"{memory.block_bytes:x}"),
        f"{MEMORY}/uevent": file("", uevent),
        "/sys/bus/memory/devices": folder(),
    }
    for block in memory.blocks.values():
        files |= _block(kernel, block)
    nodes = memory.nodes
    online = {
        node: [b for b in blocks if b.state == "online"] for node, blocks in nodes.items()
    }
    with_memory = [n for n in sorted(nodes) if online[n]]
    files[f"{NODE}/online"] = file(_list(sorted(nodes)))
    files[f"{NODE}/has_memory"] = file(_list(with_memory))
    files[f"{NODE}/has_normal_memory"] = file(
        _list([n for n in with_memory if any(b.zone != "Movable" for b in online[n])])
    )
    files[f"{NODE}/has_cpu"] = file(0)
    files[f"{NODE}/possible"] = file(f"0-{len(kernel.windows)}")
    for node in sorted(nodes):
        kib = len(online[node]) * memory.block_bytes >> 10
        files[f"{NODE}/node{node}/cpulist"] = file("0-1" if node == 0 else "")
        files[f"{NODE}/node{node}/distance"] = file(
            " ".join("10" if n == node else "20" for n in sorted(nodes))
        )
        files[f"{NODE}/node{node}/meminfo"] = file(
            f"Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:        {kib} kB"
        )
        for block in nodes[node]:
            name = f"memory{block.number}"
            files[f"{NODE}/node{node}/{name}"] = link(f"{MEMORY}/{name}")
            files[f"{MEMORY}/{name}/node{node}"] = link(f"{NODE}/node{node}")
    return files


def _list(numbers: list[int]) -> str:
    """As the kernel writes sets: 0-1,3."""
    parts: list[str] = []
    for n in numbers:
        if parts and int(parts[-1].rpartition("-")[2]) == n - 1:
            parts[-1] = f"{parts[-1].partition('-')[0]}-{n}"
        else:
            parts.append(str(n))
    return ",".join(parts)


def _block(kernel: Kernel, block: Block) -> Files:
    memory, path = kernel.memory, f"{MEMORY}/memory{block.number}"
    return {
        f"{path}/online": file(
            int(block.state == "online"), lambda v: memory.set_online(block, v)
        ),
        f"{path}/phys_device": file(0),
        f"{path}/phys_index": file(f"{block.number:08x}"),
        f"{path}/removable": file(1),
        f"{path}/state": file(block.state, lambda v: memory.set_state(block, v)),
        f"{path}/subsystem": link("/sys/bus/memory"),
        f"{path}/uevent": file("", uevent),
        f"{path}/valid_zones": file(memory.zones(block)),
        f"/sys/bus/memory/devices/memory{block.number}": link(path),
    }


def iomem(kernel: Kernel) -> Entry:
    """/proc/iomem: System RAM, windows, regions, dax devices, memory that kmem has added."""
    rows = [(0x1000, 0x9FBFF, 0, "System RAM"), (0x100000, (1 << 30) - 1, 0, "System RAM")]
    for window in kernel.windows:
        rows.append((window.start, window.start + window.bytes - 1, 0, _window(window.number)))
        for region in window.regions:
            if region.start >= 0:
                end = region.start + region.bytes - 1
                rows.append((region.start, end, 1, region.name))
    for start, size in kernel.memory.firmware:
        rows.append((start, start + size - 1, 2, "System RAM"))
    for start, size in kernel.memory.leaked:
        rows.append((start, start + size - 1, 3, "System RAM (kmem)"))
    for device in kernel.dax.devices:
        hmem = device.home.region is None
        for start, size in device.ranges:
            if hmem and kernel.soft_reserved:
                rows.append((start, start + size - 1, 1, "Soft Reserved"))
            rows.append((start, start + size - 1, 2, device.name))
            if device.driver == "kmem":
                rows.append((start, start + size - 1, 3, "System RAM (kmem)"))
    rows.sort(key=lambda r: (r[0], r[2]))
    text = [f"{'  ' * depth}{a:08x}-{b:08x} : {name}" for a, b, depth, name in rows]
    return file("\n".join(text))


def _window(number: int) -> str:
    return f"CXL Window {number}"
