# SPDX-License-Identifier: Apache-2.0
"""Where a sequence's keys and values lie: in the pool (PoolKV) or in tensors (LocalKV).

Both are used through KVStore, so selection and attention are the same code for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import torch

import libsac
from libsac.demo.quest import page_bounds


@dataclass(frozen=True)
class KVShape:
    """The KV of one model: layers, KV heads, head size, dtype, and tokens a page."""

    layers: int
    heads: int
    dim: int
    dtype: torch.dtype
    page_tokens: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's key (or value) in one layer and head."""
        return self.dim * int(self.dtype.itemsize)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page: keys, values and bounds of all layers and heads."""
        return self.layers * self.heads * self.row_bytes * (2 * self.page_tokens + 2)

    def full_bytes(self, tokens: int) -> int:
        """Bytes that one step of full attention reads from a sequence of `tokens` tokens."""
        return self.layers * self.heads * tokens * 2 * self.row_bytes

    def layout(self) -> libsac.Layout:
        """The layout of a namespace for this KV: planes k and v, and the pages' bounds."""
        layers = range(self.layers)
        name = str(self.dtype).removeprefix("torch.")
        return libsac.Layout(
            planes=[
                libsac.Plane(
                    plane,
                    layers=layers,
                    row_bytes=self.row_bytes,
                    heads=self.heads,
                    group="kv",
                    dtype=name,
                )
                for plane in ("k", "v")
            ]
            + [
                libsac.Plane(
                    "bounds",
                    layers=layers,
                    row_bytes=2 * self.row_bytes,
                    heads=self.heads,
                    tokens_per_row=self.page_tokens,
                    dtype=name,
                )
            ],
            page_tokens=self.page_tokens,
        )


class KVStore(Protocol):
    """A sequence's KV. Tensors are on the CPU and of the shape's dtype.

    A step is: extend() with the new tokens, then for each layer append() their rows and
    read with bounds() and rows(), the new tokens' own rows included.
    """

    @property
    def tokens(self) -> int:
        """Tokens of the sequence so far."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends token ids; every layer's rows are to be appended next."""

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores the last extended tokens' rows of one layer: (heads, n, dim) each."""

    def bounds(self, layer: int, pages: int) -> torch.Tensor:
        """Bounds of the first `pages` pages, all complete: (heads, pages, 2, dim)."""

    def rows(self, layer: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of tokens (heads, k) int64: (heads, k, dim) each."""


class LocalKV:
    """KV in torch tensors, one pair a layer; nothing of libsac takes part."""

    def __init__(self, shape: KVShape, capacity: int) -> None:
        """capacity: the most tokens it can hold."""
        self._shape = shape
        room = (shape.layers, shape.heads, capacity, shape.dim)
        self._keys = torch.empty(room, dtype=shape.dtype)
        self._values = torch.empty(room, dtype=shape.dtype)
        self._tokens = 0

    @property
    def tokens(self) -> int:
        return self._tokens

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens += len(tokens)

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        start = self._tokens - keys.shape[1]
        self._keys[layer, :, start : self._tokens] = keys
        self._values[layer, :, start : self._tokens] = values

    def bounds(self, layer: int, pages: int) -> torch.Tensor:
        size = self._shape.page_tokens
        return page_bounds(self._keys[layer, :, : pages * size], size)

    def rows(self, layer: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _pick(self._keys[layer], tokens), _pick(self._values[layer], tokens)

    def span(self, layer: int, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of tokens start .. end-1: (heads, end - start, dim) each."""
        return self._keys[layer, :, start:end], self._values[layer, :, start:end]


def _pick(rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return torch.stack([of.index_select(0, at) for of, at in zip(rows, tokens, strict=True)])


def put_prompt(
    namespace: libsac.Namespace,
    shape: KVShape,
    prompt: Sequence[int],
    filled: LocalKV,
    salt: bytes = b"",
) -> int:
    """Puts the full pages of a prompt, whose KV is in filled; returns how many were missing.
    Errors are those of libsac."""
    keys = namespace.keys(prompt, salt=salt)
    with namespace.put(keys) as put:
        missing = torch.as_tensor(put.missing)
        if len(missing) == 0:
            return 0
        for layer in range(shape.layers):
            whole = filled.span(layer, 0, len(keys) * shape.page_tokens)
            # (heads, tokens, dim) -> (pages, heads, tokens a page, dim)
            for plane, rows in zip(("k", "v"), whole, strict=True):
                paged = rows.reshape(shape.heads, len(keys), shape.page_tokens, shape.dim)
                put.write(plane, layer, paged.transpose(0, 1)[missing])
            bounds = page_bounds(whole[0], shape.page_tokens).flatten(2)
            put.write("bounds", layer, bounds.transpose(0, 1)[missing].unsqueeze(2))
    return len(missing)


class PoolKV:
    """KV in a libsac namespace made with shape.layout(); no row of it is kept outside.

    `with PoolKV(...)` moves the prompt into the pool and opens a sequence on it; leaving
    ends the sequence's pins. The prompt's full pages are put under keys made from its token
    ids, so that other sequences that begin alike find them. The rest of the prompt and all
    tokens decoded later go to the sequence.

    Without `filled` nothing is put: `tokens` says how many of the prompt's the pool had.
    """

    def __init__(
        self,
        namespace: libsac.Namespace,
        shape: KVShape,
        prompt: Sequence[int],
        filled: LocalKV | None = None,
        salt: bytes = b"",
    ) -> None:
        """filled: the prompt's KV, read here and not kept. Errors are those of libsac."""
        self._shape = shape
        if filled is not None:
            put_prompt(namespace, shape, prompt, filled, salt)
        self._sequence = namespace.sequence(prompt, salt=salt)
        if filled is None:
            return
        try:
            self._take_rest(prompt, filled)
        except BaseException:
            self._sequence.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sequence.close()

    def _take_rest(self, prompt: Sequence[int], filled: LocalKV) -> None:
        stored = self._sequence.tokens
        whole = len(prompt) - len(prompt) % self._shape.page_tokens
        if stored != whole:
            raise RuntimeError(
                f"the pool holds {stored} of the {whole} prompt tokens just put; "
                "another user of the namespace must have evicted pages"
            )
        if stored == len(prompt):
            return
        self.extend(prompt[stored:])
        for layer in range(self._shape.layers):
            self.append(layer, *filled.span(layer, stored, len(prompt)))

    @property
    def tokens(self) -> int:
        return self._sequence.tokens

    def extend(self, tokens: Sequence[int]) -> None:
        self._sequence.extend(tokens)

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._sequence.write("k", layer, keys.contiguous())
        self._sequence.write("v", layer, values.contiguous())
        size = self._shape.page_tokens
        before = self.tokens - keys.shape[1]
        for page in range(before // size, self.tokens // size):
            # The page is complete now: its keys are read back to find its bounds, so that
            # no key needs to be kept outside the pool meanwhile.
            span = torch.arange(page * size, (page + 1) * size)
            whole = self._read("k", layer, span.expand(self._shape.heads, -1))
            bounds = page_bounds(whole, size).flatten(2)
            self._sequence.write("bounds", layer, bounds, start=page)

    def bounds(self, layer: int, pages: int) -> torch.Tensor:
        shape = self._shape
        out = torch.empty((shape.heads, pages, 2, shape.dim), dtype=shape.dtype)
        if pages:
            rows = torch.arange(pages).expand(shape.heads, -1).contiguous()
            self._sequence.gather("bounds", layer, rows=rows, out=out)
        return out

    def rows(self, layer: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._read("k", layer, tokens), self._read("v", layer, tokens)

    def _read(self, plane: str, layer: int, tokens: torch.Tensor) -> torch.Tensor:
        shape = self._shape
        out = torch.empty((*tokens.shape, shape.dim), dtype=shape.dtype)
        self._sequence.gather(plane, layer, tokens.contiguous(), out=out)
        return out
