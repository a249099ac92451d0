# SPDX-License-Identifier: Apache-2.0
"""A pool with requests of long contexts in it, every row with its payload."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

import libsac
from hot import payload
from libsac.closing import Closing

PAGE_TOKENS = 64
PUT_PAGES = 32


class Contexts(Closing):
    """An embedded pool, one plane ``row`` of one layer, ``requests`` prefixes of ``context``
    tokens. The pages of the requests lie among each other, as they do in a pool in use.

    Attributes: ns; prefixes, one a request.
    """

    def __init__(self, requests: int, context: int, row_bytes: int) -> None:
        """Writes all rows. row_bytes: a multiple of 4; context: of 64."""
        self._ends = ExitStack()
        pages = context // PAGE_TOKENS
        layout = libsac.Layout([libsac.Plane("row", [0], row_bytes)], PAGE_TOKENS)
        size = requests * pages * layout.page_bytes
        # Slabs have an unused end, and the namespace's metadata takes some.
        self.pool = libsac.embedded(int(size * 1.1) + (64 << 20), prefault=True)
        self._ends.callback(self.pool.close)
        self.ns = self.pool.namespace("contexts", layout)
        keys = [
            self.ns.keys((np.arange(context) + request * context).astype(np.uint32))
            for request in range(requests)
        ]
        shape = (PUT_PAGES * PAGE_TOKENS, row_bytes // 4)
        rows = np.empty(shape, np.uint32)
        for page in range(0, pages, PUT_PAGES):
            count = min(PUT_PAGES, pages - page)
            for request in range(requests):
                first = request * payload.STRIDE + page * PAGE_TOKENS
                numbers = np.arange(first, first + count * PAGE_TOKENS, dtype=np.uint32)
                part = rows[: len(numbers)]
                payload.fill(part, numbers, 256)
                with self.ns.put(keys[request][page : page + count]) as put:
                    put.write(
                        "row",
                        0,
                        part.view(np.uint8).reshape(count, PAGE_TOKENS, row_bytes),
                        threads=4,
                    )
        self.prefixes = [self._ends.enter_context(self.ns.pin(k)) for k in keys]
        assert all(prefix.tokens == context for prefix in self.prefixes)

    def addresses(self) -> NDArray[np.uint64]:
        """(requests, pages): where each page's rows lie in this process."""
        return np.array(
            [
                [p.view("row", 0, page).ctypes.data for page in range(p.pages)]
                for p in self.prefixes
            ],
            np.uint64,
        )

    def close(self) -> None:
        self._ends.close()
