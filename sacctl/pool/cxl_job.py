# SPDX-License-Identifier: Apache-2.0
"""A CXL pool under change: its record, with the names that the kernel gave meanwhile."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass, field

from sacctl import paths
from sacctl.cxl.made import Made
from sacctl.cxl.model import Topology
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import DeniedError
from sacctl.pool.boot import boot_id
from sacctl.pool.cxl_files import has_meta_file
from sacctl.pool.record import Record

__all__ = ["Job", "before", "meta_folders", "need_root", "owner_of", "system_user"]

USER = "sac"  # that the daemon runs as where it is installed as a service


@dataclass(slots=True)
class Job:
    """What the steps of one change share. made: one for each of the record's regions; the
    steps fill them. noted: writes the record with what is known by now, once it was written."""

    sysfs: Sysfs
    record: Record
    made: list[Made] = field(default_factory=list)
    uuid: str = ""
    noted: Callable[[], None] = lambda: None

    def now(self) -> Record:
        """The record with what is known by now. Placeholders stand for what is not."""
        record, part = self.record, self.record.cxl
        assert part is not None
        regions = tuple(
            region.with_(region=made.region or region.region, dax=tuple(made.dax) or region.dax)
            for region, made in zip(part.regions, self.made, strict=True)
        )
        part = part.with_(regions=regions, boot=boot_id(self.sysfs))
        record = record.with_(cxl=part, uuid=self.uuid or record.uuid)
        if part.mode != "devdax" or not all(
            len(region.dax) >= len(region.parts) for region in regions
        ):
            return record
        data = tuple(self.path(region.dax[0]) for region in regions)
        meta = record.meta if has_meta_file(record) else self.path(regions[0].dax[1])
        return record.with_(meta=meta, data=data)

    def path(self, dax: str) -> str:
        """Of a device's node."""
        return str(self.sysfs.at(f"/dev/{dax}"))


def need_root(sysfs: Sysfs, command: str) -> None:
    """Raises DeniedError where this process may not write sysfs. command: the same with sudo
    is the hint."""
    if not sysfs.simulated and os.geteuid() != 0:
        raise DeniedError(
            "only root may change CXL regions and DAX devices", hint=f"sudo {command}"
        )


def owner_of(peer: int | None) -> int:
    """User id that a pool's devices are to belong to: the running daemon's, else the one that
    the service runs as, where it is installed; this process's where it is not root."""
    if os.geteuid() != 0:
        return os.geteuid()
    return system_user() if peer is None else peer


def system_user() -> int:
    """Of the daemon as a service; root where there is none."""
    try:
        return pwd.getpwnam(USER).pw_uid
    except KeyError:
        return 0


def before(topology: Topology) -> tuple[str, ...]:
    """Names of regions, of decoders in use and of dax devices: what is there beyond these
    after a creation that was cut off belongs to it."""
    decoders = [
        decoder.name
        for memdev in topology.memdevs
        for decoder in memdev.decoders
        if decoder.dpa_bytes or decoder.region
    ]
    names = [r.name for r in topology.regions] + decoders + [d.name for d in topology.dax]
    return tuple(names)


def meta_folders(sysfs: Sysfs, name: str) -> tuple[str, ...]:
    """Folders to make for a metadata file, outer first."""
    folder = sysfs.at(str(paths.meta_dir(name)))
    missing = [p for p in folder.parents if p != sysfs.root and sysfs.root in p.parents]
    made = [str(p) for p in reversed(missing) if not p.exists() or p == folder.parent]
    return (*made, str(folder))
