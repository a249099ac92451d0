# SPDX-License-Identifier: Apache-2.0
"""Closing a hot buffer gives everything back, whatever happened before or happens beside it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

# Late, as what follows: skipped without torch, and the driver is chosen first.
from unit import fake_gpu  # noqa: E402

fake_gpu.use()

from unit.hot_model import CpuBuffer, Pool, ints  # noqa: E402

from libsac import Layout, Plane, errors  # noqa: E402

TESTS = Path(__file__).parents[1]
LAYOUT = Layout([Plane("latent", [0], 64)], 16)


def unmap(address: int) -> None:
    """Takes the pool's memory from the GPU behind the library's back."""
    driver = ctypes.CDLL(os.environ["SAC_LIBCUDA"])
    context = ctypes.c_void_p()
    assert driver.cuCtxPushCurrent_v2(ctypes.c_void_p(0x1000)) == 0
    for back in range(0, 8 << 20, 4096):
        if driver.cuMemHostUnregister(ctypes.c_void_p(address // 4096 * 4096 - back)) == 0:
            break
    else:
        pytest.fail("no registered memory found")
    driver.cuCtxPopCurrent_v2(ctypes.byref(context))


def fail(seed: int) -> None:
    pool = Pool(LAYOUT, seed % 1000, size="8M")
    buffer = CpuBuffer(pool.ns, requests=2, slots=16, top_k=8)
    prefix = pool.put(1, 4)
    address = prefix.view("latent", 0, 0).ctypes.data
    buffer.bind(0, prefix, direct=False)
    prefix.close()
    assert pool.ns.evict(100) == 0
    unmap(address)
    view = buffer.rows("latent", 0)
    # Whether the step itself says so, or only what comes behind it, is the driver's choice.
    with suppress(errors.GpuError):
        buffer.resolve("latent", 0, ints([0]), ints([[50, 51]]))
    with pytest.raises(errors.GpuError):
        buffer.close()
    buffer.close()
    assert repr(buffer) == "<HotBuffer: closed>"
    del view, buffer
    assert pool.ns.evict(100) == 4


def test_a_gpu_that_failed(seed: int) -> None:
    """In a process of its own: that GPU is of no use to it any more."""
    code = f"from unit.test_hot_close import fail; fail({seed})"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=False)
    assert done.returncode == 0


def bind_and_release(
    buffer: Any, i: int, prefix: Any, begun: threading.Barrier, ended: list[errors.SacError]
) -> None:
    begun.wait()
    try:
        while True:
            buffer.bind(i, prefix)
            buffer.release(i)
    except errors.SacError as error:
        ended.append(error)


def test_others_bind_and_release_meanwhile(seed: int) -> None:
    pool = Pool(LAYOUT, seed % 1000, size="8M")
    prefixes = [pool.put(n, 2) for n in range(3)]
    for _ in range(20):
        buffer = CpuBuffer(pool.ns, requests=4, slots=16, top_k=8)
        buffer.bind(0, prefixes[0])
        ended: list[errors.SacError] = []
        begun = threading.Barrier(3)

        threads = [
            threading.Thread(
                target=bind_and_release, args=(buffer, i, prefixes[i], begun, ended)
            )
            for i in (1, 2)
        ]
        for thread in threads:
            thread.start()
        begun.wait()
        buffer.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        # A bind may have been released by close before the thread came to do so.
        kinds = {type(error) for error in ended}
        assert kinds <= {errors.ClosedError, errors.ArgumentError}, ended
    for prefix in prefixes:
        prefix.close()
    assert pool.ns.evict(100) == 6
