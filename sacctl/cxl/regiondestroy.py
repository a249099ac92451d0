# SPDX-License-Identifier: Apache-2.0
"""Takes a region apart, so that nothing of it stays allocated.

All of it can be undone up to the last write, which deletes the region: a failure before that
leaves region and dax devices as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sacctl.cxl.driver import ForgetId, Unbind, driver_of
from sacctl.cxl.guard import Guard
from sacctl.cxl.model import Region, Topology
from sacctl.cxl.offline import BOOT_FIX, Offline, RefuseOnline, online, refusal
from sacctl.cxl.read_blocks import blocks_of
from sacctl.cxl.regiondax import DAX_WAIT, dax_of, dax_ready
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.targets import AttachAgain, Detach
from sacctl.cxl.users import RefuseUsed
from sacctl.cxl.writes import Write, wait_for
from sacctl.errors import NotFoundError, RefusedError
from sacctl.pool.steps import Step

__all__ = ["OFFLINE_SECONDS", "destroy", "free_dpa"]

CXL = "/sys/bus/cxl/devices"
DAX = "/sys/bus/dax/devices"
DRIVER = "/sys/bus/cxl/drivers/cxl_region"
OFFLINE_SECONDS = 10.0  # for a memory block


def destroy(
    sysfs: Sysfs,
    topology: Topology,
    region: str,
    *,
    force_offline: bool = False,
    allow_leak: bool = False,
    seconds: float = OFFLINE_SECONDS,
    whose: Callable[[str], str] = lambda region: "",
) -> list[Step]:
    """Steps that give back all that a region has: drivers, dax devices, decoders, memory.

    The region may be one that was never finished, or whose devices have gone.

    Args:
        force_offline: memory blocks that are online are taken offline, each within seconds.
        allow_leak: what cannot go offline is lost until the next reboot (kernels before 7).
        whose: the pool that has a region, "" where none has: for errors.

    Raises NotFoundError; RefusedError: memory blocks are online, or a region behind it on the
    same devices must be destroyed first. The steps raise RefusedError where a process has a
    dax device open: the kernel would take it away.
    """
    found = topology.region(region)
    if found is None:
        raise NotFoundError(
            f"there is no region '{region}'", object=region, hint="sacctl device topology"
        )
    _check_last(topology, found, whose)
    guard = Guard(sysfs)
    steps: list[Step] = [RefuseUsed(sysfs, _just(name)) for name in found.dax]
    steps += guard.begin
    for name in reversed(found.dax):
        steps += _released(
            sysfs, topology, name, force_offline=force_offline, leak=allow_leak, limit=seconds
        )
    steps += _merged(sysfs, found)
    at = f"{CXL}/{region}"
    if found.driver:
        steps.append(UnbindRegion(sysfs, region))
    if found.committed:
        steps.append(Write(sysfs, "commit", f"{at}/commit", "0", "1"))
    targets = [(i, t) for i, t in enumerate(found.targets) if t]
    if targets:
        steps.append(AttachAgain(sysfs, region, found.targets))
    steps += [Detach(sysfs, region, i) for i, _ in reversed(targets)]
    steps += free_dpa(sysfs, [target for _, target in reversed(targets)])
    return [*steps, *guard.end, DeleteRegion(sysfs, found.root, region)]


def free_dpa(sysfs: Sysfs, decoders: Sequence[str]) -> list[Step]:
    """Steps that give back the devices' memory that decoders without a region hold. The last
    decoder of a device must come first."""
    return [FreeDpa(sysfs, decoder) for decoder in decoders]


def _check_last(topology: Topology, region: Region, whose: Callable[[str], str]) -> None:
    """Decoders of a device are given back in decreasing order."""
    for target in filter(None, region.targets):
        owner = topology.owner_of(target)
        names = [d.name for d in owner.decoders] if owner else []
        behind = owner.decoders[names.index(target) + 1 :] if owner else ()
        later = next((d for d in behind if d.dpa_bytes or d.region), None)
        if owner and later:
            other = later.region or f"the memory of {later.name}"
            pool = whose(later.region) if later.region else ""
            of = f" of pool '{pool}'" if pool else ""
            raise RefusedError(
                f"{region.name} cannot be destroyed before {other}{of}: {owner.name} gives its "
                f"decoders back in decreasing order, and {later.name} is behind {target}",
                object=region.name,
                hint=f"sacctl pool destroy {pool} first" if pool else f"destroy {other} first",
            )


def _released(
    sysfs: Sysfs,
    topology: Topology,
    name: str,
    *,
    force_offline: bool,
    leak: bool,
    limit: float,
) -> list[Step]:
    """A dax device without a driver."""
    driver = driver_of(sysfs, name)
    steps: list[Step] = []
    if driver == "kmem":
        blocks = blocks_of(sysfs, topology, name)
        if leak and _major(topology.kernel) >= 7:
            raise RefusedError(
                f"kernel {topology.kernel} panics when memory that is online is taken away: "
                "--allow-leak is refused",
                object=name,
                hint=BOOT_FIX,
            )
        if online(blocks) and not (force_offline or leak):
            raise refusal(name, blocks)
        if online(blocks) and force_offline:
            steps.append(Offline(sysfs, _just(name), seconds=limit, leak=leak))
        elif not leak:
            steps.append(RefuseOnline(sysfs, _just(name)))
    if driver:
        steps.append(Unbind(sysfs, _just(name), leak=leak))
        if driver == "device_dax":
            steps.append(ForgetId(sysfs, _just(name), driver))
    return steps


def _merged(sysfs: Sysfs, region: Region) -> list[Step]:
    """One dax device of the region's whole size, as enabling the region makes it: so that
    disabling it can be undone."""
    if not region.dax or not region.dax[0].endswith(".0"):
        return []
    steps: list[Step] = []
    for name in reversed(region.dax[1:]):
        size = sysfs.number(f"{DAX}/{name}/size")
        steps.append(Write(sysfs, "dax-size", f"{DAX}/{name}/size", "0", str(size)))
        steps.append(DeleteDax(sysfs, name))
    first = region.dax[0]
    size = sysfs.number(f"{DAX}/{first}/size")
    steps.append(Write(sysfs, "dax-size", f"{DAX}/{first}/size", str(region.bytes), str(size)))
    return steps


def _just(name: str) -> Callable[[], str]:
    return lambda: name


def _major(kernel: str) -> int:
    digits = kernel.split(".", 1)[0]
    return int(digits) if digits.isdigit() else 0


class DeleteDax(Write):
    """A dax device without memory. Undone, one is made, which gets the same name."""

    def __init__(self, sysfs: Sysfs, name: str) -> None:
        folder = sysfs.real(f"{DAX}/{name}").rpartition("/")[0]
        self._create = f"{folder}/dax_region/create"
        super().__init__(sysfs, "dax-delete", f"{folder}/dax_region/delete", name)

    def undo(self) -> None:
        if self.done and self.sysfs.exists(self._create):
            self.write(self._create, "1")
        self.done = False


class UnbindRegion(Write):
    """Its dax device goes with it. Undone, it is there again."""

    def __init__(self, sysfs: Sysfs, region: str) -> None:
        super().__init__(sysfs, "bind", f"{DRIVER}/unbind", region)
        self._region = region

    def apply(self) -> None:
        super().apply()
        wait_for(lambda: not dax_of(self.sysfs, self._region), DAX_WAIT)

    def undo(self) -> None:
        if self.done and not self.sysfs.target(f"{CXL}/{self._region}/driver"):
            self.write(f"{DRIVER}/bind", self._region)
            wait_for(lambda: dax_ready(self.sysfs, self._region), DAX_WAIT)
        self.done = False


class FreeDpa(Write):
    """Nothing where the decoder has nothing, or has gone with its device."""

    _size: int

    def __init__(self, sysfs: Sysfs, decoder: str) -> None:
        at = f"{CXL}/{decoder}"
        super().__init__(sysfs, "dpa", f"{at}/dpa_size", "0", back=lambda: f"{self._size:#x}")
        self._mode, self._size, self._before = f"{at}/mode", 0, "ram"

    def apply(self) -> None:
        self._size = self.sysfs.number(self.path)
        self._before = self.sysfs.get(self._mode).strip()
        if self._size:
            super().apply()

    def undo(self) -> None:
        if self.done and self.sysfs.get(self._mode).strip() != self._before:
            self.write(self._mode, self._before)
        super().undo()


class DeleteRegion(Write):
    final = True

    def __init__(self, sysfs: Sysfs, root: str, region: str) -> None:
        super().__init__(sysfs, "create", f"{CXL}/{root}/delete_region", region)
