# SPDX-License-Identifier: Apache-2.0
"""Which boot of the machine this is: names of regions and dax devices hold for one only."""

from __future__ import annotations

from sacctl.cxl.sysfs import Sysfs

__all__ = ["boot_id"]

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id(sysfs: Sysfs) -> str:
    """The kernel's id of this boot; "" where it does not say."""
    return sysfs.get(BOOT_ID)
