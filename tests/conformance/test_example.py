# SPDX-License-Identifier: Apache-2.0
"""The example that every reader tries first: twice, in one process and in two, equal bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conformance.backends import OpenPool

import libsac

EXAMPLE = """
import numpy as np, libsac
layout = libsac.Layout.preset("deepseek-v3.2-bf16", layers=4, page_tokens=64)
pool = libsac.embedded(size="256M"{where})
ns = pool.namespace("demo", layout=layout)
keys = ns.keys(range(1000), salt=b"tenant-a")
rng = np.random.default_rng(0)
with ns.put(keys) as put:
    for plane in layout.planes:
        for layer in plane.layers:
            put.write(plane.name, layer, rng.integers(
                0, 256, (len(put.missing), plane.rows, plane.row_bytes), dtype=np.uint8))
with ns.pin(keys) as prefix:
    rows = prefix.gather("latent", layer=2, tokens=np.array([3, 959, 64, 3]))
import sys
sys.stdout.buffer.write(rows.tobytes())
"""


def example(pool: libsac.Pool) -> np.ndarray:
    layout = libsac.Layout.preset("deepseek-v3.2-bf16", layers=4, page_tokens=64)
    ns = pool.namespace("demo", layout=layout)
    keys = ns.keys(range(1000), salt=b"tenant-a")
    assert len(keys) == 15
    rng = np.random.default_rng(0)
    with ns.put(keys) as put:
        for plane in layout.planes:
            for layer in plane.layers:
                shape = (len(put.missing), plane.rows, plane.row_bytes)
                put.write(plane.name, layer, rng.integers(0, 256, shape, dtype=np.uint8))
    with ns.pin(keys) as prefix:
        assert (prefix.pages, prefix.tokens) == (15, 960)
        rows: np.ndarray = prefix.gather("latent", layer=2, tokens=np.array([3, 959, 64, 3]))
    assert rows.shape == (4, 1152)
    assert rows.dtype == np.uint8
    return rows


def run(where: str) -> bytes:
    code = EXAMPLE.format(where=where)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    return done.stdout


def test_twice_in_one_pool(open_pool: OpenPool) -> None:
    pool = open_pool("256M")
    first = example(pool)
    second = example(pool)  # all pages are there already: nothing is missing, nothing written
    assert np.array_equal(first, second)
    assert np.array_equal(first[0], first[3])
    assert pool.namespace("demo").stats().commits == 15


def test_twice_in_one_process() -> None:
    rows = [example(libsac.embedded(size="256M")) for _ in range(2)]
    assert np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("on_disk", [False, True])
def test_in_two_processes(on_disk: bool, tmp_path: Path) -> None:
    where = f", path={str(tmp_path / 'pool')!r}" if on_disk else ""
    first, second = run(where), run(where)
    assert len(first) == 4 * 1152
    assert first == second == example(libsac.embedded(size="256M")).tobytes()
