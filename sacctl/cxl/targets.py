# SPDX-License-Identifier: Apache-2.0
"""A device's share of a region: memory for a decoder, and the decoder as a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sacctl.cxl.sysfs import Sysfs
from sacctl.cxl.writes import Write
from sacctl.pool.steps import Step

__all__ = ["Attach", "AttachAgain", "Detach", "allocate"]

CXL = "/sys/bus/cxl/devices"
_MODES = ("ram", "pmem")  # what may be written; a decoder that was never used reads "none"


def allocate(sysfs: Sysfs, decoder: str, size: int) -> list[Step]:
    """Memory of a device for one endpoint decoder: mode, then size; given back, both."""
    at = f"{CXL}/{decoder}"
    return [
        Mode(sysfs, f"{at}/mode"),
        Write(sysfs, "dpa", f"{at}/dpa_size", f"{size:#x}", "0"),
    ]


class Mode(Write):
    """ "ram". Undone only where it was something else that can be written."""

    _before: str

    def __init__(self, sysfs: Sysfs, path: str) -> None:
        super().__init__(sysfs, "mode", path, "ram", back=lambda: self._before)
        self._before = ""

    def apply(self) -> None:
        self._before = self.sysfs.get(self.path).strip()
        super().apply()

    def undo(self) -> None:
        if self._before in _MODES and self._before != "ram":
            super().undo()
        self.done = False


class Attach(Write):
    """A decoder as target of a region. The newline that takes it away is written where the
    kernel shows it, which may be so behind a write that failed, and nowhere else."""

    def __init__(
        self, sysfs: Sysfs, region: Callable[[], str], position: int, decoder: str
    ) -> None:
        super().__init__(
            sysfs, "target", lambda: f"{CXL}/{region()}/target{position}", decoder, "\n"
        )
        self._decoder = decoder
        self._tried = False

    def apply(self) -> None:
        self._tried = True
        super().apply()

    def undo(self) -> None:
        self.done = self._tried and self.sysfs.get(self.path).strip() == self._decoder
        super().undo()
        self._tried = False


class Detach(Write):
    """A decoder taken from a target that has it; one that went with its device is away. Its
    way back is AttachAgain's, which stands before all of them."""

    def __init__(self, sysfs: Sysfs, region: str, position: int) -> None:
        super().__init__(sysfs, "target", f"{CXL}/{region}/target{position}", "\n")

    def apply(self) -> None:
        if self.sysfs.get(self.path).strip():
            super().apply()


class AttachAgain(Step):
    """The way back of Detach steps; forward it does nothing. Once a region was complete the
    kernel takes no target back while others are there: all go, then all come, in order."""

    def __init__(self, sysfs: Sysfs, region: str, targets: Sequence[str]) -> None:
        self._sysfs, self._at, self._targets = sysfs, f"{CXL}/{region}", tuple(targets)

    @property
    def what(self) -> str:
        return f"take the targets from {self._at.rpartition('/')[2]}"

    def apply(self) -> None:
        """Nothing: the steps behind it do it."""

    def undo(self) -> None:
        numbered = [(i, t) for i, t in enumerate(self._targets) if t]
        there = [self._sysfs.get(f"{self._at}/target{i}").strip() for i, _ in numbered]
        if there == [t for _, t in numbered]:
            return
        for (i, _), seen in zip(reversed(numbered), reversed(there), strict=True):
            if seen:
                Detach(self._sysfs, self._at.rpartition("/")[2], i).apply()
        for i, target in numbered:
            Write(self._sysfs, "target", f"{self._at}/target{i}", target).apply()
