# SPDX-License-Identifier: Apache-2.0
"""The hot buffer's kernels on a GPU against the NumPy reference, step by step."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hotkit.scenario import LARGE, SHAPES, Life
from hotkit.shape import FOLLOWER, PlaneShape, Shape
from hotkit.world import World

from libsac.hotbuffer.policies import NAMES

pytestmark = pytest.mark.gpu

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@pytest.fixture(scope="module")
def machine() -> Any:
    # Only where there is none: what fails on a GPU is to be seen.
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(f"no GPU: {error}")
    if cuda.cuInit(0) == NO_DEVICE:
        pytest.skip("no GPU: the driver finds none")
    pytest.importorskip("cuda.core")
    from hotkit.gpu import GpuMachine

    return GpuMachine()


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("name", SHAPES)
def test_random_life(machine: Any, name: str, policy: str, rng: np.random.Generator) -> None:
    """Rows, state, plans, counters and errors after each of many random steps."""
    for _ in range(3):
        Life(machine, replace(SHAPES[name], policy=policy), rng).play(100)


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize(
    ("slots", "units_max"), [(4096, 131072), (4096, 1 << 20), (8192, 131072)]
)
def test_large_buffer(
    machine: Any, policy: str, slots: int, units_max: int, rng: np.random.Generator
) -> None:
    """2,048 entries, as in production; contexts in one level and in two; the most slots."""
    shape = replace(LARGE, policy=policy, slots=slots, units_max=units_max)
    world = World(machine, shape, rng, requests=2, units=20000, layers=1, blocks=16)
    kept = rng.choice(20000, (2, 1, 2048))
    for _ in range(60):
        new = rng.random(kept.shape) < 0.15
        kept = np.where(new, rng.integers(0, 6000, kept.shape), kept)
        world.step([1, 0], kept, scores=rng.normal(size=kept.shape))


def test_offsets_beyond_32_bits(machine: Any, rng: np.random.Generator) -> None:
    """Pages spread over more than 8 GiB, and slots over more than 4 GiB."""
    shape = Shape(4096, 64, 4096, (PlaneShape(528, slot=1 << 14),), page_units=64)
    stepped = [71, 0, 35]
    world = World(
        machine, shape, rng, requests=72, units=64, layers=1, spread=1 << 12, far=stepped
    )
    at = world.pages.bodies[stepped]
    assert at.max() - at.min() > 1 << 33
    assert 71 * shape.slots * shape.planes[0].slot_pitch(1) > 1 << 32
    for r in stepped:
        for unit in range(64):
            world.pages.unit(0, 0, r, 0, unit)[:] = rng.integers(0, 256, 528)
    for _ in range(3):
        world.step(stepped, rng.integers(0, 64, (len(stepped), 1, 64)))


@pytest.mark.parametrize("policy", NAMES)
def test_graph_replays_as_requests_come_and_go(
    machine: Any, policy: str, rng: np.random.Generator
) -> None:
    """One captured graph: selections, tables and bindings change, the graph does not."""
    shape = Shape(policy=policy)
    world = World(machine, shape, rng, requests=4)
    batch = world.put([0, 1, 2], np.int32)
    chosen = world.put(np.full((3, 1, 64), -1), np.int32)
    out = world.put(np.zeros((3, 1, 64)), np.int32)
    args, follower = world.args(0, batch), world.args(1, batch, FOLLOWER)
    for a in (args, follower):
        a.selection, a.out, a.top_k = world.address(chosen), world.address(out), 64
    grid = (world.blocks, 3, 1)
    replay = world.module.graph([("sac_resolve", grid, args), ("sac_replay", grid, follower)])
    for step in range(60):
        if step % 7 == 3:
            gone = int(rng.integers(4))
            world.release(gone) if rng.random() < 0.5 else world.bind(gone, 300)
            world.reset([gone])
        batch[:] = rng.permutation(4)[:3]
        chosen[:] = rng.integers(-1, 300, chosen.shape)
        replay()
        world.expect([int(r) for r in batch], chosen, out, followers=[1])
