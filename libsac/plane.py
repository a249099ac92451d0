# SPDX-License-Identifier: Apache-2.0
"""A plane: one kind of row of a model's KV."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, SupportsIndex

from libsac.errors import LayoutError

__all__ = [
    "ELEMENT_BYTES",
    "KINDS",
    "MAX_LAYERS",
    "Plane",
    "choose_layers",
    "dtype_label",
    "integer",
    "layer_ranges",
]

KINDS = ("rows", "window", "state")  # position: sac_plane_kind of include/sac.h
MAX_LAYERS = 512
MAX_HEADS = 65535
MAX_ROW_BYTES = 1 << 24
MAX_ROW_PITCH = 1 << 25
MAX_COUNT = (1 << 32) - 1  # token counts are 32 bits wide in the C interface
MAX_DTYPE = 19

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
_DTYPE_LABELS = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8_e4m3fn": "fp8",
    "fp8_e4m3": "fp8",
    "float8_e5m2": "fp8",
    "fp8_e5m2": "fp8",
}

_NAME = re.compile(r"[a-z0-9_.\-]{1,31}")


def integer(value: Any, what: str, low: int, high: int) -> int:
    """value as an int of low..high; LayoutError naming ``what`` otherwise."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise LayoutError(f"{what} is {value!r}; a whole number is needed") from None
    if not low <= number <= high:
        raise LayoutError(f"{what} is {number}; {low} to {high} are allowed")
    return number


def dtype_label(dtype: Any) -> str:
    """A torch.dtype or a name of one as a label: torch.bfloat16 and "bfloat16" give "bf16";
    what is not known comes back as text."""
    name = str(dtype).removeprefix("torch.")
    return _DTYPE_LABELS.get(name, name)


def layer_ranges(layers: Iterable[int]) -> str:
    """Sorted layer numbers for people: (0, 1, 2, 6) gives "0-2,6"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


@dataclass(frozen=True, init=False, repr=False)
class Plane:
    """One kind of row: which layers have it, and how its rows look. Immutable.

    Attributes:
        name: 1 to 31 characters of ``a-z 0-9 _ . -``, unique in its layout.
        layers: model layers that have the plane, a sorted tuple of 0..511.
        row_bytes: bytes of one row, 1..2^24.
        kind: "rows" (of every page), "window" (needed for the last ``window_tokens``
            tokens of a prefix only) or "state" (one row a page, needed for the last
            page only).
        group: planes of one group are selected together; the plane's own name where
            none was given.
        heads: rows a token has, 1..65535; above 1 where selection is per head.
        tokens_per_row: compression, 1 where every token has a row.
        row_pitch: bytes from row to row, at least row_bytes.
        window_tokens: tokens of a "window" plane, else 0.
        dtype: for people, such as "bf16"; at most 19 ASCII characters. It is part of a
            layout's identity all the same.

    Raises LayoutError, naming the rule, from the constructor.
    """

    name: str
    layers: tuple[int, ...]
    row_bytes: int
    kind: str
    group: str
    heads: int
    tokens_per_row: int
    row_pitch: int
    window_tokens: int
    dtype: str
    _page_tokens: int = field(init=False, compare=False)

    def __init__(
        self,
        name: str,
        layers: Iterable[SupportsIndex],
        row_bytes: SupportsIndex,
        kind: str = "rows",
        group: str | None = None,
        heads: SupportsIndex = 1,
        tokens_per_row: SupportsIndex = 1,
        row_pitch: SupportsIndex | None = None,
        window_tokens: SupportsIndex = 0,
        dtype: str = "",
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise LayoutError(
                f"plane name {name!r}: 1 to 31 characters of a-z 0-9 _ . - are allowed"
            )
        of = f"plane '{name}': "
        if kind not in KINDS:
            raise LayoutError(f"{of}kind is {kind!r}; {', '.join(KINDS)} are the kinds")
        if group is None:
            group = name
        if not isinstance(group, str) or not _NAME.fullmatch(group):
            raise LayoutError(
                f"{of}group {group!r}: 1 to 31 characters of a-z 0-9 _ . - are allowed"
            )
        if not isinstance(dtype, str) or not dtype.isascii() or not dtype.isprintable():
            raise LayoutError(f"{of}dtype {dtype!r} is not printable ASCII text")
        if len(dtype) > MAX_DTYPE:
            raise LayoutError(f"{of}dtype {dtype!r} is longer than {MAX_DTYPE} characters")
        row_bytes = integer(row_bytes, f"{of}row_bytes", 1, MAX_ROW_BYTES)
        pitch = row_bytes if row_pitch is None else row_pitch
        values = {
            "name": name,
            "layers": _layers(layers, of),
            "row_bytes": row_bytes,
            "kind": kind,
            "group": group,
            "heads": integer(heads, f"{of}heads", 1, MAX_HEADS),
            "tokens_per_row": integer(tokens_per_row, f"{of}tokens_per_row", 1, MAX_COUNT),
            "row_pitch": integer(pitch, f"{of}row_pitch", 1, MAX_ROW_PITCH),
            "window_tokens": integer(window_tokens, f"{of}window_tokens", 0, MAX_COUNT),
            "dtype": dtype,
            "_page_tokens": 0,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        self._check_kind(of)

    def _check_kind(self, of: str) -> None:
        if self.row_pitch < self.row_bytes:
            raise LayoutError(
                f"{of}row_pitch is {self.row_pitch}, less than row_bytes {self.row_bytes}"
            )
        if self.kind == "window" and self.window_tokens == 0:
            raise LayoutError(f"{of}a window plane needs window_tokens above 0")
        if self.kind != "window" and self.window_tokens:
            raise LayoutError(
                f"{of}window_tokens is {self.window_tokens}, but the kind is {self.kind}; "
                "only window planes have one"
            )
        if self.kind == "state" and self.tokens_per_row != 1:
            raise LayoutError(
                f"{of}tokens_per_row is {self.tokens_per_row}; a state plane has one row a "
                "page and needs 1"
            )

    @property
    def rows(self) -> int:
        """Rows a page, of each layer and head. LayoutError outside a layout."""
        if not self._page_tokens:
            raise LayoutError(
                f"plane '{self.name}' is in no layout: how many rows a page has follows "
                "from the layout's page_tokens; take the plane from layout.planes"
            )
        return 1 if self.kind == "state" else self._page_tokens // self.tokens_per_row

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer in a page, pitch included. LayoutError outside a layout."""
        return self.heads * self.rows * self.row_pitch

    @property
    def page_bytes(self) -> int:
        """Bytes of all layers in a page, pitch included. LayoutError outside a layout."""
        return len(self.layers) * self.layer_bytes

    @property
    def is_tail(self) -> bool:
        """Whether only the last pages of a prefix need the plane (window and state)."""
        return self.kind != "rows"

    def bound(self, page_tokens: int) -> Plane:
        """The same plane in a layout of pages of page_tokens tokens."""
        if self.kind != "state" and page_tokens % self.tokens_per_row:
            raise LayoutError(
                f"plane '{self.name}': tokens_per_row is {self.tokens_per_row}, which does "
                f"not divide a page of {page_tokens} tokens"
            )
        plane = object.__new__(Plane)
        plane.__dict__.update(self.__dict__, _page_tokens=page_tokens)
        return plane

    def __repr__(self) -> str:
        parts = [repr(self.name), f"layers={layer_ranges(self.layers)}"]
        parts.append(f"row_bytes={self.row_bytes}")
        defaults = {
            "kind": "rows",
            "group": self.name,
            "heads": 1,
            "tokens_per_row": 1,
            "row_pitch": self.row_bytes,
            "window_tokens": 0,
            "dtype": "",
        }
        for key, default in defaults.items():
            value = getattr(self, key)
            if value != default:
                parts.append(f"{key}={value!r}")
        return f"Plane({', '.join(parts)})"


def _layers(layers: Iterable[SupportsIndex], of: str) -> tuple[int, ...]:
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise LayoutError(f"{of}layers is {layers!r}; a list or range of numbers is needed")
    numbers = sorted(integer(n, f"{of}a layer", 0, MAX_LAYERS - 1) for n in layers)
    if not numbers:
        raise LayoutError(f"{of}no layers; at least one is needed")
    for a, b in pairwise(numbers):
        if a == b:
            raise LayoutError(f"{of}layer {a} is listed twice")
    return tuple(numbers)


def choose_layers(
    layers: SupportsIndex | Iterable[SupportsIndex] | None, count: int, of: str
) -> tuple[int, ...]:
    """Which of a model's layers 0..count-1: None all, a number the first so many, else
    those listed. LayoutError for layers that the model called ``of`` does not have."""
    if layers is None:
        return tuple(range(count))
    if isinstance(layers, Iterable):
        chosen = _layers(layers, f"{of}: ")
        if chosen[-1] >= count:
            raise LayoutError(f"{of} has layers 0 to {count - 1}; {chosen[-1]} is not one")
        return chosen
    return tuple(range(integer(layers, f"{of}: layers", 1, count)))
