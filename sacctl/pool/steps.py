# SPDX-License-Identifier: Apache-2.0
"""Steps of a change, each with its way back, and the one place that carries them out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from sacctl.errors import CtlError, PartlyError, from_os

__all__ = ["Say", "Step", "carry_out"]

Say = Callable[[str], None]


class Step(ABC):
    """One change of the machine's state.

    ``apply`` may fail half-way; ``undo`` then puts right what was done until there, and does
    nothing where nothing was. A step that is ``final`` has no way back: once it is done, what
    follows can only go on.

    Attributes:
        final: there is no way back behind it. cut: it failed half-way, with no way back.
    """

    final = False
    cut = False

    @property
    @abstractmethod
    def what(self) -> str:
        """The change, for a person: "make the folder /dev/shm/sac-0". "" for a step that has
        nothing to do on this machine: it is not said."""

    @abstractmethod
    def apply(self) -> None:
        """Raises CtlError or OSError."""

    def undo(self) -> None:
        """Raises CtlError or OSError where it cannot be undone."""
        return


def carry_out(steps: Sequence[Step], say: Say, *, again: str = "") -> None:
    """Applies the steps in turn. A failure, or Ctrl-C, undoes all that was done and is raised.

    What could not be undone, or comes after a final step, is said by PartlyError with the
    command ``again`` as what to do next.
    """
    for number, step in enumerate(steps):
        if step.what:
            say(step.what)
        try:
            step.apply()
        except BaseException as error:
            # A final step that fails has done nothing; one that is interrupted, perhaps.
            failed = isinstance(error, CtlError | OSError)
            if any(s.final for s in steps[:number]) or step.cut or (step.final and not failed):
                left = [rest.what for rest in steps[number:] if rest.what]
                _partly(error, f"still to do: {'; '.join(left)}", again)
            _undo(steps[: number + 1], error, say, again)
            if isinstance(error, OSError):
                raise from_os(error, f"cannot {step.what}") from error
            raise


def _undo(steps: Sequence[Step], error: BaseException, say: Say, again: str) -> None:
    left = []
    for step in reversed(steps):
        if step.what:
            say(f"undo: {step.what}")
        try:
            step.undo()
        except (CtlError, OSError) as failed:
            left.append(f"{step.what} ({failed})")
    if left:
        _partly(error, f"could not be undone: {'; '.join(left)}", again)


def _partly(error: BaseException, rest: str, again: str) -> None:
    why = "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else str(error)
    raise PartlyError(
        f"{why}; {rest}",
        object=getattr(error, "object", ""),
        errno=getattr(error, "errno", None) or 0,
        hint=again,
    ) from error
