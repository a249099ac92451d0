# SPDX-License-Identifier: Apache-2.0
"""Page events: what came into a namespace and what left it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from libsac import _core

__all__ = ["Events", "PageEvent"]

BATCH = 1024
NOW = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PageEvent:
    """One page part that became visible ("stored") or left the index ("removed").

    Attributes:
        sequence: number of the event in its namespace, counted since the pool was opened.
        kind: "stored" or "removed".
        part: "body" (the page itself) or "tail" (its window and state planes).
        key, parent: 32 bytes each; a parent of zeros: none.
        slot, generation: the handle; a generation is never used again.
    """

    sequence: int
    kind: Literal["stored", "removed"]
    part: Literal["body", "tail"]
    slot: int
    generation: int
    key: bytes
    parent: bytes


class Events:
    """Reads a namespace's events in order; made by ``Namespace.events()``.

    Attributes:
        lost: events that fell out of the ring before they were read. When it grows, what
            was learned from events is not complete any more: start again from a lookup.
    """

    def __init__(self, native: _core.Namespace) -> None:
        self._native = native
        self._next, _, _ = native.events(NOW, 0)
        self.lost = 0

    def poll(self) -> list[PageEvent]:
        """All events since the last call, oldest first. Does not wait.

        Raises ClosedError, ForkedError.
        """
        out: list[PageEvent] = []
        while True:
            self._next, lost, events = self._native.events(self._next, BATCH)
            self.lost += lost
            for sequence, kind, part, slot, generation, key, parent in events:
                out.append(
                    PageEvent(
                        sequence,
                        "removed" if kind else "stored",
                        "tail" if part else "body",
                        slot,
                        generation,
                        key,
                        parent,
                    )
                )
            if len(events) < BATCH:
                return out

    def __repr__(self) -> str:
        return f"<Events: next is number {self._next}, {self.lost} lost>"

    def __iter__(self) -> Iterator[PageEvent]:
        """The events there are now; ends when there are no more."""
        return iter(self.poll())
