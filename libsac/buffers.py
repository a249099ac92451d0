# SPDX-License-Identifier: Apache-2.0
"""Index arrays and row buffers of numpy, torch and whatever else speaks DLPack.

torch is used only where the caller already gave a torch tensor.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libsac.errors import ArgumentError

__all__ = ["allocate", "index_array", "is_torch", "row_buffer", "unsigned"]


def unsigned(value: Any, what: str) -> int:
    """value as an int of 0..2^32-1; ArgumentError naming ``what`` otherwise."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{what} is {value!r}; a whole number is needed") from None
    if not 0 <= number < 1 << 32:
        raise ArgumentError(f"{what} is {number}; 0 to 2^32-1 are allowed")
    return number


def is_torch(value: Any) -> bool:
    """Whether value is a torch tensor. Never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def index_array(index: Any, what: str) -> NDArray[Any]:
    """index as an int32 or int64 numpy array, sharing memory where it can."""
    if is_torch(index):
        if index.device.type != "cpu":
            raise ArgumentError(f"{what} lies on {index.device}; it must be in CPU memory")
        index = index.detach().numpy()
    elif not isinstance(index, np.ndarray):
        try:
            if hasattr(index, "__dlpack__") and not hasattr(index, "__array__"):
                index = np.from_dlpack(index)
            else:
                index = np.asarray(index)
        except (TypeError, ValueError, OverflowError, BufferError, RuntimeError) as error:
            raise ArgumentError(
                f"{what} cannot be read as numbers in CPU memory: {error}"
            ) from error
    if index.dtype in (np.int32, np.int64):
        pass
    elif (index.dtype.kind in "iu" and index.dtype != np.uint64) or index.size == 0:
        index = index.astype(np.int64)
    else:
        raise ArgumentError(
            f"{what} must be int32 or int64, not {index.dtype}; -1 stands for a row of zeros"
        )
    if index.ndim and index.shape[-1] > 1 and index.strides[-1] != index.itemsize:
        index = np.ascontiguousarray(index)
    array: NDArray[Any] = index
    return array


def allocate(shape: tuple[int, ...], like: Any) -> Any:
    """A new uint8 buffer of that shape: torch where ``like`` is a tensor, else numpy."""
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=torch.uint8)
    return np.empty(shape, np.uint8)


def row_buffer(out: Any) -> Any:
    """out as something that can be indexed: numpy and torch as they are, others by DLPack.

    Raises ArgumentError for anything else.
    """
    if isinstance(out, np.ndarray) or is_torch(out):
        return out
    try:
        return np.from_dlpack(out)
    except (AttributeError, TypeError, BufferError, RuntimeError) as error:
        raise ArgumentError(
            f"out must be a writable array in CPU memory, not {type(out).__name__}: {error}"
        ) from error
