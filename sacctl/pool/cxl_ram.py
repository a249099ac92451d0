# SPDX-License-Identifier: Apache-2.0
"""Pools in mode system-ram: CXL memory as a NUMA node without CPUs, and a tmpfs bound to it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from libsac.sizes import format_size
from sacctl.cxl.offline import block_path, online
from sacctl.cxl.read import read
from sacctl.cxl.read_blocks import blocks_of
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.writes import echo
from sacctl.errors import CtlError, from_os
from sacctl.pool.cxl_job import Job
from sacctl.pool.cxl_spec import meta_bytes
from sacctl.pool.filesteps import CheckPool, FormatPool, MakeFile, Rename, new_name
from sacctl.pool.mounts import mounts
from sacctl.pool.places import Places
from sacctl.pool.steps import Step

__all__ = [
    "WARNING",
    "Mounted",
    "Online",
    "is_mounted",
    "memory_steps",
    "run",
    "usable",
]

WARNING = (
    "memory in system RAM is the kernel's: other programs get it too, pages that a GPU driver "
    "pins may be moved to DRAM, and poison or a vanished device can take more than this pool "
    "with it; use it where device-DAX cannot be had"
)
NODES = "/sys/devices/system/node"


def usable(total: int) -> int:
    """Bytes for data of a pool in so much system RAM: less what the kernel needs to know each
    page (64 bytes), the metadata, and a thirty-second, for a node that is full to the last
    page kills who touches the next one."""
    left = (total - total // 64 - meta_bytes(total)) * 31 // 32
    return max(0, left // (2 << 20) * (2 << 20))


class Online(Step):
    """Puts the memory blocks of kmem's dax devices online in zone Movable, from which they can
    be taken again. Notes the nodes in the job's record."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._done: list[str] = []

    @property
    def what(self) -> str:
        names = ", ".join(made.dax_name() for made in self._job.made)
        return f"echo online_movable > each memory block's state of {names}"

    def apply(self) -> None:
        sysfs, nodes = self._job.sysfs, set()
        topology = read(sysfs)
        for made in self._job.made:
            name = made.need_dax()
            dax = topology.dax_device(name)
            blocks = blocks_of(sysfs, topology, name)
            if dax is None or not blocks:
                raise CtlError(
                    f"no memory block came of {name}",
                    object=name,
                    hint="dmesg | grep -i -e kmem -e hotplug",
                )
            nodes.add(dax.target_node)
            for block in blocks:
                if block in online(blocks):
                    if "Movable" in block.zones.split():
                        continue
                    raise CtlError(
                        f"memory{block.number} of {name} is online in zone {block.zones}: the "
                        "kernel puts memory online by itself",
                        object=name,
                        hint="boot with memhp_default_state=offline",
                    )
                path = block_path(block)
                self._done.append(path)
                _write(sysfs, path, "online_movable")
        record, part = self._job.record, self._job.record.cxl
        assert part is not None
        self._job.record = record.with_(cxl=part.with_(nodes=tuple(sorted(nodes))))

    def undo(self) -> None:
        while self._done:
            path = self._done[-1]
            if self._job.sysfs.get(path).strip() not in ("", "offline"):
                _write(self._job.sysfs, path, "offline")
            self._done.pop()


def _write(sysfs: Sysfs, path: str, value: str) -> None:
    try:
        sysfs.write(path, value)
    except OSError as error:
        raise from_os(error, f"the kernel refused '{echo(path, value)}'") from error


def is_mounted(sysfs: Sysfs, mount: str) -> bool:
    """Whether the pool's tmpfs is there. On a simulated machine it is a plain folder."""
    if sysfs.simulated:
        return Path(mount, "meta").exists()
    return any(one.point == mount and one.type == "tmpfs" for one in mounts())


class Mounted(Step):
    """Mounts the tmpfs, whose pages come from the job's nodes alone."""

    def __init__(self, job: Job, places: Places, size: int) -> None:
        self._job, self._places, self._size = job, places, size
        self._made: list[Path] = []
        self._done = False

    @property
    def _path(self) -> Path:
        part = self._job.record.cxl
        assert part is not None
        return Path(part.mount)

    @property
    def what(self) -> str:
        return " ".join(self._command())

    def _command(self) -> list[str]:
        part = self._job.record.cxl
        assert part is not None
        nodes = ",".join(map(str, part.nodes)) or "NODE"
        options = f"mpol=bind:{nodes},size={self._size},mode=0700,uid={self._places.uid}"
        return ["mount", "-t", "tmpfs", "-o", options, "sac", part.mount]

    def apply(self) -> None:
        path, sysfs = self._path, self._job.sysfs
        self._enough()
        for folder in (*reversed([p for p in path.parents if not p.exists()]), path):
            if not folder.exists():
                folder.mkdir(0o755 if folder != path else 0o700)
                self._made.append(folder)
        if not sysfs.simulated:
            self._done = True
            run(self._command())
        self._places.open_folder(str(path))

    def _enough(self) -> None:
        """Raises CtlError where the nodes have less than will be used."""
        part, sysfs = self._job.record.cxl, self._job.sysfs
        assert part is not None
        found = [_node_bytes(sysfs, node) for node in part.nodes]
        if all(size is not None for size in found):
            have = sum(size or 0 for size in found)
            if have < self._size:
                raise CtlError(
                    f"node {', '.join(map(str, part.nodes))} has {format_size(have)} free, "
                    f"and the pool needs {format_size(self._size)}",
                    object=self._job.record.name,
                    hint="a smaller pool, or --mode devdax",
                )

    def undo(self) -> None:
        self._places.close_folder(str(self._path))
        if self._done and is_mounted(self._job.sysfs, str(self._path)):
            run(["umount", str(self._path)])
        self._done = False
        while self._made:
            self._made[-1].rmdir()
            self._made.pop()


def _node_bytes(sysfs: Sysfs, node: int) -> int | None:
    for line in sysfs.get(f"{NODES}/node{node}/meminfo").splitlines():
        words = line.replace(":", " ").split()
        if "MemFree" in words and words[-2].isdigit():
            return int(words[-2]) << 10
    return None


def run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CtlError(f"there is no program '{command[0]}'") from None
    if done.returncode:
        raise CtlError(
            f"{' '.join(command)} failed: {done.stderr.strip() or done.returncode}",
            object=command[-1],
            hint=f"findmnt {command[-1]}; fuser -vm {command[-1]}",
        )


def memory_steps(job: Job, places: Places) -> tuple[Callable[[], str], list[Step]]:
    """Steps from kmem's dax devices to a pool's files in their memory; and what gives the
    pool's uuid behind them."""
    record = job.record
    meta = meta_bytes(sum(record.sizes))
    form = FormatPool(places, record)

    def uuid() -> str:
        return form.opened.uuid if form.opened else ""

    new = new_name(record.meta)
    return uuid, [
        Online(job),
        Mounted(job, places, sum(record.sizes) + meta + (4 << 20)),
        MakeFile(places, new, meta),
        *(MakeFile(places, p, s) for p, s in zip(record.data, record.sizes, strict=True)),
        form,
        Rename(places, new, record.meta),
        CheckPool(places, record, form),
    ]
