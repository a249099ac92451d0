# SPDX-License-Identifier: Apache-2.0
"""Tensors in GPU memory, of torch and of whatever else has ``__cuda_array_interface__``."""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from libsac.buffers import is_torch
from libsac.errors import ArgumentError

__all__ = [
    "GpuArray",
    "is_gpu",
    "keep_until",
    "look_at",
    "on_stream",
    "stream_number",
    "torch_module",
]


def torch_module() -> Any:
    """torch where the process has imported it, else None. Never imports it."""
    return sys.modules.get("torch")


@dataclass(frozen=True, slots=True)
class GpuArray:
    """Where a tensor lies. Strides in bytes. device: CUDA's number of the GPU, or None."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    kind: str  # "i" int, "u" unsigned, "f" anything else
    device: int | None

    def contiguous_from(self, lead: int) -> bool:
        """Whether dimensions from number ``lead`` on lie behind one another."""
        inner = self.itemsize
        for size, stride in zip(
            reversed(self.shape[lead:]), reversed(self.strides[lead:]), strict=True
        ):
            if size != 1 and stride != inner:
                return False
            inner *= size
        return True

    def bytes_from(self, lead: int) -> int:
        """Bytes of those dimensions."""
        return math.prod(self.shape[lead:]) * self.itemsize


def is_gpu(value: Any) -> bool:
    """Whether value is a tensor in GPU memory."""
    if is_torch(value):
        return bool(value.device.type == "cuda")
    return hasattr(value, "__cuda_array_interface__")


def look_at(value: Any, what: str) -> GpuArray:
    """Address, shape and strides of a tensor in GPU memory.

    Raises ArgumentError for anything else; the message names ``what``.
    """
    if not is_gpu(value):
        where = f"on {value.device}" if is_torch(value) else f"a {type(value).__name__}"
        raise ArgumentError(f"{what} must be a tensor in GPU memory, not {where}")
    if is_torch(value):
        if value.layout is not torch_module().strided:
            raise ArgumentError(f"{what} has the layout {value.layout}; it must be dense")
        item = value.element_size()
        return GpuArray(
            value.data_ptr(),
            tuple(value.shape),
            tuple([n * item for n in value.stride()]),
            item,
            _kind(value.dtype),
            value.device.index or 0,
        )
    seen = value.__cuda_array_interface__
    try:
        code = str(seen["typestr"])
        item, kind = int(code[2:]), code[1]
        shape = tuple(int(n) for n in seen["shape"])
        strides = seen.get("strides")
        if strides is None:
            strides = tuple(math.prod(shape[i + 1 :]) * item for i in range(len(shape)))
        address, read_only = seen["data"]
        strides = tuple(int(n) for n in strides)
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"{what} has a __cuda_array_interface__ that cannot be read: {error}"
        ) from error
    if what == "out" and read_only:
        raise ArgumentError("out is read-only")
    return GpuArray(int(address or 0), shape, strides, item, kind, None)


@cache
def _kind(dtype: Any) -> str:
    name = str(dtype)
    return "i" if ".int" in name else "u" if ".uint" in name else "f"


def stream_number(stream: Any, device: int) -> int:
    """A stream as the number that the driver knows it by.

    Args:
        stream: None: torch's current stream of the device where torch is in use, else the
            default stream; a number; or an object with ``cuda_stream`` or
            ``__cuda_stream__``.
        device: CUDA's number of the GPU.
    """
    if stream is None:
        return _current(device)
    number = getattr(stream, "cuda_stream", stream)
    if hasattr(stream, "__cuda_stream__"):
        number = stream.__cuda_stream__()[1]
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ArgumentError(
            f"stream is {stream!r}; a torch.cuda.Stream, a stream's number or None is needed"
        )
    return number


def _current(device: int) -> int:
    """Number of torch's current stream; 0 where torch is not in use, or has no GPU."""
    torch = torch_module()
    # Where torch has not begun to use its GPU, no stream was made current.
    if torch is None or not torch.cuda.is_initialized():
        return 0
    # What torch's own compiler calls: without an object made for each question.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(device) if raw else torch.cuda.current_stream(device).cuda_stream)


def on_stream(number: int, device: int) -> contextlib.AbstractContextManager[Any]:
    """torch's work goes into that stream meanwhile; nothing where torch has no GPU."""
    torch = torch_module()
    if torch is None or number == _current(device):
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(
        _torch_stream(number, device)
    )
    return context


def keep_until(value: Any, number: int, device: int) -> bool:
    """Has torch keep the tensor's memory until the stream is past what it was given.

    False where it is no tensor of torch: then the caller must keep it.
    """
    if not is_torch(value) or value.device.type != "cuda":
        return False
    value.record_stream(_torch_stream(number, device))
    return True


def _torch_stream(number: int, device: int) -> Any:
    torch = torch_module()
    if number == 0:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(number, device=device)
