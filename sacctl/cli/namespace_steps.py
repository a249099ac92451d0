# SPDX-License-Identifier: Apache-2.0
"""What ``sacctl namespace ... --dry-run`` prints: the steps that the daemon would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sacctl.records import HolderRecord, NamespaceRecord
from sacctl.render.quantities import size

if TYPE_CHECKING:
    from libsac.layout import Layout

__all__ = ["create", "destroy", "flush", "resize", "verify"]


def _quota(quota: int) -> str:
    return size(quota) if quota else "none"


def _label(space: NamespaceRecord) -> str:
    return f"namespace {space['pool']}/{space['name']}"


def create(
    where: str, name: str, layout: Layout, given: str, options: Mapping[str, Any]
) -> list[str]:
    """The namespace that would be there then."""
    kept = [word for word in ("checksum", "token_ids") if options[word]]
    steps = [f"make namespace {where}/{name}, owned by who runs this, mode {options['mode']}"]
    page = f"{layout.page_tokens} tokens and {size(layout.page_bytes)} a page"
    steps.append(f"layout {given}: {len(layout.planes)} planes, {page}")
    how = f"policy {options['policy']}, keys {options['key_scheme']}"
    steps.append(f"quota {_quota(options['quota'])}, {how}")
    if kept:
        steps.append(f"keep with each page: {', '.join(kept)}")
    return steps


def resize(space: NamespaceRecord, quota: int) -> list[str]:
    """The change, and what it costs."""
    old = _quota(space["quota_bytes"])
    steps = [f"set the quota of {_label(space)} from {old} to {_quota(quota)}"]
    held = space["assigned_bytes"]
    if quota and held > quota:
        steps.append(f"evict pages until {size(held - quota)} of {size(held)} are given back")
    return steps


def flush(space: NamespaceRecord) -> list[str]:
    """What would go, and what would not."""
    steps = [f"evict {space['pages']} pages and {space['tails']} tails of {_label(space)}"]
    if space["pinned"] or space["reserved"]:
        held = f"{space['pinned']} pinned parts and {space['reserved']} being written"
        steps.append(f"leave {held}")
    return steps


def verify(space: NamespaceRecord) -> list[str]:
    """What would be read."""
    what = "header and rows" if space["checksum"] else "header (no checksum of rows is kept)"
    return [
        f"check {what} of each of {space['pages']} pages of {_label(space)}",
        "drop pages that are wrong",
    ]


def destroy(space: NamespaceRecord, holders: list[HolderRecord]) -> list[str]:
    """What would go."""
    steps = [
        f"remove {_label(space)} with {space['pages']} pages",
        f"give {size(space['assigned_bytes'])} back to pool {space['pool']}",
        "scrub them before another namespace gets them",
    ]
    if holders:
        who = ", ".join(f"{h['name']} ({h['pid']})" for h in holders)
        steps.insert(0, f"refuse, as long as clients are attached: {who}")
    return steps
