# SPDX-License-Identifier: Apache-2.0
"""What ``sacctl pool`` does with CXL devices: create, plan, adopt, assemble, destroy."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sacctl.cli.context import App
from sacctl.cli.undoable import undoable
from sacctl.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from sacctl.cxl.model import Memdev, Topology
    from sacctl.cxl.plan import PoolPlan
    from sacctl.pool.create import Created
    from sacctl.pool.cxl_destroy import CxlDestroyed

__all__ = [
    "adopted_lines",
    "check_sizes",
    "create",
    "destroy",
    "devices_of",
    "equivalents",
    "owner",
    "show_plan",
    "split_names",
]


def split_names(devices: str) -> list[str]:
    """The names in "cxl0,cxl1". Raises UsageError."""
    wanted = [word.strip() for word in devices.split(",")]
    if not all(wanted):
        raise UsageError(f"--devices {devices}: names with commas between, such as cxl0,cxl1")
    return wanted


def devices_of(state: App, topology: Topology, devices: str) -> list[Memdev]:
    """The devices that a user named, in his order; says what cxlN means. Raises NotFoundError,
    UsageError."""
    from sacctl.cxl.read import resolve

    wanted = split_names(devices)
    if not topology.memdevs:
        raise none_there(state, topology, wanted, devices)
    found = [resolve(topology, name) for name in wanted]
    meant = [f"{w} means {m.name}" for w, m in zip(wanted, found, strict=True) if _other(w, m)]
    if meant:
        state.say("; ".join(meant))
    return found


def _other(word: str, memdev: Memdev) -> bool:
    return re.fullmatch(r"cxl\d+", word) is not None and word != memdev.name


def none_there(
    state: App, topology: Topology, wanted: Sequence[str], devices: str
) -> NotFoundError:
    """On a machine without any CXL memory device that could be used: the error, with what
    was seen instead."""
    from sacctl.cxl.adopt import judge

    seen = "; ".join(f"{s.name}: {s.why}" for s in topology.skipped[:4])
    hint = "sacctl pool create NAME --emulate 2x1G does the same in ordinary memory"
    for dax in topology.dax:
        found = judge(topology, state.sysfs, dax.name)
        if found.usable:
            force = " --force-offline" if found.needs == "force-offline" else ""
            hint = f"sacctl pool adopt NAME {dax.name}{force}"
    return NotFoundError(
        f"this machine has no CXL memory device, so there is no {' and no '.join(wanted)}"
        + (f" (seen: {seen})" if seen else ""),
        object=devices,
        hint=hint,
    )


def check_sizes(size: int | None, granularity: int | None) -> None:
    """Raises UsageError for a zero, which is not the same as nothing."""
    for option, value in (("--size", size), ("--granularity", granularity)):
        if value == 0:
            raise UsageError(f"{option} 0: leave it out to leave it to sacctl")


def owner(state: App) -> int:
    """User id that a pool's devices are to belong to."""
    from sacctl.pool.cxl_job import owner_of

    link = state.try_link()
    return owner_of(None if link is None or os.geteuid() != 0 else link.peer.uid)


def create(
    state: App,
    name: str,
    devices: str,
    *,
    size: int | None,
    granularity: int | None,
    mode: str,
    room: int,
    dry_run: bool,
) -> Created | None:
    """Makes the pool; None where only the plan was printed."""
    from sacctl.cli.offline import own_records
    from sacctl.cxl.read import read
    from sacctl.pool.cxl_create import create as make
    from sacctl.pool.cxl_ram import WARNING
    from sacctl.pool.cxl_spec import CxlSpec

    check_sizes(size, granularity)
    topology = read(state.sysfs)
    found = devices_of(state, topology, devices)
    identities = tuple(memdev.identity for memdev in found)
    spec = CxlSpec(name, identities, size, granularity, mode, room)
    with undoable(state) as say:
        done = make(
            spec,
            state.sysfs,
            own_records(state),
            daemon=state.try_link(),
            owner=owner(state),
            dry_run=dry_run,
            say=say,
        )
    if mode == "system-ram" and done.made.created:
        state.say(f"note: {WARNING}")
    if not dry_run:
        return done.made
    if not done.made.created:
        state.say(f"pool {name} is there already, the same")
    lines = equivalents(done.plan, done.made, mode) if done.plan else []
    show_plan(state, done.made.steps, lines, done.plan.why if done.plan else ())
    return None


def equivalents(plan: PoolPlan, made: Created, mode: str) -> list[str]:
    """The lines for cxl and daxctl that do the same."""
    from sacctl.cxl import equivalents as of

    part = made.record.cxl
    assert part is not None
    driver = "kmem" if mode == "system-ram" else "device_dax"
    names = [step.split()[1] for step in made.steps if step.endswith("/create_ram_region")]
    lines: list[str] = []
    for number, (region, recorded) in enumerate(zip(plan.regions, part.regions, strict=True)):
        sizes = recorded.parts if driver == "device_dax" else ()
        name = names[number] if number < len(names) else ""
        lines += of.create(region, region=name, sizes=sizes, driver=driver)
    return lines


def adopted_lines(state: App, made: Created) -> list[str]:
    """As equivalents(), of an adoption."""
    from sacctl.cxl import adopt
    from sacctl.cxl import equivalents as of
    from sacctl.cxl.read import read

    part = made.record.cxl
    region = part.regions[0] if part is not None else None
    if not made.created or region is None or not region.dax:
        return []
    name = region.dax[0]
    found = adopt.judge(read(state.sysfs), state.sysfs, name)
    lines = [] if found.needs == "nothing" else of.convert(name)
    if len(region.parts) > 1 and len(region.dax) == 1:
        data, meta = region.parts
        number = name.removeprefix("dax").partition(".")[0]
        lines += [
            f"daxctl disable-device {name}",
            f"daxctl reconfigure-device -s {data} {name}",
            f"daxctl create-device -r {number} -s {meta}",
            f"daxctl reconfigure-device -m devdax {name}",
            f"daxctl reconfigure-device -m devdax dax{number}.1",
        ]
    return lines


def show_plan(
    state: App, steps: Iterable[str], lines: Sequence[str], why: Sequence[str] = ()
) -> None:
    """What --dry-run prints: the steps, then the same for cxl and daxctl as comments."""
    if state.output == "json":
        from sacctl.render.output import to_json

        values = {"steps": list(steps), "equivalent": list(lines), "why": list(why)}
        sys.stdout.write(to_json("plan", values))
        return
    from sacctl.render.quantities import clean

    listed = list(steps)
    if lines:
        listed += ["# the regions and dax devices, made with cxl and daxctl:"]
        listed += [f"#   {line}" for line in lines]
    sys.stdout.write("".join(f"{clean(step)}\n" for step in listed))
    for reason in why:
        state.more(reason)


def destroy(state: App, name: str, **options: Any) -> CxlDestroyed:
    """Destroys the pool, or plans it (dry_run)."""
    from sacctl.cli.offline import own_records
    from sacctl.pool.cxl_destroy import destroy as remove

    with undoable(state) as say:
        return remove(
            name,
            state.sysfs,
            own_records(state),
            daemon=state.try_link(),
            say=say,
            **options,
        )
