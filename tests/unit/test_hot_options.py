# SPDX-License-Identifier: Apache-2.0
"""What a hot buffer refuses, and what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from unit import fake_gpu  # noqa: E402

fake_gpu.use()

from unit.hot_model import CpuBuffer, Pool, ints  # noqa: E402

import libsac  # noqa: E402
from libsac import Layout, Plane, errors  # noqa: E402
from libsac.hotbuffer import policies  # noqa: E402
from libsac.hotbuffer.base import POLICIES  # noqa: E402

MLA = Layout([Plane("latent", range(2), 656), Plane("indexer", range(2), 132)], 16)


def test_import_loads_no_torch() -> None:
    code = "import libsac, sys; assert 'torch' not in sys.modules; print(libsac.HotBuffer)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "HotBuffer" in done.stdout


def test_policies_are_the_references() -> None:
    assert set(POLICIES) == set(policies.NAMES)


def test_memory_of_a_long_context() -> None:
    layout = Layout([Plane("latent", range(61), 1152)], 64)
    ns = libsac.embedded("64M").namespace("long", layout)
    for tokens, most in ((131072, 310_000_000), (1 << 20, 350_000_000)):
        with CpuBuffer(ns, requests=1, max_tokens=tokens) as buffer:
            assert buffer.memory["rows"] >= 61 * 4096 * 1152
            assert sum(buffer.memory.values()) == buffer.memory_bytes <= most


@pytest.mark.parametrize(
    ("wrong", "options"),
    [
        ("top_k is 65, but there are 64 slots.*more slots", {"top_k": 65}),
        ("slots is 8193; 1 to 8192.*larger blocks", {"slots": 8193}),
        ("slots is 20000; 1 to 8192", {"slots": 20000}),
        ("slots is 0; 1 to", {"slots": 0}),
        ("top_k is 0; 1 to", {"top_k": 0}),
        ("requests is 0; 1 to", {"requests": 0}),
        ("requests is 4294967296; 1 to", {"requests": 1 << 32}),
        ("slots is -1; 1 to", {"slots": -1}),
        ("block is 3, which does not divide", {"block": 3}),
        ("block is 129; 1 to 128", {"block": 129}),
        ("31 bits.*fewer requests", {"requests": 65535, "slots": 8192, "groups": ["many"]}),
        ("requests is 65536; 1 to 65535", {"requests": 65536}),
        ("2\\^46 bytes of GPU memory", {"requests": 65535, "slots": 8192, "groups": ["wide"]}),
        ("2\\^28 are the limit.*smaller block", {"block": 16, "groups": ["wide"]}),
        ("more than 4 planes.*Split", {"groups": ["p0"]}),
        ("policy is 'mru'", {"policy": "mru"}),
        ("path is 'rdma'", {"path": "rdma"}),
        ("window plane", {"groups": ["window"]}),
        ("state plane", {"groups": ["state"]}),
        ("named twice", {"groups": ["latent", "latent"]}),
        ("layer 1 follows layer 7", {"share": {1: 7}}),
        ("layer 1 follows itself", {"share": {1: 1}}),
        ("follows another itself", {"share": {1: 0, 2: 1}}),
        ("no group of the buffer has layer 9", {"share": {9: 0}}),
        ("max_tokens is 2147483648; 1 to", {"max_tokens": 1 << 31}),
        ("max_tokens is 0; 1 to", {"max_tokens": 0}),
        ("shared memory.*Take fewer", {"slots": 8192, "top_k": 8192, "max_tokens": 1 << 25}),
    ],
)
def test_refused_options(wrong: str, options: dict[str, Any]) -> None:
    planes = [
        Plane("latent", range(3), 64),
        Plane("window", range(3), 64, "window", window_tokens=32),
        Plane("state", range(3), 64, "state"),
        Plane("many", [0], 64, heads=5),
        Plane("wide", [0], 1 << 24, row_pitch=(1 << 24) + 16),
        *(Plane(f"p{i}", [0], 64, group="five") for i in range(5)),
    ]
    ns = libsac.embedded("1G").namespace("x", Layout(planes, 16))
    with pytest.raises(errors.ArgumentError, match=wrong):
        CpuBuffer(ns, **{"requests": 1, "slots": 64, "top_k": 32, **options})
    with pytest.raises(errors.NotFoundError, match="no plane 'kv'"):
        CpuBuffer(ns, requests=1, groups=["kv"])


def test_options_are_looked_at_before_a_driver_is() -> None:
    code = """
import libsac
ns = libsac.embedded("4M").namespace("x", libsac.Layout([libsac.Plane("k", [0], 64)], 16))
for wrong in ({"slots": 20000}, {"top_k": 65}, {"requests": 65536}, {"block": 3},
              {"max_tokens": 1 << 31}, {"share": {1: 0}}, {"threads": -1}, {"timeout": -1},
              {"device": "cpu"}, {}):
    try:
        libsac.HotBuffer(ns, **{"requests": 1, "slots": 64, "top_k": 32, **wrong})
    except libsac.errors.SacError as error:
        print(type(error).__name__, *wrong)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "SAC_LIBCUDA": "/nowhere/cuda.so"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *wrong, right = done.stdout.splitlines()
    assert right == "GpuError"
    assert [x.split()[0] for x in wrong] == ["ArgumentError"] * 9, wrong


def test_refused_calls(seed: int) -> None:
    pool = Pool(MLA, seed % 1000)
    buffer = CpuBuffer(pool.ns, requests=1, slots=48, top_k=32, max_tokens=64)
    one, some = ints([0]), ints([[1, 2]])
    with pytest.raises(errors.RangeError, match="max_tokens"):
        buffer.bind(0, pool.put(0, 5))
    with pytest.raises(errors.RangeError, match="request 3"):
        buffer.bind(3, pool.put(0, 1))
    other = libsac.embedded("8M").namespace("hot", MLA)
    with pytest.raises(errors.ArgumentError, match="another pool"):
        buffer.bind(0, other.pin(other.keys([])))
    for match, requests, tokens in (
        ("int32, not torch.int64", one, torch.tensor([[1]])),
        ("must be a torch tensor", one, np.zeros((1, 2), np.int32)),
        ("shape", one, ints([1, 2])),
        ("shape", one, ints([[1], [2]])),
        ("contiguous", one, ints([[1, 2], [3, 4]]).t()[:1, :]),
        ("int32", torch.tensor([0]), some),
        ("a selection of 33", one, ints([[0] * 33])),
        ("batch of 2", ints([0, 0]), ints([[1], [2]])),
    ):
        with pytest.raises(errors.ArgumentError, match=match):
            buffer.resolve("latent", 0, requests, tokens)
    with pytest.raises(errors.ArgumentError, match="out"):
        buffer.resolve("latent", 0, one, some, out=ints([[1]]))
    with pytest.raises(errors.ArgumentError, match="scores are for"):
        buffer.resolve("latent", 0, one, some, scores=torch.zeros(1, 2))
    with pytest.raises(errors.ArgumentError, match="made for the planes latent only"):
        buffer.resolve("indexer", 0, one, some)
    with pytest.raises(errors.RangeError, match="no layer 2"):
        buffer.resolve("latent", 2, one, some)
    with pytest.raises(errors.ArgumentError, match="follows no other"):
        buffer.replay("latent", 0, one)
    buffer.bind(0, pool.put(0, 1))
    for match, rows in (
        ("empty", {}),
        ("shape", {"latent": torch.zeros(2, 1, 656, dtype=torch.uint8)}),
        ("655 bytes", {"latent": torch.zeros(1, 1, 655, dtype=torch.uint8)}),
        ("not of the group", {"latent": torch.zeros(1, 1, 656, dtype=torch.uint8),
                              "indexer": torch.zeros(1, 1, 132, dtype=torch.uint8)}),
        ("17 new rows", {"latent": torch.zeros(1, 17, 656, dtype=torch.uint8)}),
        ("multiples of", {"latent": torch.zeros(1, 2, 657, dtype=torch.uint8)[:, :, :656]}),
    ):  # fmt: skip
        with pytest.raises(errors.ArgumentError, match=match):
            buffer.append(0, one, rows)
    for name in ("truncate", "written"):
        with pytest.raises(errors.ArgumentError, match="is a prefix"):
            getattr(buffer, name)(*((0, 1) if name == "truncate" else ([0],)))
    buffer.close()
    buffer.close()
    with pytest.raises(errors.ClosedError):
        buffer.resolve("latent", 0, one, some)
