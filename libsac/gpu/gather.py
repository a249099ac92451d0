# SPDX-License-Identifier: Apache-2.0
"""Arguments of a gather to GPU memory, looked at and shaped."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence as Many
from typing import TYPE_CHECKING, Any

import numpy as np

from libsac.arguments import unsigned
from libsac.buffers import index_array, is_torch
from libsac.errors import ArgumentError
from libsac.gpu.tensor import (
    is_gpu,
    keep_until,
    look_at,
    on_stream,
    stream_number,
    torch_module,
)
from libsac.pages import Prefix, Sequence

if TYPE_CHECKING:
    from libsac.gpu.path import Mover

__all__ = ["gather_rows"]

MOST = (1 << 31) - 1
_HERE: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


def _on_host(index: Any, what: str, per_row: int) -> Any:
    """int32 rows in the host's memory; what does not fit stays a number that is not there."""
    array = index_array(index, what)
    if per_row == 1 and array.dtype == np.int32:
        return np.ascontiguousarray(array)
    if per_row > 1:
        # -1 stays -1, and what is below must not become it.
        array = np.where(array < -1, array, array // per_row)
    return np.ascontiguousarray(np.clip(array, -2, MOST), dtype=np.int32)


def _on_gpu(index: Any, what: str, per_row: int) -> Any:
    """int32 rows in GPU memory."""
    if is_torch(index):
        torch = torch_module()
        if index.dtype not in (torch.int32, torch.int64):
            raise ArgumentError(f"{what} must be int32 or int64, not {index.dtype}")
        if per_row > 1:
            held = torch.div(index, per_row, rounding_mode="floor")
            index = torch.where(index < -1, index, held)
        if index.dtype == torch.int64:
            index = index.clamp(-2, MOST).to(torch.int32)
        return index.contiguous()
    seen = look_at(index, what)
    if per_row > 1 or seen.kind != "i" or seen.itemsize != 4 or not seen.contiguous_from(0):
        raise ArgumentError(
            f"{what} in GPU memory that are no torch tensor must be contiguous int32 rows"
        )
    return index


def gather_rows(
    mover: Mover,
    plane: str,
    layer: int,
    prefixes: Many[Prefix | Sequence],
    tokens: Any,
    rows: Any,
    head: int | None,
    out: Any,
    path: int,
    stream: Any,
) -> tuple[Any, int]:
    """The filled tensor, and the number of the gather. See Mover.gather."""
    number = mover._numbers(plane)
    spec = mover.layout.planes[number]
    layer = unsigned(layer, "layer")
    if (tokens is None) == (rows is None):
        raise ArgumentError("give tokens or rows")
    if isinstance(prefixes, (Prefix, Sequence)):
        raise ArgumentError("prefixes must be a list of prefixes or sequences")
    natives = []
    for p in prefixes:
        if not isinstance(p, (Prefix, Sequence)):
            raise ArgumentError("prefixes must be a list of prefixes or sequences")
        natives.append(p._prefix())
    if rows is None and spec.kind == "state":
        raise ArgumentError(f"plane '{plane}' has one row a page: give rows, not tokens")
    given, what = (tokens, "tokens") if rows is None else (rows, "rows")
    per_row = spec.tokens_per_row if rows is None else 1
    per_head = spec.heads > 1 and head is None
    heads = spec.heads if per_head else 1
    handle = stream_number(stream, mover.device)
    on_gpu = is_gpu(given)
    # Temporary tensors are made in the stream that reads them.
    with on_stream(handle, mover.device) if on_gpu or out is None else _HERE:
        index = (_on_gpu if on_gpu else _on_host)(given, what, per_row)
        seen = look_at(index, what) if on_gpu else None
        lead = tuple(index.shape if seen is None else seen.shape)
        want = (len(prefixes), *(heads,) * per_head)
        if len(lead) != len(want) + 1 or lead[:-1] != want:
            raise ArgumentError(
                f"gather of plane '{plane}': {what} must have the shape "
                f"({', '.join(map(str, (*want, 'k')))}), not {lead}"
            )
        result = _new(lead, spec.row_bytes, mover.device) if out is None else out
    target = look_at(result, "out")
    if target.shape[: len(lead)] != lead or not target.contiguous_from(0):
        raise ArgumentError(
            f"out has the shape {target.shape}; it must be contiguous and begin with {lead}"
        )
    if target.bytes_from(len(lead)) != spec.row_bytes:
        raise ArgumentError(
            f"a row of out has {target.bytes_from(len(lead))} bytes; the plane's rows have "
            f"{spec.row_bytes}"
        )
    for array in (target, seen):
        if array is not None and array.device not in (None, mover.device):
            raise ArgumentError(
                f"out and {what} must lie on the mover's GPU {mover.device}, not {array.device}"
            )
    count = mover._native.gather(
        natives,
        number,
        layer,
        0 if head is None else unsigned(head, "head"),
        heads,
        int(index.ctypes.data) if seen is None else seen.address,
        on_gpu,
        lead[-1],
        target.address,
        path,
        handle,
    )
    # As for torch's own functions: what its current stream uses, torch keeps by itself.
    if stream is not None:
        for tensor in (result, *([index] if on_gpu else [])):
            keep_until(tensor, handle, mover.device)
    return result, count


def _new(lead: tuple[int, ...], row_bytes: int, device: int) -> Any:
    torch = torch_module()
    if torch is None:
        raise ArgumentError("give out: without torch there is nothing to make a tensor of")
    if torch.version.cuda is None:
        raise ArgumentError("give out: this torch was built without CUDA")
    return torch.empty((*lead, row_bytes), dtype=torch.uint8, device=f"cuda:{device}")
