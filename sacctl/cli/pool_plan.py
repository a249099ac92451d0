# SPDX-License-Identifier: Apache-2.0
"""``sacctl pool plan``: what could be built of the CXL devices at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sacctl.cli.base import Command
from sacctl.cli.context import App, app
from sacctl.cli.options import Size
from sacctl.errors import UsageError

if TYPE_CHECKING:
    from sacctl.cxl.model import Memdev, Topology
    from sacctl.cxl.plan import PoolPlan

__all__ = ["plan"]

_EXAMPLES = """\
Examples:
  sacctl pool plan
  sacctl pool plan --devices cxl0,cxl1 --size 8G
"""


@click.command(cls=Command, epilog=_EXAMPLES)
@click.option(
    "--devices", metavar="DEV,DEV", help="Only of these; else of all that can be used."
)
@click.option("--size", type=Size(), help="Bytes of all regions together; else all there is.")
@click.option(
    "--granularity", type=Size(), metavar="BYTES", help="Of the interleave: 256 to 16K."
)
def plan(devices: str | None, size: int | None, granularity: int | None) -> None:
    """Show which pool could be made, and change nothing.

    Regions and their ways, granularity, capacity, what stays unused of devices of mixed
    sizes, the bandwidth to expect, and why it is so.
    """
    state = app()
    from sacctl.cli.pool_cxl import check_sizes
    from sacctl.cxl.plan import plan_pool
    from sacctl.cxl.read import read
    from sacctl.render.cxl_pools import plan_parts

    topology = read(state.sysfs)
    chosen, left = _chosen(state, topology, devices)
    check_sizes(size, granularity)
    made = plan_pool(topology, chosen, bytes=size, granularity=granularity)
    record = _record(made, chosen)
    record["left_out"] = left
    state.emit("pool.plan", record, lambda: plan_parts(record))
    names = ",".join(memdev.name for memdev in chosen)
    state.say(f"next: sacctl pool create NAME --devices {names}")


def _chosen(
    state: App, topology: Topology, devices: str | None
) -> tuple[list[Memdev], list[dict[str, str]]]:
    """The devices to plan with, and those that cannot be used, with why."""
    from sacctl.cli.pool_cxl import devices_of, none_there
    from sacctl.cxl.rules import check_device

    if devices is not None:
        return devices_of(state, topology, devices), []
    if not topology.memdevs:
        raise none_there(state, topology, ["pool to plan"], "")
    usable, left = [], []
    for memdev in topology.memdevs:
        try:
            check_device(topology, memdev)
            usable.append(memdev)
        except UsageError as error:
            left.append({"device": memdev.name, "why": error.message})
    if not usable:
        raise UsageError(
            "no device has memory to give: " + "; ".join(one["why"] for one in left),
            hint="sacctl device list",
        )
    return usable, left


def _record(made: PoolPlan, chosen: list[Memdev]) -> dict[str, Any]:
    """The plan as data; sizes in bytes."""
    from sacctl.pool.cxl_spec import divide
    from sacctl.pool.record import SUPERBLOCK

    parts = divide("plan", [region.bytes for region in made.regions], 0, True)
    identity = {memdev.name: memdev.identity for memdev in chosen}
    return {
        "bytes": made.bytes,
        "data_bytes": sum(part[0] - SUPERBLOCK for part in parts),
        "metadata_bytes": parts[0][1],
        "regions": [
            {
                "root": region.root,
                "devices": list(region.order),
                "identities": [identity[name] for name in region.order],
                "ways": region.ways,
                "granularity": region.granularity,
                "bytes": region.bytes,
                "bytes_each": region.bytes_each,
            }
            for region in made.regions
        ],
        "stranded": dict(made.stranded),
        "bandwidth_bytes_per_second": made.bandwidth.bytes_per_second,
        "bandwidth_how": made.bandwidth.how,
        "why": list(made.why),
    }
