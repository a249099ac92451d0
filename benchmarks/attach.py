# SPDX-License-Identifier: Apache-2.0
"""Time to attach to pools of many sizes and to let go of them; time to import libsac."""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter

import numpy as np
from common import Section, median
from house import House, shm
from peers.table import size_name

import libsac

ATTACH_SIZES = [16 << 20, 256 << 20, 1 << 30, 8 << 30]

_IMPORT = """
import time
start = time.perf_counter()
import numpy
middle = time.perf_counter()
import libsac
end = time.perf_counter()
print(middle - start, end - start)
"""


def import_time(repeats: int = 15) -> tuple[float, float]:
    """Seconds to import numpy, and libsac with it, in new processes."""
    both = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT],
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
        )
        both.append([float(x) for x in done.stdout.split()])
    return median(b[0] for b in both), median(b[1] for b in both)


def run(repeats: int = 21) -> Section:
    """connect() and one namespace, and close(), in pools of many sizes; and the import."""
    section = Section("attach and close", "one exchange of messages each, and the mappings")
    with shm() as folder, House(folder / "house") as house:
        layout = libsac.Layout([libsac.Plane("kv", [0], 4096)], 64)
        for size in ATTACH_SIZES:
            house.pool("attach", [size])
            with house.connect("attach") as pool:
                ns = pool.namespace("kv", layout)
                pages = min(size // 2, 1 << 30) // ns.info.body_bytes
                keys = ns.keys(np.arange(pages * 64, dtype=np.uint32))
                rows = np.ones((64, 64, 4096), np.uint8)
                for at in range(0, pages, 64):
                    with ns.put(keys[at : at + 64]) as put:
                        put.write("kv", 0, rows[: len(put.missing)])
            opened: list[float] = []
            closed: list[float] = []
            used: list[float] = []
            out = np.empty((pages * 64, 8), np.uint8)
            for n in range(repeats + 5):
                start = perf_counter()
                pool = house.connect("attach")
                ns = pool.namespace("kv")
                attached = perf_counter()
                if n < 5:  # every page of the kernel's that was written gets mapped
                    with ns.pin(keys) as prefix:
                        for page in range(prefix.pages):
                            rows_view = prefix.view("kv", 0, page)
                            out[page * 64 : page * 64 + 64] = rows_view[:, :8]
                            del rows_view
                begin = perf_counter()
                pool.close()
                end = perf_counter()
                opened.append(attached - start)
                (used if n < 5 else closed).append(end - begin)
            name = size_name(size) if size < 1 << 30 else f"{size >> 30} GiB"
            section.add(f"attach, pool of {name}", median(opened) * 1e3, "ms", ("<", 10))
            section.add(f"close, pool of {name}", median(closed) * 1e3, "ms", ("<", 5))
            read = f"after {pages * 256 >> 10} MiB were read"
            section.add(f"close, pool of {name}, {read}", median(used) * 1e3, "ms", ("<", 5))
            house.destroy("attach")
    numpy_s, libsac_s = import_time()
    section.add("import numpy", numpy_s * 1e3, "ms")
    section.add("import libsac, numpy with it", libsac_s * 1e3, "ms", ("<", 100))
    return section
