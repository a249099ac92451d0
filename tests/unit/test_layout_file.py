# SPDX-License-Identifier: Apache-2.0
"""Layouts as JSON: files that are right, wrong, and junk."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libsac.errors import LayoutError, NotFoundError, SystemCallError
from libsac.layout import Layout, Plane

LAYOUT = Layout(
    [
        Plane("k", range(30), 256, heads=3, group="kv", dtype="bf16"),
        Plane("near", [31, 30], 100, "window", row_pitch=128, window_tokens=40),
    ],
    page_tokens=16,
)


def test_json_files(tmp_path: Path) -> None:
    file = tmp_path / "layout.json"
    LAYOUT.to_json(file)
    assert Layout.from_json(file) == LAYOUT == Layout.from_json(str(file))
    file.write_text(
        '{"page_tokens": 8, "planes": [{"name": "a", "layers": "0-2,7", "row_bytes": 4}]}'
    )
    assert Layout.from_json(file).plane("a").layers == (0, 1, 2, 7)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "none.json"
    with pytest.raises(NotFoundError, match=r"none\.json: No such file or directory") as caught:
        Layout.from_json(file)
    assert isinstance(caught.value, LookupError)
    assert (caught.value.errno, caught.value.object) == (errno.ENOENT, str(file))
    with pytest.raises(SystemCallError, match="Is a directory") as system:
        Layout.from_json(tmp_path)
    assert isinstance(system.value, OSError)
    assert (system.value.errno, system.value.filename) == (errno.EISDIR, str(tmp_path))


PLANE = '{"name": "a", "layers": [0], "row_bytes": 4'
BAD_FILES = [
    (b"[]", "a layout is a JSON object, not list"),
    (b'{\n"page_tokens": }', "not JSON: line 2"),
    (b"\xff", "not UTF-8"),
    (b'{"page_tokens": 1, "page_tokens": 2}', "'page_tokens' is given twice"),
    (b'{"page_tokens": 1}', "the layout lacks the key 'planes'"),
    (b'{"page_tokens": 1, "planes": [], "x": 0}', "the layout has an unknown key 'x'"),
    (b'{"version": 2, "page_tokens": 1, "planes": []}', "layout version 2"),
    (b'{"page_tokens": 1, "planes": {}}', "planes is dict"),
    (b'{"page_tokens": 1, "planes": [1]}', "plane number 0 is int"),
    (b'{"page_tokens": 1, "planes": [{"layers": [0]}]}', "plane 'number 0' lacks"),
    (f'{{"page_tokens": 1, "planes": [{PLANE}, "rowbytes": 1}}]}}', "unknown key 'rowbytes'"),
    (f'{{"page_tokens": 1.5, "planes": [{PLANE}}}]}}', "page_tokens is 1.5"),
    (f'{{"page_tokens": true, "planes": [{PLANE}}}]}}', "page_tokens is True"),
    ("[" * 100000, "not a layout"),
    ("1" * 5000, "not a layout"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_bad_json(tmp_path: Path, text: bytes | str, message: str) -> None:
    file = tmp_path / "layout.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(LayoutError) as caught:
        Layout.from_json(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["", "a", "3-1", "512", "0-512", "1,", "1--2", "0-1,1"])
def test_bad_layer_ranges(text: str) -> None:
    plane = {"name": "a", "layers": text, "row_bytes": 1}
    with pytest.raises(LayoutError, match="layer"):
        Layout.from_dict({"page_tokens": 1, "planes": [plane]})


KEYS = st.sampled_from(["version", "page_tokens", "planes", "name", "layers", "row_bytes",
                        "kind", "group", "heads", "dtype", "window_tokens", "x"])  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["a", "rows", "state", "window", 0, 1, 8]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(KEYS, JUNK) | JUNK)
def test_junk_is_refused_with_a_layout_error(data: Any) -> None:
    try:
        layout = Layout.from_dict(data)
    except LayoutError:
        return
    assert Layout.from_dict(layout.to_dict()) == layout
