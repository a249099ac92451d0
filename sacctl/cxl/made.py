# SPDX-License-Identifier: Apache-2.0
"""What steps find out while they run: the names that the kernel gave."""

from __future__ import annotations

from dataclasses import dataclass, field

from sacctl.errors import CtlError

__all__ = ["Made"]


@dataclass(slots=True)
class Made:
    """Shared by the steps of one region. Steps write it; texts of steps read it.

    Attributes:
        region: "region2", once there is one. dax: its dax devices, the first one first.
        expected: the region's name as it will probably be, for what is said before.
    """

    region: str = ""
    dax: list[str] = field(default_factory=list)
    expected: str = ""

    def region_name(self) -> str:
        """For a path that is shown: the name, or what it will probably be."""
        return self.region or self.expected or "REGION"

    def dax_name(self, index: int = 0) -> str:
        """As region_name, of a dax device. The kernel numbers them like their region."""
        if index < len(self.dax):
            return self.dax[index]
        number = self.region_name().removeprefix("region")
        return f"dax{number if number.isdigit() else 'N'}.{index}"

    def need_dax(self, index: int = 0) -> str:
        """The name of a dax device that must be there by now. Raises CtlError."""
        if index >= len(self.dax):
            raise CtlError(
                f"{self.region_name()} has no dax device number {index}",
                object=self.region_name(),
                hint="sacctl device topology shows what there is",
            )
        return self.dax[index]
