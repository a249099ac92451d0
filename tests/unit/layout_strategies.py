# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for valid layouts."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from libsac.layout import Layout, Plane

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_.-", min_size=1, max_size=31)
DTYPES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=19)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Layouts of up to 8 planes in up to 4 groups, at least one of kind rows."""
    page_tokens = draw(st.integers(1, 64)) * draw(st.sampled_from([1, 4, 128]))
    divisors = [d for d in (1, 2, 4, 128, page_tokens) if page_tokens % d == 0]
    names = iter(draw(st.lists(NAMES, min_size=8, max_size=8, unique=True)))
    planes = []
    for i in range(draw(st.integers(1, 4))):
        kind = "rows" if i == 0 else draw(st.sampled_from(["rows", "window", "state"]))
        shared = {
            "layers": draw(st.sets(st.integers(0, 511), min_size=1, max_size=12)),
            "kind": kind,
            "group": draw(NAMES) + str(i) if draw(st.booleans()) else None,
            "heads": draw(st.integers(1, 9)),
            "tokens_per_row": 1 if kind == "state" else draw(st.sampled_from(divisors)),
            "window_tokens": draw(st.integers(1, 5000)) if kind == "window" else 0,
        }
        if shared["group"] is not None:
            shared["group"] = f"{i}.{shared['group']}"[:31]
        for _ in range(draw(st.integers(1, 2))):
            name = next(names)
            size = draw(st.integers(1, 2000))
            pitch = size + draw(st.sampled_from([0, 0, 1, 48]))
            how: dict[str, Any] = dict(shared, group=shared["group"] or f"{i}.{name}"[:31])
            planes.append(
                Plane(name, row_bytes=size, row_pitch=pitch, dtype=draw(DTYPES), **how)
            )
    return Layout(draw(st.permutations(planes)), page_tokens)
