# SPDX-License-Identifier: Apache-2.0
"""Isolated namespaces: a small pool of its own for one namespace, on dax devices split from
the room of another pool's region. Nobody else's descriptors lead to its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sacctl.cxl.made import Made
from sacctl.cxl.read import read
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, DeniedError, NotFoundError, RefusedError
from sacctl.pool.boot import boot_id
from sacctl.pool.create import Created
from sacctl.pool.cxl_create import blank, finish
from sacctl.pool.cxl_destroy import destroy
from sacctl.pool.cxl_job import Job, before, need_root
from sacctl.pool.cxl_record import CxlPart
from sacctl.pool.cxl_regions import Wanted, making
from sacctl.pool.cxl_room import room_region
from sacctl.pool.cxl_spec import meta_bytes
from sacctl.pool.places import Places
from sacctl.pool.record import Record, Records
from sacctl.pool.recordsteps import Daemon, TakeRecords, records_taken, take_back
from sacctl.pool.spec import SLAB, round_up
from sacctl.pool.steps import Say, Step

__all__ = ["create", "find", "pool_of"]


def pool_of(parent: str, namespace: str) -> str:
    """The name of an isolated namespace's pool."""
    return f"{parent}.{namespace}"


def find(records: Records, parent: str, namespace: str) -> Record | None:
    """The record of an isolated namespace's pool; None where it is no isolated one."""
    try:
        record = records.find(pool_of(parent, namespace))
    except CtlError:
        return None
    if record is None or record.cxl is None or record.cxl.parent != parent:
        return None
    return record


def create(
    parent: str,
    namespace: str,
    quota: int,
    options: Mapping[str, Any],
    sysfs: Sysfs,
    records: Records,
    daemon: Daemon,
    *,
    owner: int = 0,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> Created:
    """Makes the devices, a pool on them and the namespace in it, or takes all of it back.

    quota: bytes that the namespace can hold. options: further arguments of the daemon's
    namespace.create. Raises RefusedError where the parent has no room left, or is no pool of
    DAX devices; NotFoundError where it is not assembled; else as cxl_create.create.
    """
    if not dry_run:
        need_root(sysfs, f"sacctl namespace create {namespace} --isolated ...")
    name = pool_of(parent, namespace)
    _with_room(records, parent)
    seen = records.find(name)
    if seen is not None and seen.state in ("creating", "destroying") and not dry_run:
        destroy(name, sysfs, records, daemon=daemon, say=say)
    elif seen is not None:
        raise CtlError(
            f"there is a pool '{name}' already, with a record of its own",
            object=name,
            hint=f"sacctl pool show {name}; sacctl namespace destroy {namespace} -p {parent}",
        )
    take = TakeRecords(records, name, None)
    with records_taken(take, say, dry_run=dry_run), Places(owner) as places:
        job, build = _plan(sysfs, _with_room(records, parent), parent, name, quota, owner)
        make = MakeNamespace(daemon, name, namespace, options)
        return finish(
            job,
            records,
            take,
            places,
            build,
            daemon,
            dry_run=dry_run,
            say=say,
            more=lambda: [make],
        )


def _with_room(records: Records, parent: str) -> CxlPart:
    """Of a pool that leaves room. Raises NotFoundError, RefusedError."""
    of = records.get(parent).cxl
    if of is None or of.mode != "devdax" or of.parent or not of.room:
        raise RefusedError(
            f"pool '{parent}' has no room for isolated namespaces",
            object=parent,
            hint="it is left by: sacctl pool create NAME --devices ... --isolated-room SIZE",
        )
    return of


def _plan(
    sysfs: Sysfs, of: CxlPart, parent: str, name: str, quota: int, owner: int
) -> tuple[Job, list[Step]]:
    """The new pool's job, and the steps to its devices."""
    topology = read(sysfs)
    boot = boot_id(sysfs)
    region = room_region(topology, of.regions[0], parent, of.boot == boot)
    data = round_up(quota, SLAB) + SLAB
    part = of.regions[0].with_(
        made=False,
        region=region.name,
        dax=(),
        parts=(data, meta_bytes(data)),
        whole=0,
        weight=1,
    )
    cxl = CxlPart((part,), boot=boot, parent=parent, before=before(topology))
    job = Job(sysfs, blank(sysfs, name, cxl, owner), [Made(region.name)])
    return job, making(job, [Wanted(None, region.name, part)])


class MakeNamespace(Step):
    """The daemon makes the namespace in its own pool."""

    def __init__(
        self, daemon: Daemon, pool: str, name: str, options: Mapping[str, Any]
    ) -> None:
        self._daemon, self._pool, self._name = daemon, pool, name
        self._options = dict(options)
        self._begun = False

    @property
    def what(self) -> str:
        return f"make namespace {self._pool}/{self._name}"

    def apply(self) -> None:
        self._begun = True
        self._daemon.call("namespace.create", pool=self._pool, name=self._name, **self._options)

    def undo(self) -> None:
        if not self._begun:
            return
        self._begun = False
        try:
            take_back(self._daemon, "namespace.destroy", pool=self._pool, name=self._name)
        except (NotFoundError, DeniedError):
            return
