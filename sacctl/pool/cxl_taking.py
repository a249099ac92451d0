# SPDX-License-Identifier: Apache-2.0
"""Takes dax devices that are there already for a pool."""

from __future__ import annotations

import os

from sacctl.cxl import adopt as rules
from sacctl.cxl import daxsteps
from sacctl.cxl.driver import ForgetId, Unbind
from sacctl.cxl.guard import Guard
from sacctl.cxl.model import Topology
from sacctl.errors import RefusedError
from sacctl.pool import superblock
from sacctl.pool.attached import Unused
from sacctl.pool.cxl_content import refuse_foreign
from sacctl.pool.cxl_files import open_device
from sacctl.pool.cxl_job import Job
from sacctl.pool.cxl_swapped import Swapped, moved, out_of_place
from sacctl.pool.later import Later
from sacctl.pool.steps import Say, Step

__all__ = ["Taking"]


class Taking:
    """Looks what the memory holds, and divides it where it holds nothing of ours."""

    def __init__(self, job: Job, topology: Topology, say: Say) -> None:
        self._job, self._topology, self._say = job, topology, say
        self._kept = ""

    def uuid(self) -> str:
        """Of the pool that is there already; "" where none is."""
        return self._kept

    def steps(self, needs: str, force_offline: bool) -> list[Step]:
        job = self._job
        made = job.made[0]
        paths = [job.path(name) for name in made.dax]
        steps: list[Step] = [Unused(job.record.name, lambda: paths)]
        if needs != "nothing":
            steps += rules.convert(job.sysfs, self._topology, made, force_offline=force_offline)
        part = job.record.cxl
        assert part is not None
        parts = part.regions[0].parts
        steps.append(Later("look whether a pool is on it", self._look, self._say))
        if len(parts) > 1 and len(made.dax) < 2:
            sizes = " and ".join(f"{size >> 20} MiB" for size in parts)
            what = f"divide {made.dax_name()} into {sizes}"
            # What is known now; a region that is disabled has no dax device yet.
            shown = [step.what for step in self._divide()] if made.dax else []
            steps.append(Later(what, self._divide, self._say, shown))
        return steps

    def _look(self) -> list[Step]:
        made, job = self._job.made[0], self._job
        part = job.record.cxl
        assert part is not None
        found, torn = {}, []
        swapped: list[Swapped] = []
        for name in made.dax:
            path = job.path(name)
            fd = open_device(path)
            try:
                found[name] = superblock.identify(fd)
                block = found[name]
                if block is not None and block.kind == superblock.DATA:
                    swapped += moved(fd, path, block.uuid, part.regions[0])
                elif block is None and superblock.marked(fd):
                    torn.append(name)
                elif block is None:
                    swapped += out_of_place(fd, path, part.regions[0])
            finally:
                os.close(fd)
        if torn:
            raise RefusedError(
                f"{torn[0]} holds a superblock that is damaged, or of another version",
                object=torn[0],
                hint="open it with the sacctl that made it; or, if nobody needs what it holds, "
                "zero the device's first 2 MiB",
            )
        if swapped:
            piece = swapped[0]
            raise RefusedError(
                f"{piece.what.format(pool=f'pool {piece.uuid}')}: its devices, or what they "
                "hold, were swapped",
                object=piece.device,
                hint="put them back in their places; or, if nobody needs that pool, zero the "
                f"first 2 MiB of {piece.path}",
            )
        kinds = {name: block.kind for name, block in found.items() if block}
        meta = next((n for n, kind in kinds.items() if kind == superblock.META), "")
        data = next((n for n, kind in kinds.items() if kind == superblock.DATA), "")
        if not kinds:
            if len(made.dax) > 1:
                raise RefusedError(
                    f"{made.region} is divided into {', '.join(made.dax)}, and no pool is on "
                    "them",
                    object=made.region,
                    hint=f"name one of them: sacctl pool adopt NAME {made.dax[0]}",
                )
            return []
        block = found[meta or data]
        assert block is not None
        if not (meta and data) or len(block.extents) != 1:
            raise RefusedError(
                f"{meta or data} holds a part of pool {block.uuid}, and the rest of it is not "
                f"on {', '.join(made.dax)}",
                object=meta or data,
                hint="assemble that pool from its record; or, if nobody needs it, zero the "
                "device's first 2 MiB",
            )
        refuse_foreign(job.record.name, block.uuid, found)
        self._kept = block.uuid
        made.dax[:] = [data, meta]
        sizes = {n: d.bytes for n in made.dax if (d := self._topology.dax_device(n))}
        region = part.regions[0].with_(parts=(sizes[data], sizes[meta]))
        job.record = job.record.with_(
            cxl=part.with_(regions=(region,)), sizes=(sizes[data],), uuid=block.uuid
        )
        return []

    def _divide(self) -> list[Step]:
        job, made = self._job, self._job.made[0]
        part = job.record.cxl
        assert part is not None
        guard = Guard(job.sysfs)
        name = made.need_dax()
        return [
            *guard.begin,
            Unbind(job.sysfs, lambda: name, expected="device_dax"),
            ForgetId(job.sysfs, lambda: name, "device_dax"),
            *daxsteps.split(job.sysfs, made, part.regions[0].parts),
            *daxsteps.bind(job.sysfs, made, "device_dax", (0, 1)),
            *guard.end,
        ]
