# SPDX-License-Identifier: Apache-2.0
"""A pool to be attacked, and the proof that an attack did no harm but the loss of pages."""

from __future__ import annotations

import shutil
from pathlib import Path

from conformance.backends import copy_pool
from conformance.content import PLAIN, RICH, check, check_stored, put

import libsac
from libsac import Keys, Layout, Plane, Pool
from libsac.errors import NoSpaceError, SacError

__all__ = ["build", "check", "check_stored", "found_is_right", "intact", "put", "use"]

BIG = Layout([Plane("kv", [0], 3 << 14)], page_tokens=64)  # 3 MiB a page: chunks of 2 slabs
LAYOUTS = {"a": RICH, "b": PLAIN, "c": BIG}
PAGES = {"a": 12, "b": 20, "c": 2}
SIZE = 24 << 20
EXTENTS = 2


def tokens(name: str) -> range:
    return range(LAYOUTS[name].page_tokens * PAGES[name])


def keys_of(pool: Pool, name: str) -> Keys:
    return pool.namespace(name).keys(tokens(name))


def build(path: Path) -> None:
    """Three namespaces: a keeps checksums and token ids, c has chunks of several slabs."""
    with libsac.embedded(SIZE, path, extents=EXTENTS, metadata="4M") as pool:
        for name, layout in LAYOUTS.items():
            ns = pool.namespace(
                name, layout=layout, checksum=name == "a", token_ids=name == "a"
            )
            put(ns, keys_of(pool, name))


def intact(pool: Pool, names: str = "abc") -> None:
    """All pages of these namespaces are there, every byte of them."""
    for name in names:
        ns = pool.namespace(name)
        keys = keys_of(pool, name)
        with ns.pin(keys) as prefix:
            assert prefix.pages == PAGES[name], f"{name}: {prefix.pages} pages"
            check(prefix, keys, ns.layout, prefix.pages)
        assert ns.verify()[1] == 0


def found_is_right(pool: Pool) -> int:
    """Whatever is found of the pages put once is right in every byte; how many pages."""
    seen = 0
    for name, layout in LAYOUTS.items():
        try:
            ns = pool.namespace(name)
        except SacError:
            continue
        if ns.layout != layout:
            continue  # a field of the layout, sealed again, makes it another namespace
        keys = keys_of(pool, name)
        here = ns.lookup(keys)
        with ns.pin(keys) as prefix:
            assert prefix.pages <= len(keys)
            check(prefix, keys, layout, prefix.pages)
            seen += int(here.sum())
    return seen


def use(path: Path) -> None:
    """Opens the pool and does all that can be done with it. Only libsac's errors come out,
    and no byte is wrong: not at once, not after new pages, not after a crash upon that."""
    image = path.with_name(path.name + "-image")
    shutil.rmtree(image, ignore_errors=True)
    with libsac.embedded(None, path) as pool:
        found_is_right(pool)
        for name in pool.namespaces():
            try:
                ns = pool.namespace(name)
                fresh = ns.keys(range(10**6, 10**6 + 2 * ns.layout.page_tokens))
                events = ns.events()
                if ns.layout == LAYOUTS.get(name):
                    fill(ns, fresh)
                ns.verify()
                ns.stats()
                events.poll()
            except SacError:
                continue
        found_is_right(pool)
        copy_pool(path, image)
        for name in pool.namespaces():
            try:
                pool.namespace(name).evict(1000)
            except SacError:
                pool.drop(name)
    try:
        with libsac.embedded(None, image) as pool:
            found_is_right(pool)
    finally:
        shutil.rmtree(image)


def fill(ns: libsac.Namespace, fresh: Keys) -> None:
    """Puts new pages and takes all the room that is left, so that every free slot is used."""
    put(ns, fresh)
    batches = []
    try:
        for n in range(1000):
            start = 2 * 10**6 + n * 10**4
            batches.append(ns.put(ns.keys(range(start, start + 4 * ns.layout.page_tokens))))
    except NoSpaceError:
        pass
    for batch in batches:
        batch.close()
