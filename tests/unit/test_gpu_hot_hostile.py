# SPDX-License-Identifier: Apache-2.0
"""A hot buffer used wrongly: each time a clear error, and what is right goes on."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# Late, as what follows: skipped without torch, and the driver is chosen first.
from unit import fake_gpu  # noqa: E402

fake_gpu.use()

from unit.hot_model import CpuBuffer, Pool, ints  # noqa: E402

from libsac import Layout, Plane, errors  # noqa: E402

LAYOUT = Layout([Plane("latent", range(2), 656), Plane("other", [0], 32, group="o")], 16)
KV = Layout([Plane(p, [0], 36, group="kv", heads=2) for p in "kv"], 16)
PLANE = LAYOUT.planes[0]


class World:
    """A buffer of two requests, the first of which is bound."""

    def __init__(self, seed: int, path: str = "gpu") -> None:
        self.pool = Pool(LAYOUT, seed % 1000)
        self.buffer = CpuBuffer(
            self.pool.ns, requests=3, slots=48, top_k=32, share={1: 0}, path=path
        )
        self.prefix = self.pool.put(0, 9)
        self.buffer.bind(0, self.prefix, direct=False)

    def works(self, request: int = 0) -> None:
        """Steps of the bound request still bring what they should."""
        chosen = np.arange(3, 120, 9, dtype=np.int32)
        slots = self.buffer.resolve("latent", 0, ints([request]), ints(chosen[None]))[0]
        want = self.pool.chosen(PLANE, 0, 0, chosen)[0]
        got = self.buffer.rows("latent", 0)[slots.long()].numpy()
        np.testing.assert_array_equal(got, want)


@pytest.fixture(params=["gpu", "cpu"])
def world(request: pytest.FixtureRequest, seed: int) -> Iterator[World]:
    made = World(seed, request.param)
    yield made
    made.buffer.close()


def strided() -> Any:
    return ints([[1, 2], [3, 4]]).t()[:1]


@pytest.mark.parametrize(
    ("match", "requests", "tokens"),
    [
        ("requests must be a torch tensor, not list", [0], ints([[1]])),
        ("requests must be torch.int32, not torch.int64", torch.tensor([0]), ints([[1]])),
        ("requests lies on meta", ints([0]).to("meta"), ints([[1]])),
        ("requests has the shape", ints([[0]]), ints([[1]])),
        ("requests has the shape", ints(0).reshape(()), ints([[1]])),
        ("requests must be contiguous", ints([0, 1, 2, 3])[::2], ints([[1], [1]])),
        ("tokens must be a torch tensor, not NoneType", ints([0]), None),
        ("tokens must be torch.int32, not torch.int16", ints([0]), ints([[1]]).short()),
        ("tokens must be torch.int32, not torch.bool", ints([0]), ints([[1]]).bool()),
        ("tokens lies on meta", ints([0]), ints([[1]]).to("meta")),
        ("tokens must be contiguous", ints([0]), strided()),
        ("tokens must be contiguous", ints([0]), ints([[1]]).expand(1, 5)),
        ("tokens must be contiguous", ints([0]), ints([[1]]).to_sparse()),
        ("tokens must have the shape", ints([0]), ints([1])),
        ("tokens must have the shape", ints([0]), ints(np.zeros((1, 1, 1, 1)))),
        ("tokens must have the shape", ints([0]), ints([[1], [2]])),
        ("a batch of 4, but there are 3 requests", ints(range(4)), ints([[1]] * 4)),
        ("a selection of 33", ints([0]), ints([[1] * 33])),
        ("a selection of 34", ints([0]), ints(np.zeros((1, 2, 17)))),
    ],
)
def test_tensors_of_a_step(world: World, match: str, requests: Any, tokens: Any) -> None:
    calls: tuple[Callable[..., Any], ...] = (world.buffer.resolve, world.buffer.prefetch)
    for call in calls:
        with pytest.raises(errors.ArgumentError, match=match):
            call("latent", 0, requests, tokens)
    if match.startswith("requests"):
        with pytest.raises(errors.ArgumentError, match=match):
            world.buffer.replay("latent", 1, requests)
    world.works()
    assert world.buffer.errors() == {}


@pytest.mark.parametrize(
    ("match", "out"),
    [
        ("out must be a torch tensor", np.zeros((1, 2), np.int32)),
        ("out must be torch.int32", torch.zeros(1, 2)),
        ("out lies on meta", ints([[0, 0]]).to("meta")),
        ("out must be contiguous", ints(np.zeros((1, 4)))[:, ::2]),
        ("out has the shape", ints([[0]])),
        ("out has the shape", ints([0, 0])),
    ],
)
def test_where_the_outcome_goes(world: World, match: str, out: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=match):
        world.buffer.resolve("latent", 0, ints([0]), ints([[1, 2]]), out=out)
    world.works()


@pytest.mark.parametrize("layer", [-1, 2, 1 << 31, 1 << 40, "0", None, True])
def test_layers_that_are_not_there(world: World, layer: Any) -> None:
    wrong = (errors.ArgumentError, errors.RangeError)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: world.buffer.resolve("latent", layer, ints([0]), ints([[1]])),
        lambda: world.buffer.prefetch("latent", layer, ints([0]), ints([[1]])),
        lambda: world.buffer.replay("latent", layer, ints([0])),
        lambda: world.buffer.rows("latent", layer),
    )
    for call in calls[:3] if layer is True else calls:
        with pytest.raises(wrong):
            call()
    with pytest.raises(errors.NotFoundError):
        world.buffer.rows("no such plane", 0)
    with pytest.raises(errors.RangeError, match="not in it"):
        world.buffer.rows("other", 0)
    world.works()


def test_rows_of_new_tokens(seed: int) -> None:
    pool = Pool(KV, seed % 1000)
    buffer = CpuBuffer(pool.ns, requests=2, slots=48, top_k=8)
    sequence = pool.ns.sequence()
    sequence.extend(pool.tokens(1, 3))
    pool.write(sequence, 1, 0, 3)
    buffer.bind(0, sequence)
    good = torch.zeros(1, 1, 2, 36, dtype=torch.uint8)
    for match, wrong in (
        ("must be a torch tensor", np.zeros((1, 1, 2, 36), np.uint8)),
        ("lies on meta", good.to("meta")),
        ("layout", good.to_sparse()),
        ("shape", good[:, :, 0]),
        ("shape", torch.zeros(1, 1, 3, 36, dtype=torch.uint8)),
        ("shape", torch.zeros(1, 2, 2, 36, dtype=torch.uint8)),
        ("has 144 bytes", torch.zeros(1, 1, 2, 36)),
        ("each row must be contiguous", torch.zeros(1, 1, 2, 72, dtype=torch.uint8)[..., ::2]),
        ("multiples of 4", torch.zeros(1, 1, 2, 37, dtype=torch.uint8)[..., 1:]),
    ):
        with pytest.raises(errors.ArgumentError, match=match):
            buffer.append(0, ints([0]), {"k": good, "v": wrong})
    for match, requests, rows, first in (
        ("v' are missing", ints([0]), {"k": good}, None),
        ("not of the group", ints([0]), {"k": good, "x": good}, None),
        ("empty", ints([0]), {}, None),
        ("requests has the shape", ints([[0]]), {"k": good, "v": good}, None),
        ("first has the shape", ints([0]), {"k": good, "v": good}, ints([1, 2])),
        ("first must be torch.int32", ints([0]), {"k": good, "v": good}, torch.tensor([1])),
        ("first lies on meta", ints([0]), {"k": good, "v": good}, ints([1]).to("meta")),
    ):
        with pytest.raises(errors.ArgumentError, match=match):
            buffer.append(0, requests, rows, first=first)
    with pytest.raises((errors.ArgumentError, errors.RangeError)):
        buffer.append(1, ints([0]), {"k": good, "v": good})
    # Numbers in tensors are the kernel's to look at: nothing is written, and it says so.
    buffer.append(0, ints([0]), {"k": good, "v": good}, first=ints([3]))
    buffer.append(0, ints([1]), {"k": good, "v": good})
    buffer.append(0, ints([5]), {"k": good, "v": good})
    assert buffer.errors() == {0: {"range"}, 1: {"unbound"}, -1: {"unbound"}}
    assert buffer.stats().appended == 0
    slots = buffer.resolve("k", 0, ints([0]), ints([[[0, 1, 2]] * 2]))[0]
    for head in range(2):
        got = buffer.rows("v", 0)[slots[head].long()].numpy()
        np.testing.assert_array_equal(got, pool.rows(KV.planes[1], 0, 1, 0, 3)[head])


@pytest.mark.parametrize("i", [-1, 3, 1 << 31, 1 << 40, 0.0, None, "0", True])
def test_requests_that_are_not_there(world: World, i: Any) -> None:
    wrong = (errors.ArgumentError, errors.RangeError)
    buffer, prefix = world.buffer, world.prefix
    calls: tuple[Callable[[], Any], ...] = (
        lambda: buffer.bind(i, prefix),
        lambda: buffer.release(i),
        lambda: buffer.extend(i),
        lambda: buffer.extend([0, i]),
        lambda: buffer.written([i]),
        lambda: buffer.truncate(i, 0),
    )
    for call in calls:
        with pytest.raises(wrong):
            call()
    world.works()


def test_what_is_bound(world: World, seed: int) -> None:
    buffer, pool = world.buffer, world.pool
    for wrong in (None, 7, pool.ns, buffer, world.prefix._native):
        with pytest.raises(errors.ArgumentError, match="prefix or a sequence"):
            buffer.bind(1, wrong)  # type: ignore[arg-type]
    closed = pool.put(1, 2)
    closed.close()
    with pytest.raises(errors.ClosedError):
        buffer.bind(1, closed)
    ended = pool.ns.sequence()
    ended.close()
    with pytest.raises(errors.ClosedError):
        buffer.bind(1, ended)
    layout = Layout([Plane("latent", range(2), 640)], 16)
    other = Pool(layout, seed % 1000, pool=pool.pool, name="other").put(0, 1)
    with pytest.raises(errors.ArgumentError, match="another pool, or another layout"):
        buffer.bind(1, other)
    # None of them left anything bound; and an empty prefix is as good as any.
    buffer.bind(1, pool.ns.pin(pool.ns.keys([])))
    assert (buffer.resolve("latent", 0, ints([1]), ints([[0]])) == -1).all()
    buffer.release(1)
    with pytest.raises(errors.ArgumentError, match="request 1 is not bound"):
        buffer.release(1)
    with pytest.raises(errors.ArgumentError, match="request 1 is not bound"):
        buffer.extend([0, 1])
    world.works()
    assert buffer.errors() == {1: {"range"}}


def test_the_operators(world: World) -> None:
    turn, requests, tokens = torch.zeros(1, dtype=torch.int32), ints([0]), ints([[1]])
    ops = torch.ops.libsac
    with pytest.raises(errors.ClosedError, match="has gone"):
        ops.resolve(turn, requests, tokens, None, 1 << 40, 0, 0)
    with pytest.raises(errors.ArgumentError):
        ops.resolve(turn, requests, tokens, None, world.buffer._id, 77, 0)
    with pytest.raises(errors.ArgumentError, match="int32"):
        ops.resolve(turn, requests.long(), tokens, None, world.buffer._id, 0, 0)
    world.works()


def test_closed_is_closed(world: World) -> None:
    buffer = world.buffer
    rows = buffer.rows("latent", 0)
    before = rows.clone()
    with buffer:
        pass
    buffer.close()
    calls: tuple[Callable[[], Any], ...] = (
        lambda: buffer.resolve("latent", 0, ints([0]), ints([[1]])),
        lambda: buffer.prefetch("latent", 0, ints([0]), ints([[1]])),
        lambda: buffer.replay("latent", 1, ints([0])),
        lambda: buffer.rows("latent", 0),
        lambda: buffer.bind(1, world.prefix),
        lambda: buffer.release(0),
        lambda: buffer.extend(0),
        lambda: buffer.written(0),
        lambda: buffer.truncate(0, 1),
        lambda: buffer.refresh(),
        lambda: buffer.stats(),
        lambda: buffer.errors(),
        lambda: buffer.memory_bytes,
        lambda: buffer.memory,
    )
    for call in calls:
        with pytest.raises(errors.ClosedError):
            call()
    assert repr(buffer) == "<HotBuffer: closed>"
    assert torch.equal(rows, before)  # a view that is left keeps its memory
    world.prefix.close()
    assert world.pool.ns.evict(100) == 9  # and no page


def test_the_pool_is_closed_under_it(world: World) -> None:
    """What is bound goes on; nothing new comes."""
    pool = world.pool
    pool.pool.close()
    world.works()
    assert world.buffer.refresh() == 0
    with pytest.raises(errors.ClosedError):
        world.buffer.bind(1, world.prefix)
    with pytest.raises(errors.ClosedError):
        CpuBuffer(pool.ns, requests=1, slots=8, top_k=4)
    world.works()
    world.buffer.release(0)
    assert world.buffer.errors() == {}


def test_a_forked_child(world: World) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads at a fork
        child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (
                lambda: world.buffer.resolve("latent", 0, ints([0]), ints([[1]])),
                lambda: world.buffer.stats(),
                lambda: world.buffer.release(0),
                lambda: world.buffer.refresh(),
                lambda: CpuBuffer(world.pool.ns, requests=1, slots=8, top_k=4),
            ):
                with pytest.raises(errors.ForkedError):
                    call()
            del world
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    world.works()


ORDERS = list(itertools.permutations(["pool", "ns", "prefix", "buffer", "rows"]))

COLLECTED = """
import gc, sys
from unit import fake_gpu
fake_gpu.use()
from unit.hot_model import CpuBuffer, Pool, ints
from libsac import Layout, Plane
gc.collect()
gc.freeze()  # what torch is made of need not be looked at each time
for path in ("gpu", "cpu"):
    for order in {orders}:
        pool = Pool(Layout([Plane("latent", [0], 64)], 16), 1, size="4M")
        buffer = CpuBuffer(pool.ns, requests=1, slots=48, top_k=8, path=path)
        things = dict(pool=pool.pool, ns=pool.ns, prefix=pool.put(0, 5), buffer=buffer)
        things["buffer"].bind(0, things["prefix"])
        things["rows"] = things["buffer"].rows("latent", 0)
        del pool, buffer
        for name in order:
            del things[name]
            gc.collect()
            if "buffer" in things:
                slots = things["buffer"].resolve("latent", 0, ints([0]), ints([[1]]))
                assert (slots >= 0).all()
            if "rows" in things:
                things["rows"].sum()
# And what the interpreter's end finds.
pool = Pool(Layout([Plane("latent", [0], 64)], 16), 1, size="4M")
buffer = CpuBuffer(pool.ns, requests=2, slots=48, top_k=8)
buffer.bind(0, pool.put(0, 5))
rows = buffer.rows("latent", 0)
circle = [buffer, pool, rows]
circle.append(circle)
print("done")
"""


def test_collected_in_any_order() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED.format(orders=ORDERS)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")


def test_threads(world: World) -> None:
    """Steps of one request, others that come and go, counters, looks: all at once."""
    buffer, pool = world.buffer, world.pool
    failed: list[BaseException] = []
    stop = threading.Event()

    def forever(what: Callable[[], Any]) -> None:
        try:
            while not stop.is_set():
                what()
        except BaseException as error:  # told by the test
            failed.append(error)

    def come_and_go(i: int, salt: int) -> None:
        with pool.put(salt, 3) as prefix:
            buffer.bind(i, prefix)
            assert (buffer.resolve("latent", 0, ints([i]), ints([[40]])) >= 0).all()
            buffer.release(i)

    work: tuple[Callable[[], Any], ...] = (
        world.works,
        lambda: come_and_go(1, 1),
        lambda: come_and_go(2, 2),
        lambda: (buffer.stats(), buffer.errors(), buffer.refresh()),
    )
    threads = [threading.Thread(target=forever, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    stop.wait(1.0)
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    world.works()
    assert buffer.errors() == {}


def test_closed_by_another_thread(world: World) -> None:
    """Whoever is in the middle of something ends it, or gets ClosedError."""
    buffer = world.buffer
    ended: list[BaseException | None] = []

    def until_closed(what: Callable[[], Any]) -> None:
        try:
            while True:
                what()
        except errors.ClosedError:
            ended.append(None)
        except BaseException as error:  # told by the test
            ended.append(error)

    work: tuple[Callable[[], Any], ...] = (
        lambda: buffer.resolve("latent", 0, ints([0]), ints([[1, 2, 3]])),
        lambda: buffer.stats(),
        lambda: buffer.refresh(),
    )
    threads = [threading.Thread(target=until_closed, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.2)
    buffer.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert ended == [None] * 3
