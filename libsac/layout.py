# SPDX-License-Identifier: Apache-2.0
"""Layouts: the planes of a model's KV and how many tokens a page holds.

A page has up to two parts. The body holds the planes of kind "rows"; the tail holds the
window and state planes, which only the last pages of a prefix need. Within a part the
planes lie in order, each beginning at a multiple of 64 bytes; within a plane come layer,
head, row. docs/layouts.md explains the words, docs/format.md is the binding text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

# Presets and the readers of model configurations and files are imported where they are used:
# most programs bring their layout along, and importing libsac is quicker by a tenth.
from libsac.errors import LayoutError, NotFoundError, SystemCallError
from libsac.plane import KINDS, Plane, integer

__all__ = ["Layout", "Plane"]

MAX_PLANES = 64
MAX_PAGE_TOKENS = 65536
MAX_PART_BYTES = 1 << 46

NativePlane = tuple[str, list[int], int, int, int, int, int, int, int, str]


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Layout:
    """Planes in the order they lie in a page, and the tokens a page holds. Immutable.

    Attributes:
        planes: tuple of planes that know this layout, so that ``plane.rows`` works.
        page_tokens: tokens a page holds, 1..65536, a multiple of every tokens_per_row.

    Two layouts are equal if a namespace made with one may be opened with the other: all
    fields of all planes, in order, and which planes share a group; what the groups are
    called does not count.

    Raises LayoutError, naming the plane and the rule, from the constructor.
    """

    planes: tuple[Plane, ...]
    page_tokens: int

    def __init__(self, planes: Iterable[Plane], page_tokens: SupportsIndex) -> None:
        tokens = integer(page_tokens, "page_tokens", 1, MAX_PAGE_TOKENS)
        if not isinstance(planes, Iterable):
            raise LayoutError(
                f"planes is {planes!r}; a list of planes is needed: Layout([Plane(...)], 64)"
            )
        given = tuple(planes)
        for plane in given:
            if not isinstance(plane, Plane):
                raise LayoutError(f"planes holds {plane!r}, which is not a Plane")
        bound = tuple(plane.bound(tokens) for plane in given)
        object.__setattr__(self, "planes", bound)
        object.__setattr__(self, "page_tokens", tokens)
        self._check()

    @classmethod
    def preset(
        cls,
        name: str,
        layers: SupportsIndex | Iterable[SupportsIndex] | None = None,
        page_tokens: SupportsIndex | None = None,
        **options: Any,
    ) -> Layout:
        """The layout of a known model and KV format; docs/layouts.md lists them.

        Args:
            name: such as "deepseek-v3.2-bf16"; ``Layout.presets()`` has them all.
            layers: how many layers from the first on, or which; None for the model's.
            page_tokens: None for the preset's own (64, or more where its compression or
                block selection needs it).
            options: what that preset takes.

        Raises NotFoundError for an unknown name, LayoutError for anything else.
        """
        from libsac import presets

        planes, tokens = presets.build(name, layers, page_tokens, **options)
        return cls(planes, tokens)

    @staticmethod
    def presets() -> tuple[str, ...]:
        """The names that preset() takes."""
        from libsac import presets

        return presets.NAMES

    @classmethod
    def from_config(
        cls,
        config: Any,
        page_tokens: SupportsIndex = 64,
        dtype: str | None = None,
        *,
        layers: SupportsIndex | Iterable[SupportsIndex] | None = None,
        per_head: bool = True,
        windows: bool = True,
    ) -> Layout:
        """The layout of a model from its Transformers configuration.

        Args:
            config: a configuration object or the dict of its config.json. MHA, GQA, MLA,
                sliding-window and indexed layers are understood.
            page_tokens: tokens a page.
            dtype: "bf16", "fp16", "fp32", "fp8", for MLA also "fp8_ds_mla"; None takes
                the configuration's.
            layers: how many layers from the first on, or which; None for all.
            per_head: K and V rows of each KV head apart, so that heads can be selected
                one by one; False makes one row of all heads.
            windows: sliding-window layers as window planes; False keeps their rows for
                every token.

        Raises LayoutError, naming the field, where the configuration lacks one, where two
        do not fit, and where it is of a model whose planes do not follow from it: hybrid,
        recurrent and encoder-decoder models. Nothing is imported.
        """
        from libsac import model_config

        planes = model_config.planes(config, dtype, layers, per_head, windows)
        return cls(planes, page_tokens)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Layout:
        """The layout that to_dict() wrote; docs/layouts.md has the schema.

        Raises LayoutError naming any key that is unknown, missing or of a wrong type.
        """
        from libsac import layout_file

        planes, tokens = layout_file.read(data)
        return cls(planes, tokens)

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Layout:
        """The layout in a JSON file of the schema of to_dict().

        Raises LayoutError naming file and line for malformed JSON, NotFoundError where
        there is no such file, SystemCallError (an OSError) where it cannot be read.
        """
        from libsac import layout_file

        file = Path(path)
        try:
            data = layout_file.parse(file.read_bytes())
            return cls.from_dict(data)
        except OSError as error:
            kind = NotFoundError if isinstance(error, FileNotFoundError) else SystemCallError
            raise kind(
                f"cannot read layout file {file}: {error.strerror or error}",
                object=str(file),
                errno=error.errno or 0,
            ) from None
        except LayoutError as error:
            raise LayoutError(f"{file}: {error}", object=str(file)) from None

    def to_dict(self) -> dict[str, Any]:
        """A dict of plain values, every key written out, for from_dict() and JSON."""
        from libsac import layout_file

        return layout_file.write(self.planes, self.page_tokens)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes to_dict() to a file, replacing it."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    def plane(self, name: str) -> Plane:
        """The plane of that name; NotFoundError names those there are."""
        for plane in self.planes:
            if plane.name == name:
                return plane
        there = ", ".join(p.name for p in self.planes)
        raise NotFoundError(f"the layout has no plane '{name}'; it has {there}", object=name)

    def plane_offset(self, name: str) -> int:
        """Bytes from the start of its part of a page to the plane's first row."""
        wanted = self.plane(name)
        end = 0
        for plane in self.planes:
            if plane.is_tail == wanted.is_tail:
                start = _round_up(end, 64)
                if plane.name == name:
                    return start
                end = start + plane.page_bytes
        raise AssertionError(name)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page's body: its planes of kind "rows", padding included."""
        return _part_bytes(p for p in self.planes if not p.is_tail)

    @property
    def tail_bytes(self) -> int:
        """Bytes of a page's tail: its window and state planes; 0 where there are none."""
        return _part_bytes(p for p in self.planes if p.is_tail)

    @property
    def tail_pages(self) -> int:
        """How many last pages of a prefix need their tail; 0 where there is none."""
        need = [-(-p.window_tokens // self.page_tokens) or 1 for p in self.planes if p.is_tail]
        return max(need, default=0)

    @property
    def token_bytes(self) -> float:
        """Row bytes of the body a token: no padding, compressed rows shared out."""
        rows = sum(len(p.layers) * p.heads * p.rows * p.row_bytes
                   for p in self.planes if not p.is_tail)  # fmt: skip
        return rows / self.page_tokens

    def difference(self, other: Layout) -> list[str]:
        """Every difference in a sentence ("here" is self); empty if and only if equal."""
        from libsac import layout_difference

        return layout_difference.sentences(
            self.planes, other.planes, (self.page_tokens, other.page_tokens)
        )

    def _native(self) -> tuple[int, list[NativePlane]]:
        """Plain values for the binding: page_tokens and, a plane, (name, layers, kind,
        group, heads, tokens_per_row, row_bytes, row_pitch, window_tokens, dtype)."""
        numbers = {g: i for i, g in enumerate(dict.fromkeys(p.group for p in self.planes))}
        return self.page_tokens, [
            (
                p.name,
                list(p.layers),
                KINDS.index(p.kind),
                numbers[p.group],
                p.heads,
                p.tokens_per_row,
                p.row_bytes,
                p.row_pitch,
                p.window_tokens,
                p.dtype,
            )
            for p in self.planes
        ]

    @classmethod
    def _from_native(cls, page_tokens: int, planes: Iterable[NativePlane]) -> Layout:
        """Undoes _native(). Groups are called after their first plane."""
        groups: dict[int, str] = {}
        made = []
        for name, layers, kind, group, heads, per_row, size, pitch, window, dtype in planes:
            label = groups.setdefault(group, name)
            made.append(
                Plane(
                    name, layers, size, KINDS[kind], label, heads, per_row, pitch, window, dtype
                )
            )
        return cls(made, page_tokens)

    def _check(self) -> None:
        if not 1 <= len(self.planes) <= MAX_PLANES:
            raise LayoutError(f"{len(self.planes)} planes; 1 to {MAX_PLANES} are allowed")
        names: set[str] = set()
        first: dict[str, Plane] = {}
        for plane in self.planes:
            if plane.name in names:
                raise LayoutError(f"two planes are named '{plane.name}'")
            names.add(plane.name)
            other = first.setdefault(plane.group, plane)
            for what in ("kind", "heads", "tokens_per_row", "window_tokens", "layers"):
                if getattr(other, what) != getattr(plane, what):
                    raise LayoutError(
                        f"planes '{other.name}' and '{plane.name}' are both in group "
                        f"'{plane.group}' but differ in {what}; one selection must fit both"
                    )
        if all(plane.is_tail for plane in self.planes):
            raise LayoutError(
                "no plane of kind rows: a page needs something that every page keeps"
            )
        for part, size in (("body", self.page_bytes), ("tail", self.tail_bytes)):
            if size > MAX_PART_BYTES:
                raise LayoutError(f"a page's {part} has {size} bytes; 2^46 are the limit")

    def __eq__(self, other: object) -> bool:
        return (
            self._native() == other._native() if isinstance(other, Layout) else NotImplemented
        )

    def __hash__(self) -> int:
        return hash((self.page_tokens, tuple(p.name for p in self.planes), self.page_bytes))

    def __repr__(self) -> str:
        planes = ", ".join(map(repr, self.planes))
        return f"Layout(page_tokens={self.page_tokens}, planes=[{planes}])"


def _round_up(n: int, to: int) -> int:
    return (n + to - 1) // to * to


def _part_bytes(planes: Iterable[Plane]) -> int:
    end = 0
    for plane in planes:
        end = _round_up(end, 64) + plane.page_bytes
    return _round_up(end, 4096 if end >= 65536 else 64)
