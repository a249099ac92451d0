# SPDX-License-Identifier: Apache-2.0
"""Steps that are known only when their turn comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sacctl.errors import CtlError, PartlyError
from sacctl.pool.steps import Say, Step

__all__ = ["Later", "planned"]


def planned(steps: Sequence[Step]) -> list[str]:
    """The steps in words, for a plan: what comes later too, as far as it is known."""
    lines: list[str] = []
    for step in steps:
        lines.append(step.what)
        if isinstance(step, Later):
            lines += step.preview
    return [line for line in lines if line]


class Later(Step):
    """Asks for its steps when it is applied, and applies them as one; none of them may be
    final. what: in words, for a plan; preview: the steps in words, as far as they can be
    known before.
    """

    what = ""

    def __init__(
        self,
        what: str,
        steps: Callable[[], Sequence[Step]],
        say: Say,
        preview: Sequence[str] = (),
    ) -> None:
        self.what, self.preview = what, list(preview)
        self._steps, self._say = steps, say
        self._begun: list[Step] = []

    def apply(self) -> None:
        for step in self._steps():
            if step.what:
                self._say(step.what)
            self._begun.append(step)
            step.apply()

    def undo(self) -> None:
        left = []
        while self._begun:
            step = self._begun.pop()
            if step.what:
                self._say(f"undo: {step.what}")
            try:
                step.undo()
            except (CtlError, OSError) as error:
                left.append(f"{step.what} ({error})")
        if left:
            raise PartlyError("; ".join(left))
