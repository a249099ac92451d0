# SPDX-License-Identifier: Apache-2.0
"""What a trace can hold, looked at when it is given: a fault is an ArgumentError that names it.

Nothing here waits for a GPU: of tensors there the type is looked at, never a number.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from libsac.buffers import is_torch
from libsac.errors import ArgumentError

if TYPE_CHECKING:
    from libsac.trace_file import Writer

__all__ = ["array", "is_gpu_tensor", "selection", "whole"]

_INT32 = np.dtype(np.int32)
# Types of torch whose every number an int32 holds.
_NARROW = ("torch.int32", "torch.int16", "torch.int8", "torch.uint8")


def whole(value: Any, what: str, low: int, high: int, todo: str = "") -> int:
    """value as an int of low..high. todo: a sentence for the error: what to do."""
    if type(value) is int and low <= value <= high:
        return value  # nearly always
    more = f". {todo}" if todo else ""
    # A tensor is refused even where it has a number: to read it may wait for a GPU.
    if isinstance(value, (bool, np.bool_)) or is_torch(value):
        kind = type(value).__name__
        raise ArgumentError(f"{what} is a {kind}; a whole number is needed{more}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{what} is {value!r}; a whole number is needed{more}") from None
    if not low <= number <= high:
        raise ArgumentError(f"{what} is {number}; {low} to {high} are allowed{more}")
    return number


def array(values: Any, what: str) -> NDArray[np.int32]:
    """Whole numbers in CPU memory as int32, which shares their memory where it can."""
    if is_torch(values):
        if values.device.type != "cpu":
            raise ArgumentError(
                f"{what} lie on {values.device}; give requests and tokens both in GPU memory, "
                "or this one in CPU memory"
            )
        values = values.detach()
    if type(values) is np.ndarray and values.dtype is _INT32:
        return values
    try:
        found: NDArray[Any] = np.asarray(values)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ArgumentError(
            f"{what} cannot be read as numbers: {error}. Give an array or tensor of int32"
        ) from error
    if found.dtype == np.int32:
        return found
    if found.size and found.dtype.kind not in "iu":
        raise ArgumentError(f"{what} are {found.dtype}; whole numbers are needed, as int32")
    if found.size and not np.can_cast(found.dtype, np.int32):
        for number in (int(found.min()), int(found.max())):
            if not -(1 << 31) <= number < 1 << 31:
                raise ArgumentError(
                    f"{what} have {number}; -2^31 to 2^31-1 are allowed (int32), -1 is padding"
                )
    return found.astype(np.int32)


def is_gpu_tensor(value: Any) -> bool:
    return is_torch(value) and bool(value.is_cuda)


def selection(
    writer: Writer, group: Any, layer: Any, requests: Any, tokens: Any
) -> tuple[int, int, Any, Any]:
    """A selection's parts as they are queued: numpy's int32, or tensors in GPU memory, whose
    numbers the writer looks at once they are here. Raises ArgumentError."""
    group, layer = writer.names(group, layer)
    on_gpu = is_gpu_tensor(tokens)
    tokens = _narrow(tokens, "tokens") if on_gpu else array(tokens, "tokens")
    if on_gpu and is_gpu_tensor(requests):
        requests = _narrow(requests, "requests")
    else:
        requests = array(requests, "requests")
        if requests.size and not writer.knows(requests):
            for number in (requests.min(), requests.max()):
                writer.request(number)
    if requests.ndim != 1:
        raise ArgumentError(
            f"requests have the shape {tuple(requests.shape)}; (B,) is needed, as [0]"
        )
    writer.fits(tuple(tokens.shape), len(requests))
    return group, layer, requests, tokens


@cache
def _narrow_type(dtype: Any) -> bool:
    return str(dtype) in _NARROW


def _narrow(value: Any, what: str) -> Any:
    """A tensor in GPU memory whose type an int32 holds."""
    if not _narrow_type(value.dtype):
        raise ArgumentError(
            f"{what} are {value.dtype}; in GPU memory int32 is needed, as for "
            f"HotBuffer.resolve: {what}.to(torch.int32)"
        )
    return value
