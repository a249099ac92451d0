# SPDX-License-Identifier: Apache-2.0
"""pool.ranks(): a namespace a rank, and the prefix that all of them have."""

from __future__ import annotations

import os
from typing import Any

import pytest

import libsac
from libsac import errors

LAYOUT = libsac.Layout([libsac.Plane("k", [0], 64)], 16)
WINDOWED = libsac.Layout(
    [
        libsac.Plane("k", [0], 64),
        libsac.Plane("w", [0], 64, kind="window", window_tokens=16),
    ],
    16,
)


def put(space: libsac.Namespace, tokens: Any, **more: Any) -> None:
    with space.put(space.keys(tokens), **more) as put:
        for plane in space.layout.planes:
            missing = put.missing if plane.kind == "rows" else put.missing_tails
            for page in range(len(missing)):
                put.view(plane.name, 0, page)[:] = 1
        put.commit()


def test_longest_is_the_shortest_over_the_ranks() -> None:
    with libsac.embedded("32M") as pool:
        ranks = pool.ranks("tp", 3, LAYOUT, model="m", mode=0o640)
        assert pool.namespaces() == ["tp.0", "tp.1", "tp.2"]
        assert [space.name for space in ranks] == pool.namespaces()
        assert len(ranks) == 3
        assert ranks.rank(2).info.mode == 0o640
        assert ranks.longest(range(160)) == 0
        for space, tokens in zip(ranks, (160, 48, 80), strict=True):
            put(space, range(tokens))
        assert ranks.longest(range(160)) == 3
        assert ranks.longest(range(40)) == 2
        assert ranks.longest([]) == 0
        assert ranks.longest(range(160), salt=b"x") == 0
        assert [len(keys) for keys in ranks.keys(range(100))] == [6, 6, 6]
        found = [
            int(ranks.rank(i).lookup(k).sum()) for i, k in enumerate(ranks.keys(range(160)))
        ]
        assert found == [10, 3, 5]
        again = pool.ranks("tp", 3)
        assert again.longest(range(160)) == 3
        assert repr(again) == "<Ranks of 'tp': 3>"


def test_planes_of_the_last_pages_must_be_there_for_all() -> None:
    with libsac.embedded("32M") as pool:
        ranks = pool.ranks("tp", 2, WINDOWED)
        put(ranks.rank(0), range(64))  # with its tail at 4 pages only
        put(ranks.rank(1), range(48))  # ... at 3 pages only
        assert ranks.longest(range(64)) == 0
        put(ranks.rank(0), range(48))
        assert ranks.longest(range(64)) in (0, 3)


def test_arguments() -> None:
    with libsac.embedded("8M") as pool:
        for count in (0, -1, 1.5, None):
            with pytest.raises(errors.ArgumentError, match="count is"):
                pool.ranks("tp", count, LAYOUT)  # type: ignore[arg-type]
        with pytest.raises(errors.NotFoundError):
            pool.ranks("tp", 2)
        with pytest.raises(errors.ArgumentError, match="mode is"):
            pool.ranks("tp", 2, LAYOUT, mode=0o1777)
        with pytest.raises(errors.ArgumentError, match="policy is"):
            pool.ranks("tp", 2, LAYOUT, policy="fifo")
        ranks = pool.ranks("tp", 2, LAYOUT)
        for number in (2, 1 << 31):
            with pytest.raises(errors.RangeError):
                ranks.rank(number)
        with pytest.raises(errors.ArgumentError):
            ranks.rank(-1)


def test_resize() -> None:
    with libsac.embedded("32M") as pool:
        space = pool.namespace("n", LAYOUT, quota="8M")
        pool.resize("n", "16M")
        assert space.info.quota_bytes == 16 << 20
        pool.resize("n", None)
        assert space.info.quota_bytes == 0
        with pytest.raises(errors.NotFoundError):
            pool.resize("other", "8M")
        with pytest.raises(errors.ArgumentError, match="name is"):
            pool.resize(7, "8M")  # type: ignore[arg-type]


def test_owner_and_mode() -> None:
    with libsac.embedded("32M") as pool:
        info = pool.namespace("n", LAYOUT).info
        assert (info.uid, info.gid, info.mode, info.policy) == (
            os.getuid(),
            os.getgid(),
            0o600,
            "lru",
        )
