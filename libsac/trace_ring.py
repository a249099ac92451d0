# SPDX-License-Identifier: Apache-2.0
"""The ring of a trace recorder: places where a selection waits to be written."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libsac.buffers import is_torch
from libsac.errors import ArgumentError, GpuError
from libsac.trace_check import is_gpu_tensor

__all__ = ["Ring", "Slot"]

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class _Thread(threading.local):
    """relaxed: of this thread."""

    relaxed = False


_thread = _Thread()


def _relax() -> None:
    """Lets this thread wait for events while another one captures a CUDA graph.

    Without it a wait ends a capture in the default mode, which forbids such calls to all
    threads but those that say that they do not mind.
    """
    if _thread.relaxed:
        return
    _thread.relaxed = True
    try:
        cuda = ctypes.CDLL(os.environ.get("SAC_LIBCUDA") or "libcuda.so.1")
        cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))
    except (OSError, AttributeError):
        return


class Ring:
    """Slots that are made when they are first needed, at most ``room`` of them."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._made = 0
        self._free: list[Slot] = []
        self._lock = threading.Lock()
        self._streams: dict[Any, Any] = {}

    def take(self) -> Slot | None:
        """A free slot, or None where all are under way."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._made == self._room:
                return None
            self._made += 1
        return Slot(self)

    def prepare(self, count: int, device: Any) -> None:
        """Makes all slots, with room for count numbers each on that device. Raises
        ArgumentError, GpuError."""
        if device == "cpu":
            return
        torch = _torch(device)
        try:
            where = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ArgumentError(
                f"device is {device!r}; 'cpu', 'cuda', 'cuda:0' or a torch device is needed"
            ) from error
        if where.type == "cpu":
            return
        if where.type != "cuda":
            raise ArgumentError(f"device is '{where}'; selections lie on 'cpu' or 'cuda'")
        slots = []
        while (slot := self.take()) is not None:
            slots.append(slot)
        try:
            for slot in slots:
                slot.reserve(torch, count, where)
        finally:
            for slot in slots:
                self.give(slot)

    def give(self, slot: Slot) -> None:
        """The slot is free again."""
        with self._lock:
            self._free.append(slot)

    def clear(self) -> None:
        """Drops the memory of all free slots."""
        with self._lock:
            self._free.clear()

    def stream(self, device: Any) -> Any:
        """The side stream of that device."""
        if device not in self._streams:
            self._streams[device] = sys.modules["torch"].cuda.Stream(device)
        return self._streams[device]


class Slot:
    """Room for one selection: numpy arrays, or on the GPU and in pinned memory.

    Its memory is kept from use to use and grows with the largest selection.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._requests: NDArray[np.int32] | None = None
        self._tokens: NDArray[np.int32] | None = None
        self._gpu: Any = None  # int32 (n,): requests, then tokens
        self._pinned: Any = None
        self._ready: Any = None  # the engine's stream has copied
        self._end: Any = None  # the side stream has
        self._done: Any = None  # _end where the last selection came from a GPU
        self._shape: tuple[int, ...] = ()

    def fill(self, requests: Any, tokens: Any) -> None:
        """Takes a copy. Tensors on a GPU: queued on the current stream, nothing waits."""
        if not is_gpu_tensor(tokens):
            self._done = None
            self._requests = np.array(requests, np.int32)
            self._tokens = np.array(tokens, np.int32)
            return
        torch = sys.modules["torch"]
        device = tokens.device
        batch, count = len(requests), tokens.numel()
        self.reserve(torch, batch + count, device)
        self._shape = tuple(tokens.shape)
        with torch.cuda.device(device):
            side = self._ring.stream(device)
            if not is_torch(requests):
                # A copy: torch warns of arrays that cannot be written.
                requests = torch.as_tensor(np.array(requests, np.int32))
            self._gpu[:batch].copy_(requests, non_blocking=True)
            self._gpu[batch : batch + count].copy_(tokens.reshape(-1), non_blocking=True)
            self._ready.record()
            side.wait_event(self._ready)
            with torch.cuda.stream(side):
                self._pinned[: batch + count].copy_(
                    self._gpu[: batch + count], non_blocking=True
                )
                self._end.record()
            self._done = self._end

    def wait(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Requests and tokens, once they are in ordinary or pinned memory. For the writer."""
        if self._done is None:
            assert self._requests is not None
            assert self._tokens is not None
            return self._requests, self._tokens
        _relax()
        self._done.synchronize()
        values: NDArray[np.int32] = self._pinned.numpy()
        batch = self._shape[0]
        count = int(np.prod(self._shape))
        return values[:batch], values[batch : batch + count].reshape(self._shape)

    def reserve(self, torch: Any, count: int, device: Any) -> None:
        """Room for count numbers on the GPU and in pinned memory. Raises GpuError."""
        if self._gpu is not None and len(self._gpu) >= count and self._gpu.device == device:
            return
        try:
            # A slot is filled again only after its last copy has ended, and the next copy
            # waits for this stream: the old memory has no reader left.
            gpu = torch.empty(count, dtype=torch.int32, device=device)
            pinned = torch.empty(count, dtype=torch.int32, pin_memory=True)
            ready = torch.cuda.Event()
            # Blocking: who waits for it sleeps, and the engine has the core.
            end = torch.cuda.Event(blocking=True)
        except (AssertionError, RuntimeError) as error:  # torch without CUDA: the former
            raise GpuError(
                f"no room for a trace's ring on {device}: {error}. A GPU with its driver and "
                "torch with CUDA are needed, and memory: take a smaller ring"
            ) from error
        self._gpu, self._pinned, self._ready, self._end = gpu, pinned, ready, end


def _torch(device: Any) -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise GpuError(
            f"selections on {device!r} need torch with CUDA: {error}. Install it, or leave "
            "device out where they are in CPU memory"
        ) from error
