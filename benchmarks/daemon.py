# SPDX-License-Identifier: Apache-2.0
"""A client of the daemon against memcpy, and the daemon itself: its start and its memory."""

from __future__ import annotations

import signal
from pathlib import Path
from time import perf_counter

import numpy as np
from common import Section, interleaved, median, ratio
from house import House, pool_size, shm
from pages import BATCH, fill, small_layout
from peers.sac_pool import ROWS, Sac
from peers.table import size_name
from peers.work import BATCH as BATCHES
from peers.work import RING_BYTES, SIZES, Figures, buffers, pool_bytes, sized

import libsac
from sacctl.bench.space import fill as fill_pages
from sacctl.bench.space import temporary


def by_hand(pool: libsac.Pool, size: int, repeats: int) -> tuple[float, float]:
    """Seconds to copy a page's view with numpy, and how many of them a get takes.

    Every call has another page, so that none is in the cache.
    """
    ring = max(BATCHES * 2, RING_BYTES // size)
    layout = libsac.Layout([libsac.Plane("kv", [0], size // ROWS)], ROWS)
    with temporary(pool, layout) as ns:
        keys = ns.keys(np.arange(ring * ROWS, dtype=np.uint32))
        fill_pages(ns, keys)
        target, _ = buffers(size, ring)
        target[:] = 0
        out = target.reshape(ring, ROWS, size // ROWS)
        with ns.pin(keys) as prefix:
            views = [prefix.view("kv", 0, i) for i in range(ring)]

            def copy(n: int) -> None:
                np.copyto(out[n], views[n])

            def get(n: int) -> None:
                with ns.pin(keys[-1 - n]) as one:
                    one.gather("kv", 0, out=out[-1 - n], stream=True)

            times = interleaved({"copy": copy, "get": get}, min(repeats, ring // 2 - 3), warm=3)
            views.clear()
    return median(times["copy"]), ratio(times, "copy", "get")


def values(repeats: int = 7) -> Section:
    """exists, view, get and put of a connected client, as the peers are measured."""
    section = Section(
        "a client of the daemon", "memcpy of the same bytes, by turns with every call"
    )
    with shm() as folder, House(folder / "house") as house:
        house.pool("values", [pool_bytes(SIZES, repeats)])
        with house.connect("values") as pool:
            small = pool.namespace("small", small_layout())
            keys = fill(small, 4 * BATCH)
            one, many = keys[7], keys[100 : 100 + BATCH]
            prefix = small.pin(keys)

            def look(_: int) -> None:
                with small.pin(one) as found:
                    found.view("latent", 0, 0)

            times = interleaved({"one": lambda _: small.lookup(one)}, 101, burst=200)
            section.add("exists, one key", median(times["one"]) * 1e6, "us", ("<", 3))
            times = interleaved({"many": lambda _: small.lookup(many)}, 101)
            section.add(f"exists, {BATCH} keys", median(times["many"]) * 1e3, "ms", ("<", 0.6))
            times = interleaved(
                {"view": lambda n: prefix.view("latent", 0, n % 100), "whole": look},
                101,
                burst=200,
            )
            section.add("view of a pinned page", median(times["view"]) * 1e6, "us", ("<", 5))
            section.add("pin, view, unpin of a page", median(times["whole"]) * 1e6, "us")
            prefix.close()
            figures, plain, huge = Figures("streaming"), Figures("plain"), Figures("huge")
            hand: dict[int, tuple[float, float]] = {}
            for size in SIZES:
                sized(Sac("streaming", pool), figures, size, repeats)
                sized(Sac("plain", pool, stream=False), plain, size, repeats)
                hand[size] = by_hand(pool, size, 3 * repeats)
    with libsac.embedded(pool_bytes(SIZES, repeats), prefault=True) as pool:
        page_bytes = pool.info.page_size_obtained
        for size in SIZES:
            sized(Sac("huge", pool), huge, size, repeats)
    where = f"embedded, {size_name(page_bytes)} pages"
    for size in SIZES:
        name = size_name(size)
        section.add(f"get of {name}, streaming", figures.get[size], "us")
        share = figures.get_ratio[size]
        section.add(f"get of {name}, streaming / memcpy", share, "x", ("<", 1.25))
        section.add(f"get of {name}, {where} / memcpy", huge.get_ratio[size], "x")
        section.add(f"numpy copy of a view of {name}", hand[size][0] * 1e6, "us")
        section.add(f"get of {name}, streaming / that copy", hand[size][1], "x")
        section.add(f"get of {name}, plain", plain.get[size], "us")
        section.add(f"get of {name}, plain / memcpy", plain.get_ratio[size], "x")
    for size in SIZES:
        goal = ("<", 150.0) if size == 256 << 10 else None
        section.add(f"put of {size_name(size)}", figures.put[size], "us", goal)
        section.add(f"put of {size_name(size)} / memcpy", figures.put_ratio[size], "x")
    for size in SIZES:
        goal = ("<", 1.4) if size == 256 << 10 else None
        section.add(
            f"put, batches of 32, {size_name(size)}", figures.put_batch[size], "us/page"
        )
        section.add(
            f"put, batches of 32, {size_name(size)} / memcpy",
            figures.put_batch_ratio[size],
            "x",
            goal,
        )
    return section


def own_memory(pid: int) -> int:
    """Bytes of a process that are not the pools' files: anonymous memory and memfds."""
    total, counted = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            name = " ".join(fields[5:])
            counted = not name.startswith("/") or name.startswith("/memfd:")
        elif counted and fields[0] == "Rss:":
            total += int(fields[1]) << 10
    return total


def start(pages: int, repeats: int = 3) -> Section:
    """The daemon's start with so many pages after SIGKILL and after SIGTERM; its memory."""
    section = Section(
        f"the daemon with {pages} pages of 4 KiB",
        f"{pages * 128 >> 20} MiB of headers read, {pages * 80 >> 20} MiB of index written",
    )
    with shm() as folder, House(folder / "house") as house:
        empty_s = house.started_s
        house.pool("pages", [pool_size(pages * 4096)])
        before = own_memory(house.pid)
        with house.connect("pages") as pool:
            fill(pool.namespace("bench", small_layout()), pages)
        section.add("memory, after filling", (own_memory(house.pid) - before) / pages, "B/page")
        taken: dict[signal.Signals, list[float]] = {signal.SIGKILL: [], signal.SIGTERM: []}
        for _ in range(repeats):
            for how, seconds in taken.items():
                house.stop(how)
                seconds.append(house.start())
        attached = []
        for _ in range(7):
            begin = perf_counter()
            with house.connect("pages") as pool:
                pool.namespace("bench")
                attached.append(perf_counter() - begin)
        with house.connect("pages") as pool:
            found = pool.namespace("bench").stats().pages
            assert found == pages, (found, pages)
        memory = own_memory(house.pid)
        section.add("start, no pages", empty_s, "s")
        section.add("start after SIGKILL", median(taken[signal.SIGKILL]), "s", ("<", 3))
        section.add("start after SIGTERM", median(taken[signal.SIGTERM]), "s", ("<", 3))
        section.add("attach", median(attached) * 1e3, "ms", ("<", 10))
        section.add("memory, after a start", (memory - before) / pages, "B/page", ("<", 200))
        section.add("memory, no pages", before / 2**20, "MiB")
        section.add("open files", len(list(Path(f"/proc/{house.pid}/fd").iterdir())), "")
    return section
