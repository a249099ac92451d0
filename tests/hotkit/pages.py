# SPDX-License-Identifier: Apache-2.0
"""The pages of some requests, in a pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotkit.machine import Machine
from hotkit.shape import Shape

Array = NDArray[Any]


class Pages:
    """Room for ``most`` units a request, of random bytes, in pages at random places.

    at: where in the pool each page of each request begins. bodies: their addresses, which
    kernels are given; 0: quarantined. ``spread`` > 1: pages are in the requests' order, that
    many times further apart than they need to be, zeros, and there only for the requests
    ``present``.
    """

    def __init__(
        self,
        machine: Machine,
        shape: Shape,
        rng: np.random.Generator,
        requests: int,
        most: int,
        layers: int,
        spread: int = 1,
        present: Sequence[int] = (),
    ) -> None:
        self.machine, self.shape = machine, shape
        at, self.offsets = 0, np.zeros((len(shape.planes), layers), np.int64)
        self.head_stride = [
            shape.page_units * shape.block * p.row_pitch() for p in shape.planes
        ]
        for p in range(len(shape.planes)):
            for layer in range(layers):
                self.offsets[p, layer] = at
                at += shape.heads * self.head_stride[p]
        size = -(-at // 64) * 64
        self.each = -(-most // shape.page_units)
        count = requests * self.each
        order = rng.permutation(count) if spread == 1 else np.arange(count)
        self.at = order.reshape(requests, self.each).astype(np.int64) * size * spread
        parts = [(int(begin), int(begin) + size) for r in present for begin in self.at[r]]
        self.pool = machine.pool(count * size * spread + 64, parts)
        if spread == 1:
            self.pool[:] = rng.integers(0, 256, len(self.pool), np.uint8)
        self.bodies = machine.array((requests, self.each), np.uint64)
        for r in range(requests):
            self.revive(r)

    def revive(self, request: int) -> None:
        base = np.uint64(self.machine.address(self.pool))
        self.bodies[request] = base + self.at[request].astype(np.uint64)

    def kill(self, request: int, page: int) -> None:
        """Quarantines a page."""
        self.bodies[request, page] = 0

    def dead(self, request: int) -> set[int]:
        """The units of a request that are on quarantined pages."""
        each = self.shape.page_units
        pages = np.flatnonzero(self.bodies[request] == 0)
        return {int(p) * each + i for p in pages for i in range(each)}

    def unit(self, plane: int, layer: int, request: int, head: int, unit: int) -> Array:
        """A unit's bytes in the pool, as a view."""
        s, p = self.shape, self.shape.planes[plane]
        at = int(self.at[request, unit // s.page_units]) + int(self.offsets[plane, layer])
        at += head * self.head_stride[plane] + unit % s.page_units * s.block * p.row_pitch()
        found: Array = self.pool[at : at + p.unit_bytes(s.block)]
        return found
