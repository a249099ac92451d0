# SPDX-License-Identifier: Apache-2.0
"""Page headers: one that is not exactly right is a free slot, and no harm comes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attacks import victim
from attacks.region import Header, Region

import libsac
from libsac import Keys, errors


def opened(path: Path) -> libsac.Pool:
    return libsac.embedded(None, path)


@pytest.fixture(scope="module")
def keys(template: Path) -> dict[str, Keys]:
    with opened(template) as pool:
        return {name: victim.keys_of(pool, name) for name in "abc"}


def set_field(field: str, value: Any) -> Callable[[Header, int], None]:
    def change(header: Header, limit: int) -> None:
        header[field] = limit + value if field == "generation" and value else value
        header.seal()

    return change


CHANGES: dict[str, Callable[[Header, int], None]] = {
    "flip-key": lambda h, _: h.flip(20),
    "flip-generation": lambda h, _: h.flip(0),
    "flip-crc": lambda h, _: h.flip(125),
    "flip-reserved": lambda h, _: h.flip(100),
    "flip-token": lambda h, _: h.flip(128 + 60),
    "state-0": set_field("state", 0),
    "state-2": set_field("state", 2),
    "part": set_field("part", 1),
    "part-9": set_field("part", 9),
    "slot": set_field("slot", 3),
    "slot-max": set_field("slot", 0xFFFFFFFF),
    "generation-0": set_field("generation", 0),
    "generation-at-the-limit": set_field("generation", 1 << 21),
    "generation-beyond": set_field("generation", 1 << 60),
    "no-key": set_field("key", bytes(32)),
}


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("change", CHANGES)
def test_is_a_free_slot(path: Path, keys: dict[str, Keys], name: str, change: str) -> None:
    if change == "flip-token" and name == "b":
        pytest.skip("b keeps no token ids")
    with Region(path) as region:
        limit = region.superblock["generation_limit"]
        pages = region.pages(region.namespace(name))
        CHANGES[change](pages[0, keys[name].values[4].tobytes()], limit)
    pages_before = victim.PAGES[name]
    for _ in range(3):  # nor does it come back later
        with opened(path) as pool:
            ns = pool.namespace(name)
            found = ns.lookup(keys[name]).tolist()
            assert found == [True] * 4 + [False] + [True] * (pages_before - 5)
            victim.intact(pool, "abc".replace(name, ""))
            assert ns.verify()[1] == 0
    with opened(path) as pool:
        ns = pool.namespace(name)
        assert victim.put(ns, keys[name]) == 1
        victim.intact(pool)


def test_flags_of_token_ids_that_are_not_kept(path: Path, keys: dict[str, Keys]) -> None:
    with Region(path) as region:
        header = region.pages(region.namespace("b"))[0, keys["b"].values[0].tobytes()]
        header["flags"] = 2
        header.seal()
    with opened(path) as pool:
        assert not pool.namespace("b").lookup(keys["b"])[0]


def test_the_newer_of_two_pages_of_one_key(path: Path, keys: dict[str, Keys]) -> None:
    """Both are sealed right: the higher generation counts, the other slot is free."""
    first, second = keys["b"].values[3].tobytes(), keys["b"].values[9].tobytes()
    with Region(path) as region:
        pages = region.pages(region.namespace("b"))
        old, new = pages[0, first], pages[0, second]
        assert old["generation"] < new["generation"]
        old["key"] = second
        old.seal()
    for _ in range(2):
        with opened(path) as pool:
            ns = pool.namespace("b")
            assert ns.stats().pages == 19
            assert ns.lookup(keys["b"]).tolist() == [i != 3 for i in range(20)]
            assert victim.found_is_right(pool) == 12 + 19 + 2
    with Region(path) as region:
        assert len(region.pages(region.namespace("b"))) == 19


def test_a_header_copied_to_another_slot(path: Path, keys: dict[str, Keys]) -> None:
    with Region(path) as region:
        ns = region.namespace("b")
        headers = region.headers(ns)
        source = region.pages(ns)[0, keys["b"].values[0].tobytes()]
        free = next(h for h in headers.values() if h["state"] == 0)
        free.raw = source.raw
    with opened(path) as pool:
        victim.intact(pool)
        assert pool.namespace("b").stats().pages == 20


def test_headers_of_another_namespace(path: Path, keys: dict[str, Keys]) -> None:
    """The uuid in the checksum keeps a former owner's headers from being pages."""
    with Region(path) as region:
        mine = region.headers(region.namespace("b"))
        block = region.namespace("b")
        block["uuid"] = b"u" * 16
        block.seal()
        assert len(mine) > 20
    with opened(path) as pool:
        assert pool.namespace("b").stats().pages == 0
        victim.intact(pool, "ac")


@pytest.mark.parametrize("length", [1, 2, 3, 20])
def test_parents_in_a_circle(path: Path, keys: dict[str, Keys], length: int) -> None:
    with Region(path) as region:
        pages = region.pages(region.namespace("b"))
        names = [key.tobytes() for key in keys["b"].values[:length]]
        for i, name in enumerate(names):
            pages[0, name]["parent"] = names[i - 1]
            pages[0, name].seal()
    with opened(path) as pool:
        victim.intact(pool)
        ns = pool.namespace("b")
        for left in range(19, -1, -1):
            assert ns.evict(1) == 1
            assert ns.stats().pages == left
        victim.put(ns, keys["b"])
        victim.intact(pool)


def test_a_tail_without_its_body(path: Path, keys: dict[str, Keys]) -> None:
    last = keys["a"].values[-1].tobytes()
    with Region(path) as region:
        header = region.pages(region.namespace("a"))[0, last]
        header["state"] = 0
    with opened(path) as pool:
        ns = pool.namespace("a")
        assert ns.stats().tails == 2
        assert ns.longest(keys["a"]) == 0
        victim.put(ns, keys["a"])
        victim.intact(pool)
        ns.evict(1000)
        assert (ns.stats().pages, ns.stats().tails) == (0, 0)


def test_a_wrong_data_checksum(path: Path, keys: dict[str, Keys]) -> None:
    with Region(path) as region:
        header = region.pages(region.namespace("a"))[0, keys["a"].values[2].tobytes()]
        header["data_crc"] ^= 1
        header.seal()
    with opened(path) as pool:
        ns = pool.namespace("a")
        prefix = ns.pin(keys["a"])
        assert ns.verify() == (14, 1)
        with pytest.raises(errors.StaleError):
            prefix.gather("latent", 0, [0])
        prefix.close()
        assert not ns.lookup(keys["a"])[2]
        victim.put(ns, keys["a"])
        victim.intact(pool)
