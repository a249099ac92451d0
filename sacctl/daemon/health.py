# SPDX-License-Identifier: Apache-2.0
"""Health as the daemon sees it: its pools, namespaces and clients, and the pools' devices."""

from __future__ import annotations

import os
import resource

from sacctl import health
from sacctl.cxl.condition import Condition
from sacctl.daemon.describe import damaged_record, namespace_record, namespaces, pool_record
from sacctl.daemon.log import log
from sacctl.daemon.service import Service
from sacctl.errors import CtlError
from sacctl.health_devices import look
from sacctl.records import HealthRecord, PoolRecord

__all__ = ["daemon_health"]


def daemon_health(service: Service, attached: dict[str, int]) -> HealthRecord:
    """All checks, with what the daemon itself can see. attached: clients by pool."""
    spaces = []
    pools = service.pools.all()
    metadata: dict[str, int] = {}
    for served in pools:
        if served.pool is None or served.state == "lost":
            continue
        metadata[served.name] = served.pool.free_metadata_bytes
        for name, info, counters, damage in namespaces(served.pool):
            if info is None or counters is None:
                spaces.append(damaged_record(served.name, name, damage))
            else:
                spaces.append(namespace_record(served.name, info, counters))
    records = [pool_record(s, attached.get(s.name, 0)) for s in pools]
    return health.judge(
        health.Sight(
            daemon=service.record(),
            pools=records,
            namespaces=spaces,
            clients=service.clients.records(),
            free_metadata=metadata,
            open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            room=_room,
            devices=_devices(service, records),
        )
    )


def _devices(service: Service, pools: list[PoolRecord]) -> list[Condition]:
    try:
        return look(service.sysfs, pools, service.history)
    except (CtlError, OSError, ValueError) as error:
        log.warning(f"the devices of the pools cannot be looked at: {error}")
        return []


def _room(path: str) -> int | None:
    """Bytes that the file system of a file has left for us; None: not to be known."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
