# SPDX-License-Identifier: Apache-2.0
"""Tensors of any order of dimensions to the strides that the core's put wants."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from libsac import _core
from libsac.arguments import unsigned
from libsac.buffers import index_array, is_torch
from libsac.errors import ArgumentError
from libsac.gpu.tensor import (
    GpuArray,
    is_gpu,
    keep_until,
    look_at,
    on_stream,
    stream_number,
    torch_module,
)
from libsac.pages import Put, Sequence, row_number
from libsac.plane import Plane

if TYPE_CHECKING:
    from libsac.gpu.path import Mover

__all__ = ["put_rows"]

AXES = ("layer", "page", "head", "token")
# What torch does not keep, by the put or sequence that reads it.
_kept: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


def _order(axes: Any, name: str) -> tuple[str, ...]:
    if isinstance(axes, Mapping):
        if name not in axes:
            raise ArgumentError(f"axes say nothing of plane '{name}'")
        axes = axes[name]
    order = tuple(axes.split()) if isinstance(axes, str) else ()
    if not order or len(set(order)) != len(order) or not set(order) <= set(AXES):
        raise ArgumentError(
            f"axes is {axes!r}; words of {', '.join(AXES)}, each once, are needed, such as "
            "'layer token'"
        )
    return order


class _Source:
    """The tensors of one plane: sizes and byte strides by axis, addresses by layer."""

    def __init__(
        self, name: str, value: Any, order: tuple[str, ...], plane: Plane, layers: Many[int]
    ) -> None:
        each = list(value) if isinstance(value, (list, tuple)) else [value]
        if isinstance(value, (list, tuple)) == ("layer" in order):
            raise ArgumentError(
                f"plane '{name}': give one tensor with 'layer' in axes, or a list of tensors, "
                "one a layer, without"
            )
        self.tensors = each
        arrays = [look_at(t, f"the tensor of plane '{name}'") for t in each]
        like = arrays[0] if arrays else None
        if like is None or any(
            (a.shape, a.strides, a.itemsize) != (like.shape, like.strides, like.itemsize)
            for a in arrays
        ):
            raise ArgumentError(f"plane '{name}': all layers need tensors of one shape")
        self._check_row(name, like, order, plane)
        self.size = {axis: like.shape[i] for i, axis in enumerate(order)}
        self.stride = {axis: like.strides[i] for i, axis in enumerate(order)}
        self.device = like.device
        count = self.size.get("layer", len(each))
        if count != len(layers):
            raise ArgumentError(
                f"plane '{name}': tensors of {count} layers for {len(layers)} layers "
                f"({', '.join(map(str, layers))})"
            )
        if self.size.get("head", 1) != plane.heads:
            raise ArgumentError(
                f"plane '{name}' has {plane.heads} heads, the tensor {self.size.get('head', 1)}"
            )
        if "token" not in order and "page" not in order:
            raise ArgumentError(f"plane '{name}': axes name neither 'token' nor 'page'")
        if "layer" in order:
            step = self.stride["layer"]
            self.addresses = [like.address + i * step for i in range(count)]
        else:
            self.addresses = [a.address for a in arrays]
        self.block_rows = self.size.get("token", 1)
        self.rows = self.block_rows * self.size.get("page", 1)

    @staticmethod
    def _check_row(name: str, like: GpuArray, order: tuple[str, ...], plane: Plane) -> None:
        lead = len(order)
        if len(like.shape) < lead or not like.contiguous_from(lead):
            raise ArgumentError(
                f"plane '{name}': tensor of shape {like.shape}, axes '{' '.join(order)}': "
                "the dimensions behind them must be one contiguous row"
            )
        row = like.bytes_from(lead)
        if row != plane.row_bytes:
            raise ArgumentError(
                f"plane '{name}': a row of the tensor has {row} bytes, the plane's rows have "
                f"{plane.row_bytes}"
            )


class _Slots:
    """Row positions as int64, in GPU memory or not; None: 0, 1, ..."""

    def __init__(self, slots: Any, blocks: Any, source: _Source, name: str) -> None:
        self.address, self.on_gpu, self.count = 0, False, -1
        self.value: Any = None
        if slots is not None and blocks is not None:
            raise ArgumentError("give slots or blocks, not both")
        if blocks is not None and "page" not in source.size:
            raise ArgumentError(f"plane '{name}': blocks need 'page' in axes")
        given, what = (slots, "slots") if blocks is None else (blocks, "blocks")
        if given is None:
            return
        if is_gpu(given):
            self._take_gpu(given, what, source.block_rows)
        else:
            index = index_array(given, what).astype(np.int64)
            if index.ndim != 1:
                raise ArgumentError(f"{what} must have one dimension, not {index.ndim}")
            if what == "blocks":
                pages = source.size["page"]
                if index.size and not 0 <= int(index.min()) <= int(index.max()) < pages:
                    raise ArgumentError(f"blocks must be 0 to {pages - 1}")
                index = index[:, None] * source.block_rows + np.arange(source.block_rows)
            self.value = np.ascontiguousarray(index.reshape(-1))
            self.address, self.count = int(self.value.ctypes.data), int(self.value.size)

    def _take_gpu(self, given: Any, what: str, block_rows: int) -> None:
        if is_torch(given):
            torch = torch_module()
            if given.dim() != 1 or given.dtype.is_floating_point:
                raise ArgumentError(f"{what} must be whole numbers of one dimension")
            given = given.to(torch.int64)
            if what == "blocks":
                inside = torch.arange(block_rows, device=given.device)
                # A page below 0 must not become one that is there.
                given = (given[:, None] * block_rows + inside).reshape(-1)
            given = given.contiguous()
        elif what == "blocks" and block_rows != 1:
            raise ArgumentError("blocks in GPU memory must be a torch tensor; or give slots")
        seen = look_at(given, what)
        if seen.kind != "i" or seen.itemsize != 8 or len(seen.shape) != 1:
            raise ArgumentError(f"{what} in GPU memory must be int64 of one dimension")
        if not seen.contiguous_from(0):
            raise ArgumentError(f"{what} must be contiguous")
        self.value, self.address, self.count = given, seen.address, seen.shape[0]
        self.on_gpu = True


def _span(
    target: Put | Sequence, plane: Plane, first: int | None, slots: _Slots, rows: int
) -> Any:
    """(first, count): pages of a put, rows of a sequence."""
    if isinstance(target, Put):
        start = 0 if first is None else unsigned(first, "first")
        missing = target.missing if plane.kind == "rows" else target.missing_tails
        if slots.count < 0:
            return start, max(len(missing) - start, 0)
        if slots.count % plane.rows:
            raise ArgumentError(
                f"{slots.count} slots are no whole pages of {plane.rows} rows each"
            )
        return start, slots.count // plane.rows
    start = target._last // plane.tokens_per_row if first is None else row_number(first)
    if slots.count >= 0:
        return start, slots.count
    return start, max(min(rows, target.tokens // plane.tokens_per_row - start), 0)


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else value


def put_rows(
    mover: Mover,
    target: Any,
    planes: Any,
    axes: Any,
    layers: Any,
    slots: Any,
    blocks: Any,
    first: int | None,
    stream: Any,
) -> None:
    """See Mover.put."""
    if not isinstance(target, (Put, Sequence)):
        raise ArgumentError(f"target must be a Put or a Sequence, not {type(target).__name__}")
    if not isinstance(planes, Mapping):
        raise ArgumentError("planes must be a mapping from plane names to tensors")
    number = stream_number(stream, mover.device)
    for name, value in planes.items():
        plane = mover.layout.planes[mover._numbers(name)]
        which = plane.layers if layers is None else [unsigned(n, "layers") for n in layers]
        source = _Source(name, value, _order(axes, name), plane, which)
        if source.device not in (None, mover.device):
            raise ArgumentError(
                f"the tensor of plane '{name}' lies on GPU {source.device}, the mover's is "
                f"{mover.device}"
            )
        with on_stream(number, mover.device):
            at = _Slots(_part(slots, name), _part(blocks, name), source, name)
        start, count = _span(target, plane, first, at, source.rows)
        paged = "page" in source.size
        rows = _core.GpuRows(
            mover._numbers(name),
            list(which),
            source.addresses,
            at.address,
            at.on_gpu,
            source.block_rows if paged else 0,
            source.stride.get("page", 0),
            source.stride.get("token", 0),
            source.stride.get("head", 0),
            source.rows,
            start,
            count,
        )
        if isinstance(target, Put):
            mover._native.put(target._native, rows, number)
        else:
            mover._native.put_sequence(target._native, rows, number)
        for tensor in (*source.tensors, *([at.value] if at.on_gpu else [])):
            if not keep_until(tensor, number, mover.device):
                _kept.setdefault(target, []).append(tensor)
