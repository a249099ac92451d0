# SPDX-License-Identifier: Apache-2.0
"""The hot buffer's kernels, from their own sources, on this CPU against the reference.

tests/hotkit/cuda_on_cpu.hpp says how; tests/gpu plays the same on a GPU, for longer.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from hotkit.machine import CpuMachine
from hotkit.new_rows import NewRows, append
from hotkit.scenario import SHAPES, Life
from hotkit.shape import Gather, PlaneShape, Scatter, Shape, sizes
from hotkit.slots import FarSlots
from hotkit.world import World

from libsac.hotbuffer.policies import NAMES

pytestmark = pytest.mark.skipif(CpuMachine.compiler is None, reason="needs g++")

LIVES = [
    *((name, NAMES[i % len(NAMES)]) for i, name in enumerate(SHAPES)),
    *(("plain", policy) for policy in NAMES),
    *(("odd", policy) for policy in NAMES),
    *(("early", policy) for policy in NAMES),
]


@pytest.fixture(scope="module")
def machine() -> CpuMachine:
    return CpuMachine()


@pytest.mark.parametrize(("name", "policy"), sorted(set(LIVES)))
def test_random_life(
    machine: CpuMachine, name: str, policy: str, rng: np.random.Generator, seed: int
) -> None:
    """Rows, state, plans, counters and errors after each of many random steps."""
    machine.seed = seed
    Life(machine, replace(SHAPES[name], policy=policy), rng).play(15)


def test_arguments_are_laid_out_as_in_the_header(machine: CpuMachine) -> None:
    """What Python gives the kernels is what args.h says, and so are the sizes of memory."""
    shape = Shape(slots=257, top_k=131, units_max=1 << 20, policy="lru_score")
    machine.load("hot.cu", shape)
    library = machine.built["hot.cu", shape]
    for name, size in sizes().items():
        assert ctypes.c_uint.in_dll(library, f"size_of_{name}").value == size, name
    assert library.sac_shared_bytes(131) == shape.shared_bytes(131)
    assert library.sac_shared_bytes(16) == shape.shared_bytes(16)
    assert library.sac_early_bytes() == shape.early_bytes()
    assert library.sac_plan_bytes() == shape.plan_bytes
    assert library.sac_threads() == shape.threads


def test_a_direct_request_grows_past_the_buffer(
    machine: CpuMachine, rng: np.random.Generator
) -> None:
    """Loaded whole, appended to, and then an ordinary request: every row right throughout."""
    world = World(machine, Shape(slots=40, top_k=30), rng, units=35, most=80, layers=2)
    world.bind(1, 35, direct=True)
    world.load(1)
    for units in (36, 38, 40, 41, 45, 60, 61):
        new = units - world.units(1)
        world.resize(1, units)
        append(world, [1], new)
        world.step([1], rng.integers(0, units, (1, 1, 30)))
        world.replay([1], 1)
    assert world.counted["evictions"] > 0


@pytest.mark.parametrize("policy", NAMES)
def test_a_direct_request_that_grew_and_shrank_is_direct_no_more(
    machine: CpuMachine, policy: str, rng: np.random.Generator
) -> None:
    """Its units have other slots by then: rows appended go there, and a resolve finds them."""
    shape = Shape(slots=40, top_k=30, policy=policy)
    world = World(machine, shape, rng, units=35, most=80, layers=2)
    world.bind(1, 35, direct=True)
    world.load(1)
    world.resize(1, 60)
    for _ in range(6):
        world.step([1], rng.permutation(60)[:30].reshape(1, 1, 30))
        world.replay([1], 1)
    world.resize(1, 30)
    world.reset([1], units=30)
    for units in (33, 38, 39):
        new = units - world.units(1)
        world.resize(1, units)
        append(world, [1], new)
        world.step([1], np.arange(units - 30, units).reshape(1, 1, 30))
        world.replay([1], 1)
    elsewhere = world.lanes[1].find(np.arange(30))
    assert (elsewhere[elsewhere >= 0] != np.flatnonzero(elsewhere >= 0)).any()
    append(world, [1], 15, [0])
    append(world, [1], 15, [15])


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("policy", NAMES)
def test_rows_below_the_first_open_one_are_not_appended(
    machine: CpuMachine, policy: str, direct: bool, rng: np.random.Generator
) -> None:
    """Neither page nor slot nor order changes for them; the others of the call are written."""
    shape = Shape(slots=64, top_k=30, policy=policy, heads=2)
    world = World(machine, shape, rng, units=50, layers=2)
    world.bind(1, 50, direct=direct)
    if direct:
        world.load(1)
    world.step([1, 0], rng.integers(0, 50, (2, 2, 30)))
    world.replay([1, 0], 1)
    world.table[1]["open"], world.table[0]["open"] = 48, 50
    for first in (None, [40, 40], [46, 46], [49, -1], [0, 49]):
        append(world, [1, 0], 5, first)
    written = [2 + 0, 0 + 0, 2 + 0, 1, 0]  # (48, 49), none, (48, 49), (49), none
    assert world.counted["appended"] == sum(written) * 2 * 2
    world.table[1]["open"] = 1 << 40
    append(world, [1], 3)
    assert world.counted["appended"] == sum(written) * 2 * 2


@pytest.mark.parametrize("direct", [False, True])
def test_rows_below_the_first_open_one_of_blocks(
    machine: CpuMachine, direct: bool, rng: np.random.Generator
) -> None:
    shape = Shape(slots=12, top_k=12, block=4, planes=(PlaneShape(16),))
    world = World(machine, shape, rng, requests=1, units=8, layers=1, blocks=1)
    world.bind(0, 8, direct=direct)
    if direct:
        world.load(0)
    world.table[0]["open"] = 16  # a page: 4 units of 4 rows
    before = world.pages.pool.copy()
    new = NewRows(world, 0, [0], 8, [12])  # rows 12 to 19
    new.launch()
    assert world.errors[0] == 1
    world.errors[:] = 0
    assert int(world.counters[6]) == 4
    for row in range(12, 20):
        unit, at = divmod(row, 4)
        got = world.pages.unit(0, 0, 0, 0, unit)[at * 16 : at * 16 + 16]
        if row < 16:
            offset = got.ctypes.data - world.pages.pool.ctypes.data
            np.testing.assert_array_equal(got, before[offset : offset + 16])
        else:
            np.testing.assert_array_equal(got, new.of[0][0, row - 12, 0, :16])
    slots = slots_of(world, 0, [3, 4])
    for unit, slot in slots.items():
        want = world.pages.unit(0, 0, 0, 0, unit)
        np.testing.assert_array_equal(world.slots[0].held(slot)[:64], want)


def test_a_replay_goes_by_no_plan_of_before(
    machine: CpuMachine, rng: np.random.Generator
) -> None:
    """A request that was bound anew, or whose leader selected nothing, replays nothing."""
    world = World(machine, Shape(heads=2), rng)
    chosen = rng.integers(0, 300, (2, 2, 64))
    world.step([1, 0], chosen)
    world.reset([1])
    world.replay([1, 0], 1)
    world.step([1, 0], chosen)
    world.step([0], chosen[:1, :, :0])
    world.replay([1, 0], 1)
    world.step([0], rng.integers(0, 300, (1, 2, 64)))
    world.replay([0], 1)


def test_direct_units_that_are_not_there(machine: CpuMachine, rng: np.random.Generator) -> None:
    """Without rows yet: out of range; on a dead page: that."""
    world = World(machine, Shape(slots=40, top_k=8), rng, units=20, most=40)
    world.bind(1, 20, direct=True)
    world.pages.kill(1, 2)
    world.load(1)
    world.step([1], [[[8, 7, 7, -1, 0, 1, 2, 3]]])
    world.resize(1, 30)
    world.step([1], [[[19, 20, 29, -1, 0, 1, 2, 3]]])
    world.step([1], [[[19, 20, 29, 11, 0, 1, 2, 30]]])


def slots_of(world: World, request: int, units: list[int]) -> dict[int, int]:
    """Where a resolve, without the reference, brings units of a request with one head."""
    which, out = world.put([request], np.int32), world.put([[units]], np.int32)
    chosen = world.put([[units]], np.int32)
    args = world.args(0, which)
    args.selection, args.out = world.address(chosen), world.address(out)
    args.top_k = len(units)
    world.module.launch("sac_resolve", (world.blocks, 1, 1), args)
    assert not world.errors.any()
    assert (out >= 0).all()
    return {u: int(slot) for u, slot in zip(units, out[0, 0], strict=True)}


@pytest.mark.parametrize("direct", [False, True])
def test_append_to_blocks(machine: CpuMachine, direct: bool, rng: np.random.Generator) -> None:
    """Rows of a unit of 16 rows come one by one: what a slot holds equals the pool."""
    shape = Shape(slots=12, top_k=12, block=16, planes=(PlaneShape(24, 32),))
    world = World(machine, shape, rng, requests=1, units=5, most=12, layers=2, blocks=1)
    world.bind(0, 5, direct=direct)
    if direct:
        world.load(0)
    rows = 5 * 16
    for count in (1, 3, 16, 7, 16, 5, 16):
        units = -(-(rows + count) // 16)
        world.resize(0, units, rows + count)
        new = NewRows(world, 0, [0], count)
        new.launch()
        assert not world.errors.any()
        for n in range(count):
            unit, row = divmod(rows + n, 16)
            written = world.pages.unit(0, 0, 0, 0, unit)[row * 32 : row * 32 + 24]
            np.testing.assert_array_equal(written, new.of[0][0, n, 0, :24])
        rows += count
        for unit, slot in slots_of(world, 0, list(range(max(0, units - 4), units))).items():
            done = min(16, rows - unit * 16)
            got = world.slots[0].held(slot)[: done * 32]
            want = world.pages.unit(0, 0, 0, 0, unit)[: done * 32]
            for i in range(done):  # padding between rows means nothing
                np.testing.assert_array_equal(
                    got[i * 32 : i * 32 + 24], want[i * 32 : i * 32 + 24]
                )


def test_slots_that_are_compared_in_chunks(
    machine: CpuMachine, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tests/gpu does with gigabytes: right steps pass, a stray or missing byte does not."""
    monkeypatch.setattr("hotkit.slots.CHUNK", 5 * 48)
    shape = Shape(planes=(PlaneShape(24, slot=48),))
    world = World(machine, shape, rng, requests=3, units=40, layers=1, spread=8, far=[2, 0])
    assert np.ptp(world.pages.bodies) > 7 * 40 * 24
    for r in (2, 0):
        for unit in range(40):
            world.pages.unit(0, 0, r, 0, unit)[:] = rng.integers(0, 256, 24)
    for _ in range(3):
        world.step([2, 0], rng.integers(0, 40, (2, 1, 64)))
    slots = world.slots[0]
    assert isinstance(slots, FarSlots)
    memory = slots.memory.memory  # type: ignore[attr-defined]
    written = min(slots.wanted)
    for at in (0, 47, 48 * (written + 1), 48 * (written + 1) + 24, 48 * 200, len(memory) - 1):
        memory[at] ^= 1
        with pytest.raises(AssertionError):
            slots.check()
        memory[at] ^= 1
    slots.check()


def test_scatter_puts_what_the_cpu_gathered_where_the_plan_says(
    machine: CpuMachine, rng: np.random.Generator
) -> None:
    """Resolve with PLAN_ONLY copies nothing; staged rows then go to the planned slots."""
    shape = Shape(planes=(PlaneShape(24), PlaneShape(8)))
    world = World(machine, shape, rng, layers=1)
    world.step([2, 0], rng.integers(0, 300, (2, 1, 64)), flags=1)
    staging = [np.zeros((128, p.slot_pitch(1)), np.uint8) for p in shape.planes]
    starts, at = world.put([0, 0], np.uint32), 0
    for b, lane in enumerate([2, 0]):
        starts[b] = at
        for unit, _ in world.moves[lane]:
            for p, plane in enumerate(shape.planes):
                staging[p][at, : plane.row] = world.pages.unit(p, 0, lane, 0, unit)
            at += 1
        world.copy(0, lane, 0, world.moves[lane])
    args = Scatter(world.args(0, world.put([2, 0], np.int32)), starts=world.address(starts))
    for p, rows in enumerate(staging):
        args.staging[p] = world.address(rows)
    world.module.launch("sac_scatter", (3, 2, 1), args)
    world.check()


@pytest.mark.parametrize("row", [1152, 584, 132, 7])
def test_gather(machine: CpuMachine, row: int, rng: np.random.Generator) -> None:
    """Rows of several requests and heads into a tensor; wrong ones are zeros and an error."""
    shape = Shape(planes=(PlaneShape(row),), heads=2)
    world = World(machine, shape, rng, requests=4, units=90, layers=2)
    world.pages.kill(1, 3)
    world.release(3)
    requests = [1, 3, 0, 9]
    units = world.put(rng.integers(0, 90, (4, 2, 50)), np.int32)
    units[0, 0, :4], units[2, 1, :4] = [12, -1, 13, 89], [90, -2, -(2**31), -1]
    pitch = -(-row // 16) * 16
    out = world.put(np.full((4, 2, 50, pitch), 0xEE), np.uint8)
    which, at = world.put(requests, np.int32), world.address
    args = Gather(
        at(units), at(which), at(world.table), at(world.errors), at(out), pitch,
        int(world.pages.offsets[0, 1]), world.pages.head_stride[0], 50, 4,
    )  # fmt: skip
    machine.load("gather.cu", shape).launch("sac_gather", (3, 4, 2), args)
    for b, r in enumerate(requests):
        for h in range(2):
            for i, unit in enumerate(units[b, h]):
                there = r in (0, 1) and 0 <= unit < 90 and not (r == 1 and unit // 4 == 3)
                want = (
                    world.pages.unit(0, 1, r, h, int(unit))
                    if there
                    else np.zeros(row, np.uint8)
                )
                np.testing.assert_array_equal(out[b, h, i, :row], want)
    assert (out[..., row:] == 0xEE).all()
    assert world.errors.tolist() == [1, 4, 0, 2, 2]
