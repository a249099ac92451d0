# SPDX-License-Identifier: Apache-2.0
"""Random damage, done and survived in a process of its own: ``python -m attacks.flips``.

Prints each seed before it is tried, so that a crash names its own.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from attacks import victim
from attacks.region import BODY, META, NAMESPACE, SUPERBLOCK, Block, Region
from conformance.backends import copy_pool

import libsac
from libsac import errors

Span = tuple[int, int]


def spans(region: Region) -> list[Span]:
    """Pieces of the metadata that mean something: (offset, length)."""
    out = [(0, 4096), (4096, 4096)]
    for extent in (META, 0, 1):
        out.append((region.slab_at(extent, 0), 8 * region.slab_count(extent)))
    for name in victim.LAYOUTS:
        ns = region.namespace(name)
        out.append((ns.at, 32768))
        out.append((ns.at, 512))
        headers = [h.at for h in region.pages(ns).values()]
        out += [(at, ns["header_pitch"]) for at in headers]
        out.append((min(headers), max(headers) - min(headers) + ns["header_pitch"]))
    return out


def damage(memory: mmap.mmap, where: Span, rng: random.Random) -> None:
    """One change in the piece: bits, words, lines set, cleared, moved or swapped."""
    start, length = where
    at = start + rng.randrange(length)
    kind = rng.randrange(6)
    if kind == 0:
        memory[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        memory[at] = rng.randrange(256)
    else:
        size = min(length, rng.choice([4, 8, 8, 16, 64, 128, 4096]))
        at = start + rng.randrange(length // size) * size
        other = start + rng.randrange(length // size) * size
        piece = memory[at : at + size]
        if kind == 2:
            memory[at : at + size] = bytes(size)
        elif kind == 3:
            memory[at : at + size] = b"\xff" * size
        elif kind == 4:
            memory[at : at + size] = memory[other : other + size]
        else:
            memory[at : at + size] = memory[other : other + size]
            memory[other : other + size] = piece


def reseal(region: Region, rng: random.Random) -> None:
    """Makes checksums right again, of some: damage that nothing but sense can find."""
    blocks = [Block(region.meta, at, 4096, SUPERBLOCK) for at in (0, 4096)]
    for index in range(len(region.meta) // 65536):
        with contextlib.suppress(AssertionError):
            if region.slab(META, index).role == NAMESPACE:
                blocks += region.namespace_copies(index)
    for block in blocks:
        if rng.random() < 0.7 and block["magic"][:3] == b"SAC":
            block.seal()


def metadata(path: Path, rng: random.Random) -> None:
    """Damage to the metadata extent. Every byte found must be right, checksums or not."""
    with Region(path) as region:
        pieces = spans(region)
        for _ in range(rng.choice([1, 1, 2, 5, 20])):
            damage(region.meta, rng.choice(pieces), rng)
        if rng.random() < 0.4:
            reseal(region, rng)
    with contextlib.suppress(errors.SacError):
        victim.use(path)


def rows(path: Path, rng: random.Random) -> None:
    """Damage to rows. What keeps checksums and was verified holds right bytes only."""
    with Region(path) as region:
        ns = region.namespace("a")
        slabs = region.owned(ns["id"], BODY)
        for _ in range(rng.choice([1, 3, 30])):
            _, extent, index = rng.choice(slabs)
            damage(region.data[extent], (index * (2 << 20), 12 * ns["body_bytes"]), rng)
        if rng.random() < 0.5:
            region.superblock["boot_id"] = rng.randbytes(16)
            region.superblock.seal()
    with libsac.embedded(None, path) as pool:
        ns_a = pool.namespace("a")
        if not pool.info.rebooted:
            ns_a.verify()
        keys = victim.keys_of(pool, "a")
        for start in range(len(keys)):
            part = keys[start:]
            with ns_a.pin(part) as prefix:
                victim.check(prefix, part, ns_a.layout, prefix.pages)


KINDS: dict[str, Callable[[Path, random.Random], None]] = {"metadata": metadata, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("template", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.count):
        print(f"seed {seed}", flush=True)
        path = options.work / "pool"
        copy_pool(options.template, path)
        KINDS[options.kind](path, random.Random(seed))
        shutil.rmtree(path)
    print("survived", flush=True)


if __name__ == "__main__":
    main()
