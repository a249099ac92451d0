# SPDX-License-Identifier: Apache-2.0
"""Lookup, pin, put and recovery with a million pages."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import Bare, Section, aligned, interleaved, median, ratio

import libsac

PAGE_TOKENS = 4
ROW = 1024  # a page of 4 KiB
BATCH = 2048


def small_layout() -> libsac.Layout:
    return libsac.Layout([libsac.Plane("latent", [0], ROW)], PAGE_TOKENS)


def fill(ns: libsac.Namespace, pages: int, step: int = 4096) -> libsac.Keys:
    keys = ns.keys(np.arange(pages * PAGE_TOKENS, dtype=np.uint32))
    rows = np.random.default_rng(2).integers(0, 256, (step, PAGE_TOKENS, ROW), dtype=np.uint8)
    for at in range(0, pages, step):
        with ns.put(keys[at : at + step]) as put:
            put.write("latent", 0, rows[: len(put.missing)])
    return keys


def lookup_and_pin(pages: int, repeats: int) -> Section:
    section = Section(
        f"{pages} pages, batches of {BATCH} keys",
        "two cache lines a key (bucket, record) for a lookup; one more (count) for a pin",
    )
    with libsac.embedded(pages * 4096 + (64 << 20), prefault=True) as pool:
        ns = pool.namespace("bench", small_layout())
        keys = fill(ns, pages)
        rng = np.random.default_rng(3)
        absent = rng.integers(0, 256, (BATCH, 32), dtype=np.uint8)
        nothing = np.zeros_like(absent)
        hits = []
        for _ in range(repeats):
            values = keys.values[rng.integers(0, pages, BATCH)]
            hits.append(libsac.Keys(values, np.zeros_like(values)))
        mixed = []
        for hit in hits:
            values = np.where(rng.random(BATCH)[:, None] < 0.5, hit.values, absent)
            mixed.append(libsac.Keys(values, np.zeros_like(values)))
        misses = libsac.Keys(absent, nothing)
        runs = [int(a) for a in rng.integers(0, pages - BATCH, repeats)]
        chains = [keys[a : a + BATCH] for a in runs]

        def pin(n: int) -> None:
            ns.pin(chains[n]).close()

        def pin_scattered(n: int) -> None:
            ns.pin(hits[n]).close()

        times = interleaved(
            {
                "hits": lambda n: ns.lookup(hits[n]),
                "misses": lambda n: ns.lookup(misses),
                "mixed": lambda n: ns.lookup(mixed[n]),
                "pin": pin,
                "pin scattered": pin_scattered,
            },
            repeats,
        )
        one = hits[0][0:1]
        single = interleaved({"one": lambda n: [ns.lookup(one) for _ in range(100)]}, repeats)

        def each(name: str) -> float:
            return median(times[name]) / BATCH * 1e6

        section.add("lookup, random hits", each("hits"), "us/key", ("<", 0.3))
        section.add("lookup, misses", each("misses"), "us/key", ("<", 0.3))
        section.add("lookup, half hits", each("mixed"), "us/key", ("<", 0.3))
        section.add("lookup of one key", median(single["one"]) / 100 * 1e6, "us")
        section.add("pin and unpin, a chain", each("pin"), "us/page", ("<", 0.5))
        section.add("pin and unpin, random pages", each("pin scattered"), "us/page", ("<", 0.5))
        info = ns.info
        section.add(
            "index memory", info.index_bytes / info.capacity_pages, "B/page", ("<", 100)
        )
    return section


def put() -> Section:
    rows_a_page, row = 64, 4096
    layout = libsac.Layout([libsac.Plane("kv", [0], row)], rows_a_page)
    size = rows_a_page * row
    section = Section(
        "put of 256 KiB pages, reserve to commit", f"{size} bytes read and written a page"
    )
    pages = 1024
    with libsac.embedded(pages * size + (16 << 20), prefault=True) as pool:
        ns = pool.namespace("bench", layout)
        source = aligned(size * 8)
        target = aligned(size * pages, huge=True)
        bare = Bare()
        blocks = [source[i * size : (i + 1) * size] for i in range(8)]
        shaped = [b.reshape(1, rows_a_page, row) for b in blocks]
        # Twice the pool: half of the puts evict, as in a full cache.
        count = 2 * pages
        keys = ns.keys(np.arange(count * rows_a_page, dtype=np.uint32))
        singles = [
            libsac.Keys(keys.values[i : i + 1], np.zeros((1, 32), np.uint8))
            for i in range(count)
        ]
        order = iter(range(count))

        def ours(n: int) -> None:
            i = next(order)
            with ns.put(singles[i]) as p:
                p.write("kv", 0, shaped[i % 8])

        def plain(n: int) -> None:
            i = n % pages
            bare.memcpy(blocks[i % 8], target[i * size : (i + 1) * size])

        rounds = count - 8
        times = interleaved({"memcpy": plain, "put": ours}, rounds, warm=4)
        fresh = {k: v[: pages - 8] for k, v in times.items()}
        full = {k: v[pages + 8 :] for k, v in times.items()}
        section.add("memcpy", median(fresh["memcpy"]) * 1e6, "us/page")
        section.add("put, room left", median(fresh["put"]) * 1e6, "us/page")
        section.add("put / memcpy, room left", ratio(fresh, "put", "memcpy"), "x", (">=", 0.8))
        if full["put"]:
            section.add(
                "put / memcpy, each evicts", ratio(full, "put", "memcpy"), "x", (">=", 0.8)
            )
        # Batches of 32.
        batch = [keys[a : a + 32] for a in range(0, count, 32)]
        big = np.ascontiguousarray(np.resize(source, size * 32)).reshape(32, rows_a_page, row)
        ns.evict(1 << 30)
        batches = iter(batch)

        def ours32(n: int) -> None:
            with ns.put(next(batches)) as p:
                p.write("kv", 0, big)

        flat = big.reshape(-1)

        def plain32(n: int) -> None:
            at = n * 32 % pages
            bare.memcpy(flat, target[at * size : (at + 32) * size])

        times = interleaved({"memcpy": plain32, "put": ours32}, min(len(batch) - 4, 60), warm=3)
        section.add(
            "ours / memcpy, batches of 32 pages",
            ratio(times, "put", "memcpy"),
            "x",
            (">=", 0.8),
        )
    return section


_WRITER = """
import sys, numpy as np, libsac
sys.path.insert(0, sys.argv[3])
from pages import fill, small_layout
pages = int(sys.argv[2])
pool = libsac.embedded(pages * 4096 + (64 << 20), sys.argv[1])
fill(pool.namespace("bench", small_layout()), pages)
print("ready", flush=True)
sys.stdin.read()
"""

_OPENER = """
import sys, time
import libsac
start = time.perf_counter()
pool = libsac.embedded(path=sys.argv[1])
taken = time.perf_counter() - start
print(taken, pool.namespace("bench").stats().pages, pool.info.recovered)
"""


def recovery(pages: int, repeats: int) -> Section:
    section = Section(
        f"recovery scan of {pages} pages of 4 KiB after SIGKILL, in a new process",
        f"{pages * 128 / 2**20:.0f} MiB of headers read, "
        f"{pages * 80 / 2**20:.0f} MiB of index written",
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = str(Path(folder) / "pool")
        here = str(Path(__file__).resolve().parent)
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, path, str(pages), here],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        if writer.stdout.readline().strip() != "ready":
            raise SystemExit("the writing process failed")
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        taken = []
        for _ in range(repeats):
            done = subprocess.run(
                [sys.executable, "-c", _OPENER, path],
                capture_output=True,
                text=True,
                check=True,
            )
            seconds, found, _recovered = done.stdout.split()
            assert int(found) == pages, (found, pages)
            taken.append(float(seconds))
        section.add("first open after the kill", taken[0], "s", ("<", 2.0))
        section.add("median of later opens", median(taken), "s")
    return section
