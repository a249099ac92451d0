# SPDX-License-Identifier: Apache-2.0
"""Index arrays and row buffers of numpy, torch and whatever else speaks DLPack.

torch is used only where the caller already gave a torch tensor.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libsac.errors import ArgumentError

__all__ = ["allocate", "index_array", "is_torch", "row_buffer", "rows_array"]


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
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ArgumentError("out is read-only")
    if isinstance(out, np.ndarray) or is_torch(out):
        return rows_array(out, "out")
    try:
        return np.from_dlpack(out)
    except (AttributeError, TypeError, BufferError, RuntimeError) as error:
        raise ArgumentError(
            f"out must be a writable array in CPU memory, not {type(out).__name__}: {error}"
        ) from error


def rows_array(rows: Any, what: str) -> Any:
    """rows as it is, unless it is an array whose memory holds no plain rows.

    Raises ArgumentError naming the dtype, layout or device.
    """
    if isinstance(rows, np.ndarray) and (rows.dtype.hasobject or not rows.dtype.isnative):
        raise ArgumentError(
            f"{what} has the dtype {rows.dtype}; plain values in this machine's byte order are "
            "needed"
        )
    if is_torch(rows):
        if rows.device.type != "cpu":
            raise ArgumentError(f"{what} lies on {rows.device}; it must be in CPU memory")
        if "strided" not in str(rows.layout):
            raise ArgumentError(f"{what} has the layout {rows.layout}; it must be dense")
        return rows.detach()
    return rows
