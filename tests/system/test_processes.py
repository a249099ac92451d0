# SPDX-License-Identifier: Apache-2.0
"""What concerns the whole process: other owners, imports, and what is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from system.run import line, python, started

import libsac
from libsac import errors


def test_open_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    with started("hold", path) as owner:
        assert line(owner) == ["ready", "1"]
        for size in (None, "32M"):
            with pytest.raises(errors.BusyError, match=f"process {owner.pid}") as caught:
                libsac.embedded(size, path)
            assert caught.value.object == str(path)
        assert owner.stdin is not None
        owner.stdin.close()
        assert owner.wait(60) == 0
    with libsac.embedded(None, path) as pool:
        assert (pool.info.incarnation, pool.info.recovered) == (2, False)


IMPORTS = """
import sys
import libsac, libsac.presets, libsac.model_config
import numpy as np
layout = libsac.Layout([libsac.Plane("kv", [0], 64)], page_tokens=4)
ns = libsac.embedded("4M").namespace("n", layout=layout)
keys = ns.keys(range(8))
with ns.put(keys) as put:
    put.write("kv", 0, np.zeros((2, 4, 64), np.uint8))
with ns.pin(keys) as prefix:
    prefix.gather("kv", 0, [1, 2], out=np.empty((2, 64), np.uint8))
print(sorted(m for m in sys.modules if m.split(".")[0] in
             ("torch", "transformers", "click", "rich", "sacctl", "pytest")))
"""


def test_torch_is_not_imported() -> None:
    assert python(IMPORTS) == "[]\n"


LEAVES = """
import os, signal, libsac, numpy as np
layout = libsac.Layout([libsac.Plane("kv", [0], 64)], page_tokens=4)
ns = libsac.embedded("4M").namespace("n", layout=layout)
with ns.put(ns.keys(range(8))) as put:
    put.write("kv", 0, np.zeros((2, 4, 64), np.uint8))
print("there", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_nothing() -> None:
    before = set(Path("/dev/shm").iterdir())
    with pytest.raises(AssertionError):
        python(LEAVES)
    assert set(Path("/dev/shm").iterdir()) <= before


FDS = """
import subprocess, sys, libsac
pool = libsac.embedded("4M", sys.argv[1], extents=2)
layout = libsac.Layout([libsac.Plane("kv", [0], 64)], page_tokens=4)
ns = pool.namespace("n", layout=layout)
out = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True)
lines = out.stdout.decode().splitlines()
print([text for text in lines if sys.argv[1] in text or "sac" in text])
"""


def test_other_programs_inherit_nothing(tmp_path: Path) -> None:
    assert python(FDS, tmp_path / "pool") == "[]\n"


ENDS = """
import libsac, sys
pool = libsac.embedded("4M", sys.argv[1])
ns = pool.namespace("n", layout=libsac.Layout([libsac.Plane("kv", [0], 64)], page_tokens=4))
prefix = ns.pin(ns.keys(range(8)))
seq = ns.sequence()
seq.extend([1])
put = ns.put(ns.keys(range(8)))
view = put.view("kv", 0, 0)
"""


def test_an_ordinary_end_closes_the_pool(tmp_path: Path) -> None:
    """Also with everything still open, whatever order the interpreter clears it away in."""
    for _ in range(2):
        assert python(ENDS, tmp_path / "pool") == ""
    with libsac.embedded(None, tmp_path / "pool") as pool:
        assert pool.namespace("n").stats().pages == 0
        assert pool.info.incarnation == 3
