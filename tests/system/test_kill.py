# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any moment: what was acknowledged is there, whole, and nothing else is.

A child is killed at each stop point of the core (a build with stop points, named by
SAC_KILL_CHILD), or at random moments (the library as it is shipped). The pool is always
recovered by the library as it is shipped.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from attacks.region import BODY, META, Region
from conformance.content import RICH, assert_idle, check, put
from system.child import CHAIN_PAGES, tokens
from system.run import line, started

import libsac
from libsac import Keys, errors

CHILD = os.environ.get("SAC_KILL_CHILD", "")
Part = tuple[str, str, int]  # namespace, key, part


def points() -> list[str]:
    if not CHILD:
        return ["none"]
    return subprocess.run(
        [CHILD, "--points"], capture_output=True, text=True, check=True
    ).stdout.split()


@dataclass
class Ledger:
    """What a pool must hold, by the words of the processes that worked on it."""

    there: dict[Part, int] = field(default_factory=dict)
    generations: set[int] = field(default_factory=set)
    may: tuple[int, int] = (0, 0)
    dropping: bool = False

    def listen(self, text: str) -> None:
        before = max(self.generations, default=0)
        self.may, self.dropping = (0, 0), False
        for said in text.splitlines():
            words = said.split()
            assert words[0] != "wrong", said
            if words[0] == "page":
                part, generation = (words[1], words[2], int(words[3])), int(words[4])
                assert generation > before
                assert generation not in self.generations
                self.generations.add(generation)
                self.there[part] = generation
            elif words[0] == "gone":
                del self.there[words[1], words[2], int(words[3])]
            elif words[0] == "may":
                self.may = int(words[1]), int(words[2])
            elif words[0] == "dropping":
                self.dropping = True
            elif words[0] == "dropped":
                self.dropping = False
                self.there = {p: g for p, g in self.there.items() if p[0] != "other"}

    def compare(self, found: dict[Part, int]) -> None:
        missing = [0, 0]
        for part, generation in self.there.items():
            if found.get(part, 0) < generation:
                assert part[0] == "main" or self.dropping, part
                missing[part[2]] += part[0] == "main"
        assert missing[0] <= self.may[0]
        assert missing[1] <= sum(self.may)
        # Committed, and killed before it was said: a put has at most 6 pages and 2 tails.
        new = {p for p, g in found.items() if self.there.get(p) != g}
        assert len(new) <= 8 or self.dropping
        self.there = dict(found)
        self.generations.update(found.values())


def headers(path: Path) -> dict[Part, int]:
    """All pages on memory by the format alone; the pool must not be open."""
    out: dict[Part, int] = {}
    with Region(path) as region:
        for index, slab in region.slabs(META):
            if slab.role != 3:
                continue
            block = next(b for b in region.namespace_copies(index) if b.valid)
            name = block["name"].rstrip(b"\0").decode()
            for (part, key), header in region.pages(block).items():
                out[name, key.hex(), part] = header["generation"]
    return out


def body_slots(path: Path, name: str) -> int:
    """Slots for bodies that a namespace has by the slab tables; the pool must not be open."""
    with Region(path) as region:
        block = region.namespace(name)
        slabs = len(region.owned(block["id"], BODY))
        return slabs // int(block["body_slabs"]) * int(block["body_pages"])


def every_slot(path: Path, name: str) -> None:
    """Each slot takes a page, each slab belongs to somebody, nothing is left behind."""
    bodies = body_slots(path, name)
    with libsac.embedded(None, path) as pool:
        ns = pool.namespace(name)
        assert_idle(ns)
        assigned = ns.info.assigned_bytes
        held = sum(pool.namespace(other).info.assigned_bytes for other in pool.namespaces())
        assert pool.info.free_bytes + held == pool.info.data_bytes
        ns.evict(100_000)
        values = np.random.default_rng(1).integers(1, 256, (bodies, 32), dtype=np.uint8)
        ids = np.zeros(bodies * ns.layout.page_tokens, np.uint32)
        with ns.put(Keys.of_engine(values, None), tokens=ids) as batch:
            assert len(batch.missing) == bodies
            batch.close()
        assert ns.info.assigned_bytes == assigned  # without any growth
        assert ns.stats().pages == ns.stats().tails == 0
        assert_idle(ns)


@pytest.mark.skipif(not CHILD, reason="SAC_KILL_CHILD names no build with stop points")
@pytest.mark.parametrize("nth", [1, 30])
@pytest.mark.parametrize("point", points())
def test_at_a_stop_point(point: str, nth: int, tmp_path: Path) -> None:
    path = tmp_path / "pool"
    ledger = Ledger()
    killed = False
    incarnation = 0
    early = point.startswith(("create", "format"))
    for run in range(3):
        stop = run == (0 if early else 1)
        env = {**os.environ, "SAC_STOP_AT": f"{point}:{nth}"} if stop else dict(os.environ)
        done = subprocess.run(
            [CHILD, path, str(nth * 10 + run), "150"],
            stdout=-1,
            text=True,
            env=env,
            check=False,
        )
        assert done.returncode in ((0, -9) if stop else (0,))
        killed |= done.returncode == -9
        ledger.listen(done.stdout)
        try:
            pool = libsac.embedded(None, path)
        except errors.NotFoundError:
            assert early
            assert not ledger.there
            continue
        with pool:
            assert pool.info.recovered == (done.returncode == -9)
            assert pool.info.incarnation > incarnation
            incarnation = pool.info.incarnation
            stats = {}
            for name in pool.namespaces():
                ns = pool.namespace(name)
                checked, dropped = ns.verify()
                stats[name] = checked
                assert dropped == 0
                assert_idle(ns)
                held = [p for p in ledger.there if p[0] == name and p[2] == 0]
                if held:
                    keys = Keys.of_engine((bytes.fromhex(p[1]) for p in held), None)
                    missing = int((~ns.lookup(keys)).sum())
                    assert missing <= ledger.may[0] or (name == "other" and ledger.dropping)
        found = headers(path)
        for name, count in stats.items():
            assert count == sum(p[0] == name for p in found)
        ledger.compare(found)
    assert killed or nth > 1
    every_slot(path, "main")


def test_at_random_moments(tmp_path: Path, seed: int) -> None:
    """The library as shipped puts and appends, and is killed, again and again."""
    path = tmp_path / "pool"
    rng = np.random.default_rng(seed)
    acknowledged: set[str] = set()
    generations: dict[str, int] = {}
    for run in range(1, 7):
        newest = max(generations.values(), default=0)
        with started("work", path, run) as child:
            assert line(child) == ["ready"]
            time.sleep(float(rng.uniform(0.02, 0.35)))
            child.kill()
            assert child.stdout is not None
            said = child.stdout.read().split("\n")[:-1]
        new = {words.split()[1] for words in said if words.startswith("page ")}
        with libsac.embedded(None, path) as pool:
            assert pool.info.recovered
            assert pool.info.incarnation == 2 * run
            ns = pool.namespace("n")
            acknowledged |= new
            values = [bytes.fromhex(key) for key in sorted(acknowledged)]
            assert ns.lookup(Keys.of_engine(values, None)).all()
            assert ns.verify()[1] == 0
            assert_idle(ns)
            # Every page is of a chain of this child or an earlier one, whole and in order.
            pages = 0
            for before in range(1, run + 1):
                for chain in range(4000):
                    keys = ns.keys(tokens(before, chain))
                    here = ns.lookup(keys)
                    pages += int(here.sum())
                    assert here[: int(here.sum())].all()
                    if here.any():
                        with ns.pin(keys) as prefix:
                            check(prefix, keys, RICH, prefix.pages)
                    elif chain > 400:
                        break
            assert pages == ns.stats().pages
        found = {k: g for (_, k, part), g in headers(path).items() if part == 0}
        assert len(set(found.values())) == len(found)
        assert all(g > newest for k, g in found.items() if k not in generations)
        assert all(found[k] == g for k, g in generations.items())
        generations = found
    assert len(acknowledged) > 50
    every_slot(path, "n")
    with libsac.embedded(None, path) as pool:
        ns = pool.namespace("n")
        assert put(ns, ns.keys(tokens(1, 0))) == CHAIN_PAGES
