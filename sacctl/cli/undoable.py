# SPDX-License-Identifier: Apache-2.0
"""Changes that are taken back when they fail: also when a signal ends the command, and said."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from sacctl.cli.context import App
from sacctl.errors import CtlError, PartlyError

__all__ = ["undoable"]

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undoable(state: App) -> Iterator[Callable[[str], None]]:
    """Gives what the steps are said to. SIGTERM and SIGHUP end the command as Ctrl-C does:
    what was done is taken back first, and that is said."""
    writes, undone = 0, False

    def say(step: str) -> None:
        nonlocal writes, undone
        writes += step.startswith("echo ")
        # Of one write that failed there is nothing to take back.
        undone = undone or (writes > 1 and step.startswith("undo: "))
        state.more(step)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # as nohup leaves it
                signal.signal(number, _end)
        yield say
    except PartlyError:
        raise
    except (KeyboardInterrupt, SystemExit):
        state.say("interrupted" + ("; everything was taken back" if undone else ""))
        raise
    except CtlError:
        if undone:
            state.say("everything was taken back")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    for other in _SIGNALS:  # once is enough: the way back must not be cut off
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)
