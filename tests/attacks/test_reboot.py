# SPDX-License-Identifier: Apache-2.0
"""After a reboot of the host memory may hold anything: only what verifies is kept."""

from __future__ import annotations

from pathlib import Path

from attacks import victim
from attacks.region import BODY, Region

import libsac


def reboot(region: Region) -> None:
    region.superblock["boot_id"] = b"another boot id."
    region.superblock.seal()


def test_only_pages_with_checksums_stay(path: Path) -> None:
    with Region(path) as region:
        reboot(region)
    with libsac.embedded(None, path) as pool:
        assert pool.info.rebooted
        victim.intact(pool, "a")
        for name, pages in (("b", 20), ("c", 2)):
            ns = pool.namespace(name)
            stats = ns.stats()
            assert (stats.pages, stats.checks_failed) == (0, pages)
            assert not ns.lookup(victim.keys_of(pool, name)).any()
            victim.put(ns, victim.keys_of(pool, name))
        victim.intact(pool)
    with libsac.embedded(None, path) as pool:
        assert not pool.info.rebooted
        victim.intact(pool)


def test_what_does_not_verify_is_discarded(path: Path) -> None:
    with libsac.embedded(None, path) as pool:
        keys = victim.keys_of(pool, "a")
    with Region(path) as region:
        ns = region.namespace("a")
        header = region.pages(ns)[0, keys.values[7].tobytes()]
        chunk, within = divmod(header["slot"], ns["chunk_slots"])
        ((extent, index),) = [(e, i) for p, e, i in region.owned(ns["id"], BODY) if p == chunk]
        region.data[extent][index * (2 << 20) + within * ns["body_bytes"] + 99] ^= 0x80
        reboot(region)
    with libsac.embedded(None, path) as pool:
        space = pool.namespace("a")
        assert space.lookup(keys).tolist() == [i != 7 for i in range(12)]
        assert space.stats().checks_failed == 1
        assert victim.found_is_right(pool) == 11
    with Region(path) as region:  # cleared, not only left out
        assert (0, keys.values[7].tobytes()) not in region.pages(region.namespace("a"))


def test_memory_that_lost_everything(path: Path) -> None:
    with Region(path) as region:
        for data in region.data:
            data[8192:] = bytes(len(data) - 8192)
        reboot(region)
    with libsac.embedded(None, path) as pool:
        for name in "abc":
            assert pool.namespace(name).stats().pages == 0
            victim.put(pool.namespace(name), victim.keys_of(pool, name))
        victim.intact(pool)
