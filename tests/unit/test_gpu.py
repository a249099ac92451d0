# SPDX-License-Identifier: Apache-2.0
"""libsac.gpu on the fake CUDA: devices, registration, compiling."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit import fake_gpu
from unit.fake_gpu import Knobs

import libsac
from libsac import errors, gpu

MIB = 1 << 20


@pytest.fixture
def knobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Knobs]:
    monkeypatch.setenv("SAC_LIBCUDA", fake_gpu.library())
    monkeypatch.setenv("SAC_NVRTC", fake_gpu.library())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Knobs()
    yield made
    made.restore()


@pytest.fixture
def ns(tmp_path: Path) -> Iterator[libsac.Namespace]:
    layout = libsac.Layout(
        page_tokens=16, planes=[libsac.Plane("latent", layers=range(2), row_bytes=64)]
    )
    with libsac.embedded(16 * MIB, tmp_path / "pool") as pool:
        yield pool.namespace("ns", layout)


def test_what_a_device_is(knobs: Knobs) -> None:
    with gpu.Device(0) as device:
        info = device.info()
        assert info.name == "Fake GPU 0"
        assert info.capability == (9, 0)
        assert info.numa_node == -1
        assert info.can_register
        assert info.memory_bytes == info.free_bytes + knobs["allocated_bytes"]
        assert repr(device) == "<Device 0: Fake GPU 0>"
    assert repr(device) == "<Device: closed>"
    with pytest.raises(errors.ClosedError):
        device.info()


@pytest.mark.parametrize(
    ("given", "number"), [(1, 1), (np.int64(1), 1), ("cuda:1", 1), ("cuda", 0), (None, 0)]
)
def test_how_a_device_is_named(knobs: Knobs, given: object, number: int) -> None:
    knobs["devices"] = 2
    with gpu.Device(given) as device:
        assert device.info().ordinal == number


@pytest.mark.parametrize(
    "given", [-1, 1.5, "cpu", "gpu0", "gpu:1", "cuda:", "cuda:x", True, b"0"]
)
def test_what_is_no_device(knobs: Knobs, given: object) -> None:
    with pytest.raises(errors.ArgumentError, match=r'a CUDA device is needed.*"cuda:0"'):
        gpu.Device(given)


def test_a_device_that_is_not_there(knobs: Knobs) -> None:
    with pytest.raises(errors.RangeError, match="There is no GPU 1: CUDA sees 1"):
        gpu.Device(1)


def test_registration_of_a_pool(knobs: Knobs, ns: libsac.Namespace) -> None:
    before = knobs["registered_bytes"]
    with gpu.Device() as device:
        registration = device.register(ns, chunk="4M", wait=True)
        info = registration.info()
        assert info.state == "registered"
        assert info.bytes == info.bytes_done == knobs["registered_bytes"] - before
        assert info.bytes >= 16 * MIB
        assert info.chunks == -(-info.bytes // (4 * MIB))
        assert info.reason == ""
        again = device.register(ns)
        assert again.info() == info
        assert "registered" in repr(again)
        registration.unregister()
        assert again.info().state == "ended"
        assert knobs["registered_bytes"] == before
        with pytest.raises(errors.GpuError, match="not registered with CUDA any more"):
            again.wait()
        with pytest.raises(errors.ArgumentError, match="multiple of 4096"):
            device.register(ns, chunk=5000)


def test_it_ends_with_the_pool(knobs: Knobs, tmp_path: Path) -> None:
    before = knobs["registered_bytes"]
    layout = libsac.Layout(
        page_tokens=16, planes=[libsac.Plane("latent", layers=range(1), row_bytes=64)]
    )
    with gpu.Device() as device:
        with libsac.embedded(8 * MIB, tmp_path / "short") as pool:
            space = pool.namespace("ns", layout)
            registration = device.register(space, wait=True)
            assert knobs["registered_bytes"] > before
        del space
        assert knobs["registered_bytes"] == before
        assert knobs["unregistered_late"] == 0
        assert registration.info().state == "ended"


def test_waiting_has_an_end(knobs: Knobs, ns: libsac.Namespace) -> None:
    knobs["slow_ms"] = 400
    with gpu.Device() as device:
        registration = device.register(ns)
        assert registration.info().state == "running"
        with pytest.raises(errors.BusyError, match="is not registered with CUDA after"):
            registration.wait(0.15)
        registration.wait()
        registration.wait(0)


def test_a_refusal_keeps_its_reason(knobs: Knobs, ns: libsac.Namespace) -> None:
    knobs["refuse_after"] = 0
    knobs["refuse_result"] = 2
    with gpu.Device() as device:
        registration = device.register(ns)
        with pytest.raises(errors.GpuError, match="CUDA_ERROR_OUT_OF_MEMORY") as caught:
            registration.wait()
        assert caught.value.errno == 2
        info = registration.info()
        assert info.state == "refused"
        assert info.result == 2
        assert info.bytes_done == 0
        assert str(caught.value) == info.reason


def test_a_forked_child_gets_an_error(knobs: Knobs, ns: libsac.Namespace) -> None:
    device = gpu.Device()
    registration = device.register(ns, wait=True)

    def refused(call: Callable[[], object]) -> bool:
        try:
            call()
        except errors.ForkedError:
            return True
        return False

    child = os.fork()
    if child == 0:
        calls: list[Callable[[], object]] = [device.info, registration.info, gpu.Device]
        os._exit(0 if all(refused(call) for call in calls) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert registration.info().state == "registered"
    device.close()


def test_compiled_once(knobs: Knobs) -> None:
    first = gpu.compile_kernel("args.h", "sm_103", {"A": 1, "B": "2"})
    assert (first.arch, first.cached, first.nvrtc_version) == ("sm_100", False, 13000)
    assert "ptxas info" in first.log
    assert first.not_kept == ""
    compiles = knobs["compiles"]
    second = gpu.compile_kernel("args.h", "sm_103", {"A": 1, "B": "2"})
    assert second.cached
    assert (second.log, second.cubin_bytes) == (first.log, first.cubin_bytes)
    assert knobs["compiles"] == compiles
    assert not gpu.compile_kernel("args.h", "sm_103", {"A": 1, "B": "3"}).cached


def test_compile_errors(knobs: Knobs) -> None:
    with pytest.raises(errors.GpuError, match="FAKE_ERROR is defined") as caught:
        gpu.compile_kernel("args.h", "sm_90", {"FAKE_ERROR": 1})
    assert caught.value.errno == 6
    with pytest.raises(errors.NotFoundError, match=r"no kernel source 'none\.cu'"):
        gpu.compile_kernel("none.cu", "sm_90", {})
    with pytest.raises(errors.ArgumentError, match="is no architecture"):
        gpu.compile_kernel("args.h", "h200", {})
    with pytest.raises(errors.ArgumentError, match="is no name of a macro"):
        gpu.compile_kernel("args.h", "sm_90", {"-include": "/etc/passwd"})
    with pytest.raises(errors.GpuError, match="need a GPU of sm_80 or newer; sm_70 is older"):
        gpu.compile_kernel("args.h", "sm_70", {})
    with pytest.raises(errors.GpuError, match=r"does not compile for sm_120.*a newer one"):
        gpu.compile_kernel("args.h", "sm_120", {})
    wrong: list[tuple[str, tuple[Any, Any, Any]]] = [
        ('arch is 90; an architecture is written "sm_90"', ("args.h", 90, {})),
        ("macros must be a mapping", ("args.h", "sm_90", ["A"])),
        ("a macro's name is 1", ("args.h", "sm_90", {1: 1})),
        ("source is 1", (1, "sm_90", {})),
    ]
    for words, given in wrong:
        with pytest.raises(errors.ArgumentError, match=words):
            gpu.compile_kernel(*given)


def test_the_sources_are_those_of_the_package() -> None:
    folder = Path(libsac.__file__).parent / "hotbuffer" / "kernels"
    files = {
        f.name: f.read_text() for f in folder.iterdir() if f.suffix in (".cu", ".cuh", ".h")
    }
    if not files:
        pytest.skip("the package lies without its sources here")
    assert gpu.kernel_sources() == files
