# SPDX-License-Identifier: Apache-2.0
"""What two layouts differ in, in sentences."""

from __future__ import annotations

from collections.abc import Collection

from libsac.plane import Plane, layer_ranges

__all__ = ["sentences"]

_FIELDS = (
    "kind",
    "row_bytes",
    "row_pitch",
    "heads",
    "tokens_per_row",
    "window_tokens",
    "dtype",
)

Planes = tuple[Plane, ...]


def sentences(here: Planes, there: Planes, page_tokens: tuple[int, int]) -> list[str]:
    """Every difference of two layouts' planes and page_tokens; empty if they are equal."""
    out = []
    if page_tokens[0] != page_tokens[1]:
        out.append(f"page_tokens is {page_tokens[0]} here and {page_tokens[1]} there")
    mine = {p.name: p for p in here}
    theirs = {p.name: p for p in there}
    out += [f"plane '{name}' is only here" for name in mine if name not in theirs]
    out += [f"plane '{name}' is only there" for name in theirs if name not in mine]
    both = [name for name in mine if name in theirs]
    for name in both:
        out += _of_plane(mine[name], theirs[name])
        # Groups are compared by their members: what they are called does not count.
        a, b = _peers(mine[name], here, both), _peers(theirs[name], there, both)
        if a != b:
            out.append(f"plane '{name}' is selected with {a} here and with {b} there")
    order = [name for name in theirs if name in mine]
    if both != order:
        out.append(f"the planes lie as {', '.join(both)} here and {', '.join(order)} there")
    return out


def _of_plane(here: Plane, there: Plane) -> list[str]:
    out = []
    for what in _FIELDS:
        a, b = getattr(here, what), getattr(there, what)
        if what == "row_pitch" and (a, b) == (here.row_bytes, there.row_bytes):
            continue  # no gaps between rows in either: row_bytes says it all
        if a != b:
            out.append(f"plane '{here.name}': {what} is {a!r} here and {b!r} there")
    if here.layers != there.layers:
        a, b = layer_ranges(here.layers), layer_ranges(there.layers)
        out.append(f"plane '{here.name}': layers are {a} here and {b} there")
    return out


def _peers(plane: Plane, planes: Planes, among: Collection[str]) -> str:
    peers = [p.name for p in planes if p.group == plane.group and p.name != plane.name]
    return ", ".join(sorted(p for p in peers if p in among)) or "nothing"
