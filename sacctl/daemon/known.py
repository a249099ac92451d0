# SPDX-License-Identifier: Apache-2.0
"""The pools that the daemon knows, by name."""

from __future__ import annotations

import threading
from collections.abc import Collection

from libsac.server import SharedPool
from sacctl.daemon.unserved import Served, not_served
from sacctl.errors import NotFoundError, UsageError

__all__ = ["Known"]


class Known:
    """Thread-safe; never locked for long, whatever is done with the pools meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pools: dict[str, Served] = {}

    def find(self, name: str) -> Served | None:
        with self._lock:
            return self._pools.get(name)

    def put(self, served: Served) -> Served:
        """New, or in the place of the one of its name. Returns it."""
        with self._lock:
            self._pools[served.name] = served
        return served

    def drop(self, name: str) -> None:
        """Raises KeyError."""
        with self._lock:
            del self._pools[name]

    def drop_unserved(self, but: Collection[str]) -> None:
        """Drops those that are not served, but for these names."""
        with self._lock:
            for name in [n for n, s in self._pools.items() if not s.pool and n not in but]:
                del self._pools[name]

    def clear(self) -> None:
        with self._lock:
            self._pools.clear()

    def get(self, name: str) -> Served:
        """Raises NotFoundError naming the pools there are."""
        with self._lock:
            served = self._pools.get(name)
            if served is None:
                known = ", ".join(sorted(self._pools)) or "none"
                raise NotFoundError(
                    f"there is no pool '{name}'; the daemon knows {known}",
                    object=name,
                    hint="sacctl pool list",
                )
            return served

    def pick(self, name: str | None) -> tuple[str, SharedPool]:
        """A served pool; None: the only one there is. Raises NotFoundError, UsageError where
        there are several."""
        with self._lock:
            if name is None:
                served = [s for s in self._pools.values() if s.state == "serving"]
                if len(served) > 1:
                    raise UsageError(
                        "which pool? There are " + ", ".join(sorted(s.name for s in served)),
                        hint="name one with --pool",
                    )
                if not served:
                    raise NotFoundError(
                        "the daemon serves no pool", hint="sacctl pool create kv --emulate 1G"
                    )
                name = served[0].name
            found = self.get(name)
            if found.pool is None or found.state == "lost":
                raise not_served(found)
            return found.name, found.pool

    def all(self) -> list[Served]:
        """By name."""
        with self._lock:
            return [self._pools[name] for name in sorted(self._pools)]
