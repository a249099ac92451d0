# SPDX-License-Identifier: Apache-2.0
"""Tensors that a hot buffer is given, looked at: a fault is an ArgumentError that names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from libsac.arguments import unsigned
from libsac.errors import ArgumentError

if TYPE_CHECKING:
    from libsac.plane import Plane

__all__ = ["Where", "batch_of", "count_of", "request_list", "selection", "source_rows"]


@dataclass(frozen=True, slots=True)
class Where:
    """The device whose memory tensors must lie in."""

    kind: str
    index: int

    def check(self, tensor: Any, what: str, dtype: torch.dtype) -> None:
        """Raises ArgumentError unless tensor is a contiguous one of dtype, there."""
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"{what} must be a torch tensor, not {type(tensor).__name__}")
        if tensor.dtype != dtype:
            raise ArgumentError(f"{what} must be {dtype}, not {tensor.dtype}")
        self.check_place(tensor, what)
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            raise ArgumentError(f"{what} must be contiguous")

    def check_place(self, tensor: torch.Tensor, what: str) -> None:
        """Raises ArgumentError unless tensor lies there."""
        device = tensor.device
        if device.type != self.kind or (self.kind == "cuda" and device.index != self.index):
            raise ArgumentError(
                f"{what} lies on {device}; the buffer is on {self.kind}:{self.index}"
            )


def request_list(requests: int | Iterable[int]) -> list[int]:
    """One request or several as a list; ArgumentError for what is no request's number."""
    if isinstance(requests, (bytes, str, Mapping)):
        raise ArgumentError(
            f"requests is a {type(requests).__name__}; a number or a list of them is needed"
        )
    if isinstance(requests, Iterable):
        return [unsigned(r, "request") for r in requests]
    return [unsigned(requests, "request")]


def batch_of(where: Where, requests: Any) -> int:
    """How many requests a tensor of their numbers names; ArgumentError unless it is one."""
    where.check(requests, "requests", torch.int32)
    if requests.dim() != 1:
        raise ArgumentError(
            f"requests has the shape {tuple(requests.shape)}; one of (B,) is needed"
        )
    return int(requests.shape[0])


def selection(
    where: Where, heads: int, requests: Any, tokens: Any, scores: Any
) -> tuple[int, int]:
    """(batch, entries of each lane's selection) of tensors as HotBuffer.resolve takes them."""
    batch = batch_of(where, requests)
    where.check(tokens, "tokens", torch.int32)
    want = "(B, K) or (B, Q, K)" if heads == 1 else f"(B, {heads}, K) or (B, {heads}, Q, K)"
    lead = 1 if heads == 1 else 2
    if (
        not lead < tokens.dim() <= lead + 2
        or tokens.shape[0] != batch
        or (heads > 1 and tokens.shape[1] != heads)
    ):
        raise ArgumentError(
            f"tokens must have the shape {want} for requests of ({batch},), not "
            f"{tuple(tokens.shape)}"
        )
    if scores is not None:
        where.check(scores, "scores", torch.float32)
        if scores.shape != tokens.shape:
            raise ArgumentError(
                f"scores has the shape {tuple(scores.shape)}; it must be as tokens, "
                f"{tuple(tokens.shape)}"
            )
    return batch, tokens.numel() // (batch * heads) if batch else 0


def source_rows(
    where: Where, plane: Plane, number: int, rows: Any, batch: int, count: int
) -> tuple[int, int, int, int, int]:
    """(plane's number, address, strides in bytes of request, token and head) of new rows.

    rows: (B, n, row) or (B, n, heads, row), any dtype whose bytes make up the row.
    """
    what = f"rows of plane '{plane.name}'"
    if not isinstance(rows, torch.Tensor):
        raise ArgumentError(f"{what} must be a torch tensor, not {type(rows).__name__}")
    where.check_place(rows, what)
    if rows.layout != torch.strided:
        raise ArgumentError(f"{what} has the layout {rows.layout}; it must be dense")
    lead = (batch, count, *(plane.heads,) * (plane.heads > 1))
    if rows.dim() != len(lead) + 1 or tuple(rows.shape[:-1]) != lead:
        raise ArgumentError(
            f"{what} must have the shape ({', '.join(map(str, lead))}, row), not "
            f"{tuple(rows.shape)}"
        )
    size = rows.element_size()
    if rows.shape[-1] * size != plane.row_bytes:
        raise ArgumentError(
            f"a row of {what} has {rows.shape[-1] * size} bytes; the plane's rows have "
            f"{plane.row_bytes}"
        )
    strides = rows.stride()
    if rows.shape[-1] > 1 and strides[-1] != 1:
        raise ArgumentError(f"{what}: each row must be contiguous")
    head = strides[2] * size if plane.heads > 1 else 0
    return number, rows.data_ptr(), strides[0] * size, strides[1] * size, head


def count_of(rows: Mapping[str, Any]) -> int:
    """How many new tokens the first of the planes' tensors has."""
    for name, tensor in rows.items():
        if not isinstance(tensor, torch.Tensor) or tensor.dim() < 3:
            raise ArgumentError(
                f"rows of plane '{name}' must be a torch tensor of the shape (B, n, row), or "
                "(B, n, heads, row) where the plane has heads"
            )
        return int(tensor.shape[1])
    raise AssertionError("append takes no empty mapping")
