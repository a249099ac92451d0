# SPDX-License-Identifier: Apache-2.0
"""All administration operations by name."""

from __future__ import annotations

from sacctl.daemon import ops_client, ops_daemon, ops_namespace, ops_pool, ops_stats
from sacctl.daemon.admin import Handler

__all__ = ["HANDLERS"]

HANDLERS: dict[str, Handler] = {
    **ops_daemon.HANDLERS,
    **ops_pool.HANDLERS,
    **ops_namespace.HANDLERS,
    **ops_client.HANDLERS,
    **ops_stats.HANDLERS,
}
