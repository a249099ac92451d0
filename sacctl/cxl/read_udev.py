# SPDX-License-Identifier: Apache-2.0
"""What udev knows of devices and sysfs does not: names of vendors and products.

Only asked of the machine itself, never of a simulated tree. Where there is no udev, or no
name in its database, there is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["names_of"]


def names_of(addresses: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Vendor and product of PCI functions, by address. Nothing is raised."""
    try:
        import pyudev

        context = pyudev.Context()
    # No pyudev, no libudev (ImportError), or one that its loader cannot use.
    except (ImportError, OSError, AttributeError):
        return {}
    found = {}
    for address in addresses:
        try:
            device = pyudev.Devices.from_name(context, "pci", address)
        except pyudev.DeviceNotFoundError:
            continue
        vendor = _property(device, "ID_VENDOR_FROM_DATABASE")
        product = _property(device, "ID_MODEL_FROM_DATABASE")
        if vendor or product:
            found[address] = (vendor, product)
    return found


def _property(device: Any, name: str) -> str:
    try:
        return str(device.properties.get(name) or "")
    except (OSError, UnicodeDecodeError):
        return ""
