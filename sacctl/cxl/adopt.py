# SPDX-License-Identifier: Apache-2.0
"""What is there already, made by firmware or by hand: can a pool have it, and how.

| seen | case | needs |
|---|---|---|
| dax device under device_dax | ready | nothing |
| dax device without a driver | unbound | convert |
| a region that is not enabled | disabled | convert |
| kmem, no memory block online | unused | convert |
| kmem, blocks online, all Movable | movable | force-offline |
| kmem, a block online in another zone | normal | impossible |
| region without a dax device, its range System RAM from boot | system-ram | impossible |
| region without a dax device, for another reason | no-dax | impossible |
| region whose devices have gone, or that was not finished | broken | impossible |
| hmem dax device, no region | as above, with foreign | as above |
| device without an endpoint | no-endpoint | impossible |
| decoders programmed, no region | decode-only | impossible |
| device without a region | unassigned | impossible: make a pool of it |
| another driver or kind | other | impossible |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sacctl.cxl import daxsteps
from sacctl.cxl.autoonline import who_onlines
from sacctl.cxl.driver import ForgetId, Unbind
from sacctl.cxl.guard import Guard
from sacctl.cxl.made import Made
from sacctl.cxl.model import DaxDevice, Memdev, Region, Topology
from sacctl.cxl.offline import BOOT_FIX, Offline, online, report, zones_of
from sacctl.cxl.read_blocks import blocks_of
from sacctl.cxl.regiondax import no_dax
from sacctl.cxl.regiondestroy import OFFLINE_SECONDS
from sacctl.cxl.regionsteps import BindRegion, FindDax
from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.users import RefuseUsed
from sacctl.errors import NotFoundError, RefusedError
from sacctl.pool.steps import Step

__all__ = ["Judgement", "convert", "judge", "release"]

_NEEDS = ("nothing", "convert", "force-offline", "impossible")
FOREIGN = "memory from firmware's tables (hmem) without a CXL region: no device health"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Attributes:
    case: a word of the table above. usable: whether a pool can have it at all.
    needs: "nothing", "convert", "force-offline" or "impossible".
    message, hint: for a person. foreign: an hmem device.
    region: "" where there is none. dax: names of its dax devices, the first one first.
    """

    case: str
    usable: bool
    needs: str
    message: str
    hint: str = ""
    foreign: bool = False
    region: str = ""
    dax: tuple[str, ...] = ()


def judge(topology: Topology, sysfs: Sysfs, name: str) -> Judgement:
    """Of a region, a dax device, or the memdev whose region it is.

    Raises NotFoundError where nothing has the name.
    """
    region, dax = topology.region(name), topology.dax_device(name)
    memdev = topology.memdev(name)
    if region is not None:
        return _region(topology, sysfs, region)
    if dax is not None:
        return _dax(topology, sysfs, dax)
    if memdev is not None:
        return _memdev(topology, sysfs, memdev)
    there = [*(r.name for r in topology.regions), *(d.name for d in topology.dax)]
    raise NotFoundError(
        f"there is no region or dax device '{name}'; there is {', '.join(there) or 'none'}",
        object=name,
        hint="sacctl device topology",
    )


def release(
    sysfs: Sysfs,
    topology: Topology,
    made: Made,
    *,
    force_offline: bool = False,
    seconds: float = OFFLINE_SECONDS,
) -> list[Step]:
    """Steps after which no driver has the dax devices: ready to be split, or bound anew.

    made: as judge found it: region and dax. Raises RefusedError where it is not possible, or
    only with force_offline (memory blocks offline, at most so many seconds each). Needs
    Guard's steps around it.
    """
    steps: list[Step] = []
    if made.region and not made.dax:
        _allowed(judge(topology, sysfs, made.region), made.region, force_offline)
        return [BindRegion(sysfs, made), FindDax(sysfs, made)]
    steps += [RefuseUsed(sysfs, _named(made, index)) for index in range(len(made.dax))]
    for index, name in enumerate(made.dax):
        found = judge(topology, sysfs, name)
        _allowed(found, name, force_offline)
        named = _named(made, index)
        if found.needs == "force-offline":
            steps.append(Offline(sysfs, named, seconds=seconds))
        if found.case != "unbound":
            steps.append(Unbind(sysfs, named))
        if found.case == "ready":
            steps.append(ForgetId(sysfs, named, "device_dax"))
    return steps


def convert(
    sysfs: Sysfs,
    topology: Topology,
    made: Made,
    *,
    force_offline: bool = False,
    seconds: float = OFFLINE_SECONDS,
) -> list[Step]:
    """Steps after which device_dax has all the dax devices, guarded; [] where it has."""
    names = list(made.dax)
    if names and all(judge(topology, sysfs, name).needs == "nothing" for name in names):
        return []
    guard = Guard(sysfs)
    steps = release(sysfs, topology, made, force_offline=force_offline, seconds=seconds)
    which = range(len(names)) if names else (0,)
    return [
        *guard.begin,
        *steps,
        *daxsteps.bind(sysfs, made, "device_dax", tuple(which)),
        *guard.end,
    ]


def _named(made: Made, index: int) -> Callable[[], str]:
    return lambda: made.dax_name(index)


def _allowed(found: Judgement, name: str, force_offline: bool) -> None:
    if found.needs == "impossible" or (found.needs == "force-offline" and not force_offline):
        raise RefusedError(found.message, object=name, hint=found.hint)


def _region(topology: Topology, sysfs: Sysfs, region: Region) -> Judgement:
    name = region.name
    if region.dax:
        found = [_dax(topology, sysfs, d) for n in region.dax if (d := topology.dax_device(n))]
        worst = max(found, key=lambda one: _NEEDS.index(one.needs), default=None)
        if worst is not None:
            return replace(worst, region=name, dax=region.dax)
    if region.mode not in ("ram", ""):
        return _no("other", f"{name} is of {region.mode}, not of volatile memory", region=name)
    if not region.committed:
        gone = sum(not target for target in region.targets)
        why = (
            f"{gone} of its {region.ways} devices {'has' if gone == 1 else 'have'} gone"
            if gone
            else "it was never finished, or a device was unplugged"
        )
        return _no(
            "broken",
            f"{name} is not committed: {why}",
            "of a pool: sacctl pool assemble, once its devices are back; of nobody: "
            f"cxl destroy-region -f {name}, and make a pool of its devices",
            region=name,
        )
    if region.driver != "cxl_region":
        return Judgement(
            "disabled", True, "convert", f"{name} is committed and not enabled", region=name
        )
    error = no_dax(sysfs, name)
    case = "system-ram" if isinstance(error, RefusedError) else "no-dax"
    return _no(case, error.message, error.hint, region=name)


def _dax(topology: Topology, sysfs: Sysfs, dax: DaxDevice) -> Judgement:
    if dax.kind not in ("cxl", "hmem"):
        return _no(
            "other",
            f"{dax.name} is not of CXL memory: fsdax, or a driver's own",
            dax=(dax.name,),
        )
    foreign = dax.kind == "hmem"
    found = _by_driver(topology, sysfs, dax)
    message = f"{found.message} ({FOREIGN})" if foreign else found.message
    return replace(found, message=message, foreign=foreign, region=dax.region, dax=(dax.name,))


def _by_driver(topology: Topology, sysfs: Sysfs, dax: DaxDevice) -> Judgement:
    name = dax.name
    if not dax.bytes:
        return _no("other", f"{name} has no memory", f"daxctl destroy-device {name}")
    if dax.driver == "device_dax":
        return Judgement("ready", True, "nothing", f"{name} is ready: device_dax has it")
    if not dax.driver:
        return Judgement("unbound", True, "convert", f"{name} has no driver")
    if dax.driver != "kmem":
        return _no(
            "other",
            f"{name} is bound to {dax.driver}, whose file system may be mounted",
            f"echo {name} > /sys/bus/dax/drivers/{dax.driver}/unbind, once nothing uses it",
        )
    blocks = blocks_of(sysfs, topology, name)
    who = who_onlines(sysfs)
    by = f"; {who}" if who else ""
    if not online(blocks):
        return Judgement(
            "unused",
            True,
            "convert",
            f"{name} is bound to kmem, not device_dax, and not used: {report(blocks)}",
        )
    if zones_of(blocks) == ["Movable"]:
        return Judgement(
            "movable",
            True,
            "force-offline",
            f"{name} is system RAM: {report(blocks)}{by}",
            f"--force-offline takes them offline first; to keep them offline, {BOOT_FIX}",
        )
    return _no(
        "normal",
        f"{name} is system RAM until the next reboot: {report(blocks)}, and only memory in "
        f"zone Movable can be taken back{by}",
        BOOT_FIX,
    )


def _memdev(topology: Topology, sysfs: Sysfs, memdev: Memdev) -> Judgement:
    name = memdev.name
    if not memdev.endpoint:
        why = memdev.problem or "its driver is missing or failed"
        return _no("no-endpoint", f"{name} has no endpoint: {why}", "dmesg | grep -i cxl")
    regions: Sequence[str] = [d.region for d in memdev.decoders if d.region]
    for region in filter(None, map(topology.region, regions)):
        return _region(topology, sysfs, region)
    if memdev.committed > len(regions):
        return _no(
            "decode-only",
            f"{name} decodes memory without a region: firmware, or the kernel before a kexec, "
            "set it up; it is left alone",
            "reboot, or let firmware make a region of it",
        )
    return _no(
        "unassigned",
        f"{name} has no region: its capacity is unassigned",
        f"sacctl pool create NAME --devices {name}",
    )


def _no(
    case: str, message: str, hint: str = "", *, region: str = "", dax: tuple[str, ...] = ()
) -> Judgement:
    return Judgement(case, False, "impossible", message, hint, region=region, dax=dax)
