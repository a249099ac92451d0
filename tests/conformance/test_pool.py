# SPDX-License-Identifier: Apache-2.0
"""Pools and namespaces: opening, naming, dropping, closing."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from conformance.backends import OpenPool
from conformance.content import LARGE, PLAIN, RICH, check, check_stored, put, write
from unit import reference_keys

from libsac import Layout, Plane, Sequence, errors


def test_info(open_pool: OpenPool) -> None:
    pool = open_pool("16M")
    info = pool.info
    assert info.data_bytes == info.free_bytes == 16 << 20
    assert info.slab_bytes == 2 << 20
    assert info.extents == open_pool.backend.extents
    assert (info.incarnation, info.namespaces, info.dead_blocks) == (1, 0, 0)
    assert not info.recovered
    assert not info.rebooted
    assert len(info.uuid) == 16
    assert info.page_size_obtained >= 4096 or not open_pool.backend.prefault
    ns = pool.namespace("n", layout=RICH, model="m", checksum=True, quota="8M")
    put(ns, ns.keys(range(32)))
    assert pool.info.free_bytes == (16 << 20) - ns.info.assigned_bytes
    got = ns.info
    assert (got.name, got.model, got.key_scheme) == ("n", "m", "sac")
    assert (got.checksum, got.token_ids, got.quota_bytes) == (True, False, 8 << 20)
    assert (got.page_tokens, got.tail_pages) == (16, 2)
    assert (got.body_bytes, got.tail_bytes) == (RICH.page_bytes, RICH.tail_bytes)
    assert got.layout_hash == reference_keys.layout_hash(RICH)
    assert ns.layout == RICH


@pytest.mark.parametrize("salt", [b"", b"tenant-a"])
@pytest.mark.parametrize("model", ["", "a model"])
def test_keys_as_documented(open_pool: OpenPool, salt: bytes, model: str) -> None:
    ns = open_pool().namespace("keys", layout=RICH, model=model)
    tokens = np.arange(100, dtype=np.uint32) * 40_000_007
    top = reference_keys.root("keys", model, reference_keys.layout_hash(RICH), salt)
    want = reference_keys.page_keys(top, tokens.tolist(), 16)
    for given in (tokens, tokens.tolist(), tokens.astype(np.int64), iter(tokens.tolist())):
        keys = ns.keys(given, salt=salt)
        assert [key.tobytes() for key in keys.values] == want
        assert [key.tobytes() for key in keys.parents] == [top, *want[:-1]]
    with pytest.raises(errors.ArgumentError, match="salt or a parent"):
        ns.keys(tokens[32:], salt=b"s", parent=want[1])
    rest = ns.keys(tokens[32:], parent=want[1])
    assert ns.keys(tokens[32:], parent=keys.values[1]) == rest
    assert [key.tobytes() for key in rest.values] == want[2:]
    assert keys[2:] == rest
    assert len(ns.keys([])) == len(ns.keys(range(15))) == 0
    with pytest.raises(errors.ArgumentError, match="32"):
        ns.keys(tokens, parent=b"short")
    for bad in ([-1], [1 << 32], [0.5], [[1]], "text", 7):
        with pytest.raises(errors.ArgumentError):
            ns.keys(bad)
    for odd in (3, True, "tenant", None, [1, 2]):
        with pytest.raises(errors.ArgumentError, match="salt must be bytes"):
            ns.keys(tokens, salt=odd)  # type: ignore[arg-type]
        with pytest.raises(errors.ArgumentError, match="salt must be bytes"):
            ns.sequence(tokens, salt=odd)  # type: ignore[arg-type]
    assert keys[-1] == keys[len(keys) - 1 :]
    with pytest.raises(errors.RangeError):
        keys[len(keys)]


def test_engine_keys(open_pool: OpenPool) -> None:
    ns = open_pool().namespace("n", layout=PLAIN, key_scheme="engine")
    names = [bytes([i + 1] * 32) for i in range(4)]
    keys = ns.engine_keys(names)
    put(ns, keys)
    check_stored(ns, keys)
    events = ns.events()
    put(ns, ns.engine_keys([b"x" * 32, b"y" * 32], parents=[names[3], names[1]]))
    assert [e.parent for e in events] == [names[3], names[1]]
    with pytest.raises(errors.ArgumentError, match="32"):
        ns.engine_keys([b"short"])
    with pytest.raises(errors.ArgumentError, match="2 hashes but 1 parents"):
        ns.engine_keys(names[:2], parents=names[:1])
    with pytest.raises(errors.ArgumentError, match="engine"):
        ns.keys(range(16))


def test_names(open_pool: OpenPool) -> None:
    pool = open_pool()
    longest = "N" * 63
    for name in ("b", "a.b-c_D9", longest):
        assert pool.namespace(name, layout=PLAIN).name == name
    assert pool.namespaces() == sorted(["b", "a.b-c_D9", longest])
    for bad in ("", "N" * 64, "a b", "a/b", "ä", "a\0b", "\n"):
        with pytest.raises(errors.ArgumentError, match="name"):
            pool.namespace(bad, layout=PLAIN)
    with pytest.raises(errors.NotFoundError, match="'c'") as caught:
        pool.namespace("c")
    assert caught.value.object == "c"
    assert isinstance(caught.value, LookupError)
    assert caught.value.status == 3
    with pytest.raises(errors.NotFoundError, match="'c'"):
        pool.drop("c")
    with pytest.raises(errors.ArgumentError, match="127"):
        pool.namespace("c", layout=PLAIN, model="m" * 128)
    with pytest.raises(errors.ArgumentError, match="key_scheme"):
        pool.namespace("c", layout=PLAIN, key_scheme="other")  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match="Layout"):
        pool.namespace("c", layout="deepseek")  # type: ignore[arg-type]


def test_opened_again_with_another_specification(open_pool: OpenPool) -> None:
    pool = open_pool()
    pool.namespace("n", layout=PLAIN, model="m")
    assert pool.namespace("n", layout=PLAIN, model="m").layout == PLAIN
    wider = Layout([Plane("kv", range(2), 65)], page_tokens=16)
    with pytest.raises(errors.LayoutError, match="row_bytes 64 and 65") as caught:
        pool.namespace("n", layout=wider, model="m")
    assert caught.value.object == "n"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"model": "o"}, "model 'm' and 'o'"),
        ({"model": "m", "checksum": True}, "data checksums off and on"),
        ({"model": "m", "token_ids": True}, "token ids off and on"),
        ({"model": "m", "key_scheme": "engine"}, "key scheme"),
        ({"model": "m", "quota": "4M"}, "quota"),
    ]
    for options, text in wrong:
        with pytest.raises(errors.ExistsError, match=text):
            pool.namespace("n", layout=PLAIN, **options)


def test_namespaces_share_nothing(open_pool: OpenPool) -> None:
    pool = open_pool()
    a, b = pool.namespace("a", layout=PLAIN), pool.namespace("b", layout=PLAIN)
    assert a.keys(range(64)) != b.keys(range(64))
    names = [bytes([i + 1] * 32) for i in range(4)]
    c = pool.namespace("c", layout=PLAIN, key_scheme="engine")
    d = pool.namespace("d", layout=PLAIN, key_scheme="engine")
    put(c, c.engine_keys(names))
    assert not d.lookup(d.engine_keys(names)).any()


def test_drop(open_pool: OpenPool) -> None:
    pool = open_pool("8M")
    ns = pool.namespace("n", layout=LARGE)
    keys = ns.keys(range(16 * 8))
    put(ns, keys)
    with ns.pin(keys):
        with pytest.raises(errors.BusyError, match="8 pages are pinned"):
            pool.drop("n")
        check_stored(ns, keys)
    batch = ns.put(ns.keys(range(9000, 9016)))
    with pytest.raises(errors.BusyError, match="being written"):
        pool.drop("n")
    batch.close()
    pool.drop("n")
    assert pool.namespaces() == []
    assert pool.info.free_bytes == pool.info.data_bytes
    for call in (
        lambda: ns.pin(keys),
        lambda: ns.put(keys),
        lambda: ns.lookup(keys),
        lambda: ns.stats(),
        lambda: ns.sequence(),
    ):
        with pytest.raises(errors.ClosedError, match="dropped"):
            call()
    # What was there is neither found nor readable in a namespace of the same name.
    again = pool.namespace("n", layout=LARGE)
    assert not again.lookup(keys).any()
    with again.put(again.keys(range(16 * 16))) as fresh:
        for page in range(16):
            assert not fresh.view("kv", 1, page).any()
            fresh.view("kv", 0, page)
    put(again, keys)
    if open_pool.on_disk:
        pool = open_pool.reopen()
        assert pool.namespaces() == ["n"]
        assert pool.namespace("n").stats().pages == 16


def test_close_with_live_handles(open_pool: OpenPool) -> None:
    pool = open_pool()
    ns = pool.namespace("n", layout=RICH)
    keys = ns.keys(range(64))
    put(ns, keys)
    prefix, seq = ns.pin(keys), ns.sequence(range(64))
    batch = ns.put(ns.keys(range(500, 532)))
    view = prefix.view("latent", 1, 3)
    want = view.copy()
    seq.extend([1])
    pool.close()
    pool.close()
    for call in (
        lambda: prefix.gather("latent", 0, [0]),
        lambda: prefix.pages,
        lambda: seq.extend([1]),
        lambda: batch.commit(),
        lambda: ns.lookup(keys),
        lambda: ns.put(keys),
        lambda: ns.info,
        lambda: ns.evict(1),
        lambda: ns.events(),
        lambda: pool.info,
        lambda: pool.namespaces(),
        lambda: pool.namespace("n"),
        lambda: pool.drop("n"),
    ):
        with pytest.raises(errors.ClosedError):
            call()
    assert np.array_equal(view, want)  # what a view shows stays there
    if open_pool.backend.exclusive:
        with pytest.raises(errors.BusyError, match="this process"):
            open_pool(None)
    for handle in (prefix, seq, batch):
        handle.close()
    assert np.array_equal(view, want)
    if open_pool.backend.exclusive:
        with pytest.raises(errors.BusyError, match="views"):
            open_pool(None)
    del view
    gc.collect()
    if open_pool.on_disk:
        pool = open_pool(None)
        assert not pool.info.recovered
        check_stored(pool.namespace("n"), keys)


def test_a_pool_ends_with_its_last_handle(open_pool: OpenPool) -> None:
    pool = open_pool()
    ns = pool.namespace("n", layout=PLAIN)
    with pool:
        keys = ns.keys(range(16))
        put(ns, keys)
    with pytest.raises(errors.ClosedError):
        ns.pin(keys)


def test_opened_again(open_pool: OpenPool) -> None:
    if not open_pool.on_disk:
        pytest.skip("in memory a pool ends with its process")
    pool = open_pool()
    uuid = pool.info.uuid
    ns = pool.namespace("n", layout=RICH, token_ids=True)
    keys = ns.keys(range(160))
    put(ns, keys)
    for n in (2, 3):
        pool = open_pool.reopen()
        info = pool.info
        assert (info.uuid, info.incarnation, info.recovered) == (uuid, n, False)
        ns = pool.namespace("n", layout=RICH, token_ids=True)
        check_stored(ns, keys)
    pool = open_pool.crash()
    assert (pool.info.uuid, pool.info.recovered, pool.info.incarnation) == (uuid, True, 4)
    ns = pool.namespace("n")
    check_stored(ns, keys)
    assert ns.evict(1) == 1
    assert ns.lookup(keys).tolist() == [True] * 9 + [False]


def test_a_crash_drops_what_was_not_committed(open_pool: OpenPool) -> None:
    if not open_pool.on_disk:
        pytest.skip("in memory a pool ends with its process")
    ns = open_pool("6M").namespace("n", layout=LARGE)
    keys = ns.keys(range(16 * 24))
    put(ns, keys[:3])
    batch = ns.put(keys[:20])
    write(batch, keys[:20], LARGE)
    seq: Sequence = ns.sequence(range(48))
    seq.extend(range(48, 60))
    pool = open_pool.crash()
    ns = pool.namespace("n")
    assert ns.stats().pages == 3
    assert ns.stats().reserved == 0
    room = pool.info.data_bytes // LARGE.page_bytes
    assert put(ns, keys[:room]) == room - 3  # every slot is usable
    check_stored(ns, keys, room)


def test_what_embedded_refuses(open_pool: OpenPool) -> None:
    if open_pool.backend.where == "daemon":
        pytest.skip("the daemon's pools are made by sacctl")
    for size in (0, -1, "1K", "x", "", 1 << 62, "1T1"):
        with pytest.raises((errors.ArgumentError, errors.NoSpaceError)):
            open_pool(size)
    if not open_pool.on_disk:
        return
    with pytest.raises(errors.NotFoundError, match="give a size"):
        open_pool(None)
    pool = open_pool("16M")
    with pytest.raises(errors.BusyError, match="this process"):
        open_pool("16M")
    pool.close()
    del pool
    open_pool.close()
    with pytest.raises(errors.ExistsError, match="16 MiB"):
        open_pool("32M")
    assert open_pool("16M").info.incarnation == 2


def test_two_pools_at_once(open_pool: OpenPool) -> None:
    pools = [open_pool() for _ in range(1 if open_pool.on_disk else 3)]
    spaces = [pool.namespace("n", layout=RICH) for pool in pools]
    keys = spaces[0].keys(range(64))
    for ns in spaces:
        assert not ns.lookup(keys).any()
        put(ns, keys)
    for ns in spaces:
        with ns.pin(keys) as prefix:
            check(prefix, keys, RICH, 4)
