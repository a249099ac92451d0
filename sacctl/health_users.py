# SPDX-License-Identifier: Apache-2.0
"""Checks of those who use pools: namespaces and clients."""

from __future__ import annotations

from sacctl.health_sight import Findings, Sight, finding

__all__ = ["clients", "namespaces"]

LOST_MS = 60_000
FULL = 0.95


# --------------------------------------------------------------------- the namespaces


def namespaces(sight: Sight) -> Findings:
    free = {pool["name"]: pool["free_bytes"] for pool in sight.pools}
    slab = {pool["name"]: pool["slab_bytes"] for pool in sight.pools}
    for space in sight.namespaces:
        on = f"{space['pool']}/{space['name']}"
        if space["state"] == "damaged":
            yield finding(
                "SAC301",
                on,
                f"it is damaged: {space['reason']}",
                f"sacctl namespace destroy {space['name']} --pool {space['pool']}; its pages "
                "are lost",
            )
            continue
        held = space["pinned"] + space["reserved"] + space["quarantined"]
        there = space["pages"] + space["tails"] + space["reserved"] + space["quarantined"]
        quota, one = space["quota_bytes"], slab.get(space["pool"], 0)
        can_grow = free.get(space["pool"], 0) >= one and (
            not quota or space["assigned_bytes"] + one <= quota
        )
        if there and held >= FULL * there and not can_grow:
            yield finding(
                "SAC302",
                on,
                f"{held} of {there} page parts are pinned, being written or out of use: new "
                "pages find no room",
                f"sacctl namespace show {space['name']} --pool {space['pool']}",
            )
        if space["quarantined"]:
            yield finding(
                "SAC303",
                on,
                f"{space['quarantined']} page parts are out of use: reservations that expired "
                "before their writer ended, or dead memory",
                "sacctl client list",
            )


# ------------------------------------------------------------------------ the clients


def clients(sight: Sight) -> Findings:
    for client in sight.clients:
        on = f"client {client['id'][:8]}"
        who = f"{client['name']} (process {client['pid']}, user {client['uid']})"
        held = client["pinned"] + client["reservations"]
        if client["evicted"]:
            yield finding(
                "SAC402",
                on,
                f"{who} was evicted and still runs, holding {held} pages",
                f"sacctl client evict {client['id'][:8]} --kill",
            )
        elif not client["connected"] and client["lost_ms"] >= LOST_MS:
            code = "SAC401" if held else "SAC403"
            yield finding(
                code,
                on,
                f"{who} lives, but its connection has been lost for "
                f"{client['lost_ms'] // 1000} s; it holds {held} pages",
                f"sacctl client evict {client['id'][:8]}" if held else "",
            )
