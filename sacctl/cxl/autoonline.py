# SPDX-License-Identifier: Apache-2.0
"""Who puts new memory online: the kernel's policy, or a rule of udev."""

from __future__ import annotations

import re

from sacctl.cxl.sysfs import Sysfs

__all__ = ["who_onlines"]

_POLICY = "/sys/devices/system/memory/auto_online_blocks"
_RULES = (
    "/etc/udev/rules.d",
    "/run/udev/rules.d",
    "/usr/lib/udev/rules.d",
    "/lib/udev/rules.d",
)
_MEMORY = re.compile(r'^[^#]*SUBSYSTEM=="memory".*ATTR\{state\}="online', re.MULTILINE)


def who_onlines(sysfs: Sysfs) -> str:
    """What makes new memory system RAM, with where it is set; "" where nothing does."""
    policy = sysfs.get(_POLICY).strip()
    found = []
    if policy.startswith("online"):
        given = re.search(r"\bmemhp_default_state=(\S+)", sysfs.get("/proc/cmdline"))
        source = f"{given[0]} on the kernel's command line" if given else "the kernel's default"
        found.append(f"auto_online_blocks is {policy} ({source}, or written since)")
    seen = set()
    for folder in _RULES:
        for name in sysfs.names(folder):
            # A rule of the same name in an earlier folder replaces it.
            if name.endswith(".rules") and name not in seen:
                seen.add(name)
                if _MEMORY.search(sysfs.get(f"{folder}/{name}")):
                    found.append(f"the udev rule {folder}/{name}")
    return "; ".join(found)
