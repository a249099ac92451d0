# SPDX-License-Identifier: Apache-2.0
"""Attributes read strictly: what cannot be understood is said, never taken as 0.

A device may leave between two reads (ENOENT, ENODEV, ENXIO), an attribute may be root's
(EACCES) or hold what no kernel writes. Each raises UnreadableError with a reason for a person.
"""

from __future__ import annotations

import errno
import re

from sacctl.cxl.sysfs import Sysfs

__all__ = ["CXL", "DAX", "Attributes", "UnreadableError", "by_number", "names", "number_of"]

CXL = "/sys/bus/cxl"
DAX = "/sys/bus/dax"

_GONE = (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR)
_DENIED = (errno.EACCES, errno.EPERM)
_LIMIT = 1 << 64


class UnreadableError(Exception):
    """An object cannot be read. Its text says why, for a person."""


class Attributes:
    """The attributes of one object.

    Attributes:
        name: of the object ("mem0"); folder: where its attributes are.
    """

    def __init__(self, sysfs: Sysfs, folder: str) -> None:
        self.sysfs = sysfs
        self.folder = folder
        self.name = folder.rsplit("/", 1)[-1]

    def text(self, attribute: str) -> str:
        """Raises UnreadableError."""
        try:
            return self.sysfs.read(f"{self.folder}/{attribute}").strip()
        except OSError as error:
            raise UnreadableError(self._why(attribute, error)) from None

    def number(self, attribute: str, base: int = 0) -> int:
        """Not negative and of 64 bits. Raises UnreadableError."""
        text = self.text(attribute)
        number = number_of(text, base)
        if number is None:
            raise UnreadableError(
                f"its attribute {attribute} is {_shown(text)}, which is no number"
            )
        return number

    def flag(self, attribute: str) -> bool:
        """Raises UnreadableError."""
        return self.number(attribute) != 0

    def optional(self, attribute: str, default: str = "") -> str:
        """As text(); the default where it cannot be read."""
        try:
            return self.text(attribute)
        except UnreadableError:
            return default

    def address(self, attribute: str) -> int | None:
        """None where it is not there, may not be read, or is not set (all bits 1)."""
        number = number_of(self.optional(attribute))
        return None if number is None or number == _LIMIT - 1 else number

    def signed(self, attribute: str, default: int = -1) -> int:
        """Such as a node; the default where there is no number."""
        text = self.optional(attribute)
        return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else default

    def link(self, name: str) -> str:
        """The last name of what a link leads to; "" without one."""
        return self.sysfs.target(f"{self.folder}/{name}")

    def names(self) -> list[str]:
        """What is in the folder; nothing where it cannot be listed."""
        return names(self.sysfs, self.folder)

    def _why(self, attribute: str, error: OSError) -> str:
        code = error.errno or 0
        if code in _DENIED:
            return f"its attribute {attribute} may not be read by this user"
        if code not in _GONE:
            reason = error.strerror or type(error).__name__
            return f"its attribute {attribute} cannot be read: {reason}"
        if self.names():
            return f"it has no attribute {attribute}, or went away while it was being read"
        return "it went away while it was being read"


def number_of(text: str, base: int = 0) -> int | None:
    """A number of 64 bits as the kernel writes them; None for anything else."""
    if not re.fullmatch(r"(0[xX])?[0-9a-fA-F]{1,20}", text):
        return None
    try:
        number = int(text, base)
    except ValueError:
        return None
    return number if number < _LIMIT else None


def names(sysfs: Sysfs, folder: str) -> list[str]:
    """What is in a folder, by number; nothing where it cannot be listed."""
    try:
        return sorted(sysfs.names(folder), key=by_number)
    except OSError:
        return []


def by_number(name: str) -> tuple[tuple[int, str], ...]:
    """Key that sorts mem2 before mem10, and decoder1.2 before decoder1.10."""
    pieces = re.findall(r"([0-9]{1,18})|([^0-9]+)", name)
    return tuple((int(digits) if digits else -1, text) for digits, text in pieces)


def _shown(text: str) -> str:
    return repr(text[:24] + ("..." if len(text) > 24 else ""))
