# SPDX-License-Identifier: Apache-2.0
"""Layouts: validation, geometry, round trips, differences."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.layout_strategies import layouts

import libsac
from libsac.errors import LayoutError, NotFoundError
from libsac.layout import Layout, Plane


def demo() -> Layout:
    return Layout(
        [
            Plane("k", range(30), 256, heads=3, group="kv", dtype="bf16"),
            Plane("v", range(30), 256, heads=3, group="kv", dtype="bf16"),
            Plane("near", [31, 30], 100, "window", row_pitch=128, window_tokens=40),
            Plane("mamba", [32], 4096, "state"),
        ],
        page_tokens=16,
    )


def test_fields_and_defaults() -> None:
    plane = Plane("latent", [2, 0, 1], 1152)
    assert plane.layers == (0, 1, 2)
    assert (plane.kind, plane.group, plane.heads) == ("rows", "latent", 1)
    assert (plane.tokens_per_row, plane.row_pitch, plane.window_tokens) == (1, 1152, 0)
    assert Plane("a", np.arange(3), np.int32(8)).layers == (0, 1, 2)
    with pytest.raises(LayoutError, match="plane 'latent' is in no layout"):
        _ = plane.rows
    assert Layout([plane], 64).plane("latent").rows == 64
    assert Layout([plane], 64).planes[0] == plane


def test_geometry_of_the_demo() -> None:
    layout = demo()
    assert [p.rows for p in layout.planes] == [16, 16, 16, 1]
    assert layout.page_bytes == 2 * 30 * 3 * 16 * 256 == 737280  # a multiple of 4096
    assert layout.plane_offset("k") == 0
    assert layout.plane_offset("v") == 30 * 3 * 16 * 256
    assert layout.plane_offset("mamba") == 2 * 16 * 128
    assert layout.tail_bytes == 2 * 16 * 128 + 4096
    assert layout.tail_pages == 3  # 40 tokens in pages of 16
    assert layout.token_bytes == 2 * 30 * 3 * 256
    with pytest.raises(NotFoundError, match="no plane 'x'; it has k, v, near, mamba"):
        layout.plane("x")


@pytest.mark.parametrize(
    ("row_bytes", "tokens", "page_bytes"),
    [(1, 1, 64), (65, 1, 128), (1024, 63, 64512), (1024, 64, 65536), (1025, 64, 69632)],
)
def test_part_rounding(row_bytes: int, tokens: int, page_bytes: int) -> None:
    layout = Layout([Plane("a", [0], row_bytes)], tokens)
    assert layout.page_bytes == page_bytes
    assert (layout.tail_bytes, layout.tail_pages) == (0, 0)


def test_compressed_rows_and_fractions_of_a_byte_a_token() -> None:
    layout = Layout([Plane("c", [0], 3, tokens_per_row=4), Plane("d", [0], 1)], 8)
    assert layout.plane("c").rows == 2
    assert layout.token_bytes == 1.75


def test_frozen() -> None:
    layout = demo()
    for target, field in ((layout, "page_tokens"), (layout.planes[0], "heads")):
        with pytest.raises(AttributeError):
            setattr(target, field, 1)


BAD_PLANES: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "plane name ''"),
    ({"name": "A"}, "plane name 'A'"),
    ({"name": "a" * 32}, "1 to 31 characters"),
    ({"name": 3}, "plane name 3"),
    ({"name": "a\n"}, "plane name"),
    ({"layers": []}, "plane 'a': no layers"),
    ({"layers": [512]}, "a layer is 512; 0 to 511"),
    ({"layers": [-1]}, "a layer is -1"),
    ({"layers": [1, 1]}, "layer 1 is listed twice"),
    ({"layers": "01"}, "layers is '01'"),
    ({"layers": 4}, "layers is 4"),
    ({"layers": [True]}, "a layer is True; a whole number"),
    ({"row_bytes": 0}, "row_bytes is 0; 1 to 16777216"),
    ({"row_bytes": (1 << 24) + 1}, "row_bytes is 16777217"),
    ({"row_bytes": 8.0}, "row_bytes is 8.0; a whole number"),
    ({"row_pitch": 7}, "row_pitch is 7, less than row_bytes 8"),
    ({"row_pitch": (1 << 25) + 1}, "row_pitch is 33554433"),
    ({"heads": 0}, "heads is 0; 1 to 65535"),
    ({"heads": 65536}, "heads is 65536"),
    ({"tokens_per_row": 0}, "tokens_per_row is 0"),
    ({"kind": "row"}, "kind is 'row'; rows, window, state"),
    ({"kind": "window"}, "needs window_tokens above 0"),
    ({"window_tokens": 5}, "window_tokens is 5, but the kind is rows"),
    ({"kind": "state", "window_tokens": 5}, "but the kind is state"),
    ({"kind": "state", "tokens_per_row": 4}, "a state plane has one row a page"),
    ({"kind": "window", "window_tokens": 1 << 32}, "window_tokens is 4294967296"),
    ({"group": "KV"}, "group 'KV'"),
    ({"dtype": "x" * 20}, "longer than 19"),
    ({"dtype": "fp8\0"}, "not printable ASCII"),
    ({"dtype": "fp8é"}, "not printable ASCII"),
]


@pytest.mark.parametrize(("change", "message"), BAD_PLANES)
def test_bad_planes(change: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Plane(**{"name": "a", "layers": [0], "row_bytes": 8, **change})
    assert message in str(caught.value)


A = Plane("a", [0, 1], 8, group="g")
BAD_LAYOUTS: list[tuple[Any, Any, str]] = [
    ([], 1, "0 planes; 1 to 64"),
    ([Plane(f"p{i}", [0], 1) for i in range(65)], 1, "65 planes"),
    ([A], 0, "page_tokens is 0; 1 to 65536"),
    ([A], 65537, "page_tokens is 65537"),
    ([A], "64", "page_tokens is '64'"),
    (["a"], 1, "which is not a Plane"),
    (A, 1, "a list of planes is needed"),
    (None, 1, "planes is None; a list"),
    ([A, A], 1, "two planes are named 'a'"),
    ([Plane("c", [0], 8, tokens_per_row=4)], 6, "tokens_per_row is 4, which does not divide"),
    ([Plane("s", [0], 8, "state")], 6, "no plane of kind rows"),
    ([A, Plane("b", [0, 1], 8, "state", group="g")], 4, "differ in kind"),
    ([A, Plane("b", [0, 1], 8, heads=2, group="g")], 4, "differ in heads"),
    ([A, Plane("b", [0, 1], 8, tokens_per_row=2, group="g")], 4, "differ in tokens_per_row"),
    ([A, Plane("b", [0], 8, group="g")], 4, "differ in layers"),
    (
        [
            A,
            Plane("b", [0], 8, "window", "w", window_tokens=4),
            Plane("c", [0], 8, "window", "w", window_tokens=5),
        ],
        4,
        "planes 'b' and 'c' are both in group 'w' but differ in window_tokens",
    ),
    ([Plane("a", range(512), 1 << 24, heads=65535)], 65536, "a page's body has"),
    ([A, Plane("s", range(512), 1 << 24, "state", heads=65535)], 1, "a page's tail has"),
]


@pytest.mark.parametrize(("planes", "page_tokens", "message"), BAD_LAYOUTS)
def test_bad_layouts(planes: Any, page_tokens: Any, message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout(planes, page_tokens)
    assert message in str(caught.value)


def test_the_largest_page_there_may_be() -> None:
    layout = Layout([Plane("a", range(64), 1 << 24)], 65536)
    assert layout.page_bytes == 1 << 46


@given(layouts())
def test_round_trips(layout: Layout) -> None:
    text = json.dumps(layout.to_dict())
    for other in (
        Layout(layout.planes, layout.page_tokens),
        Layout.from_dict(json.loads(text)),
        pickle.loads(pickle.dumps(layout)),
        copy.deepcopy(layout),
    ):
        assert other == layout
        assert hash(other) == hash(layout)
        assert other.planes == layout.planes
        assert [p.rows for p in other.planes] == [p.rows for p in layout.planes]
        assert other.difference(layout) == []
        assert other.to_dict() == layout.to_dict()
    native = Layout._from_native(*layout._native())
    assert native == layout
    assert native._native() == layout._native()


@given(layouts())
def test_offsets_follow_the_rules(layout: Layout) -> None:
    for tail, size in ((False, layout.page_bytes), (True, layout.tail_bytes)):
        end = 0
        for plane in (p for p in layout.planes if p.is_tail is tail):
            offset = layout.plane_offset(plane.name)
            assert offset % 64 == 0
            assert end <= offset < end + 64
            rows = 1 if plane.kind == "state" else layout.page_tokens // plane.tokens_per_row
            end = offset + len(plane.layers) * plane.heads * rows * plane.row_pitch
        unit = 4096 if end >= 65536 else 64
        assert size % unit == 0
        assert end <= size < end + unit
    windows = [p.window_tokens for p in layout.planes if p.kind == "window"]
    if windows:
        assert (layout.tail_pages - 1) * layout.page_tokens < max(windows)
        assert layout.tail_pages * layout.page_tokens >= max(windows)
    assert (layout.tail_pages == 0) == all(p.kind == "rows" for p in layout.planes)


def test_groups_are_numbered_in_order_of_first_appearance() -> None:
    planes = [Plane(n, [0], 8, group=g) for n, g in (("a", "z"), ("b", "y"), ("c", "z"))]
    assert [p[3] for p in Layout(planes, 1)._native()[1]] == [0, 1, 0]
    renamed = [Plane(n, [0], 8, group=g) for n, g in (("a", "p"), ("b", "q"), ("c", "p"))]
    assert Layout(planes, 1) == Layout(renamed, 1)
    assert Layout(planes, 1).difference(Layout(renamed, 1)) == []


@given(layouts(), layouts())
def test_difference_is_empty_only_for_equal_layouts(a: Layout, b: Layout) -> None:
    assert (a.difference(b) == []) == (a == b) == (b.difference(a) == [])


@given(layouts(), st.data())
def test_difference_names_a_changed_field(layout: Layout, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(layout.planes) - 1))
    field = data.draw(st.sampled_from(["row_pitch", "dtype", "name"]))
    changed = layout.to_dict()
    plane = changed["planes"][i]
    plane[field] = plane[field] + 1 if field == "row_pitch" else (plane[field] + "x")[-19:]
    try:
        other = Layout.from_dict(changed)
    except LayoutError:  # the new name was another plane's
        return
    if other == layout:  # "xx..." stayed the same
        return
    name = plane["name"] if field == "name" else layout.planes[i].name
    assert any(f"plane '{name}'" in s for s in layout.difference(other))


def test_difference_says_everything() -> None:
    a = demo()
    b = Layout(
        [
            Plane("v", range(30), 256, heads=3, dtype="bf16"),
            Plane("k", [0, 1, 5], 128, heads=2, dtype="fp8"),
            Plane("new", [0], 1),
        ],
        page_tokens=32,
    )
    assert a.difference(b) == [
        "page_tokens is 16 here and 32 there",
        "plane 'near' is only here",
        "plane 'mamba' is only here",
        "plane 'new' is only there",
        "plane 'k': row_bytes is 256 here and 128 there",
        "plane 'k': heads is 3 here and 2 there",
        "plane 'k': dtype is 'bf16' here and 'fp8' there",
        "plane 'k': layers are 0-29 here and 0-1,5 there",
        "plane 'k' is selected with v here and with nothing there",
        "plane 'v' is selected with k here and with nothing there",
        "the planes lie as k, v here and v, k there",
    ]


def test_difference_of_layers_and_pitches() -> None:
    def layout(layers: range, row_bytes: int, row_pitch: int | None = None) -> Layout:
        return Layout([Plane("k", layers, row_bytes, row_pitch=row_pitch)], 16)

    assert layout(range(4), 64).difference(layout(range(4, 8), 64)) == [
        "plane 'k': layers are 0-3 here and 4-7 there"
    ]
    one = range(1)
    assert layout(one, 64).difference(layout(one, 32)) == [
        "plane 'k': row_bytes is 64 here and 32 there"
    ]
    assert layout(one, 64, 128).difference(layout(one, 32)) == [
        "plane 'k': row_bytes is 64 here and 32 there",
        "plane 'k': row_pitch is 128 here and 32 there",
    ]


def test_the_native_difference_says_the_same() -> None:
    def refused(row: int, pitch: int | None, layers: list[int]) -> str:
        with libsac.embedded("4M") as pool:
            pool.namespace("n", Layout([Plane("k", range(4), 64)], 16))
            with pytest.raises(LayoutError) as caught:
                pool.namespace("n", Layout([Plane("k", layers, row, row_pitch=pitch)], 16))
            return str(caught.value)

    assert "plane 'k': layers 0-3 and 4-7" in refused(64, None, [4, 5, 6, 7])
    assert "plane 'k': layers 0-3 and 0,2-3,9,511" in refused(64, None, [0, 2, 3, 9, 511])
    bare = refused(32, None, [0, 1, 2, 3])
    assert "row_bytes 64 and 32" in bare
    assert "row_pitch" not in bare
    assert "row_pitch 64 and 96" in refused(32, 96, [0, 1, 2, 3])
