# SPDX-License-Identifier: Apache-2.0
"""Presets, and the table of them in docs/layouts.md.

`PYTHONPATH=. python tests/unit/test_presets.py` writes the table anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from libsac import presets
from libsac.errors import LayoutError, NotFoundError
from libsac.layout import Layout

DOC = Path(__file__).parents[2] / "docs" / "layouts.md"
BEGIN, END = "<!-- presets: begin -->\n", "<!-- presets: end -->\n"


def table() -> str:
    """The table of docs/layouts.md, from the code."""
    lines = [
        (
            "| preset | layers | tokens a page | planes "
            "| bytes a token | page bytes | tail bytes | tail pages |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in presets.NAMES:
        layout = Layout.preset(name)
        layers = len({i for p in layout.planes for i in p.layers})
        planes = ", ".join(p.name for p in layout.planes)
        tail = f"{layout.tail_bytes:,}" if layout.tail_bytes else "none"
        lines.append(
            f"| `{name}` | {layers} | {layout.page_tokens} | {planes} "
            f"| {layout.token_bytes:,.10g} | {layout.page_bytes:,} | {tail} "
            f"| {layout.tail_pages} |"
        )
    return "\n".join(lines) + "\n"


def test_the_table_of_the_page_is_true() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == table(), (
        f"{DOC} is out of date: PYTHONPATH=. python {Path(__file__).name} writes its table"
    )


@pytest.mark.parametrize("name", presets.NAMES)
def test_every_preset_round_trips_and_takes_layers(name: str) -> None:
    layout = Layout.preset(name)
    assert Layout.from_dict(layout.to_dict()) == layout
    four = Layout.preset(name, layers=4)
    assert {i for p in four.planes for i in p.layers} == {0, 1, 2, 3}
    assert Layout.preset(name, layers=range(4)) == four
    assert Layout.preset(name, page_tokens=layout.page_tokens) == layout
    assert Layout.preset(name, page_tokens=512).page_tokens == 512
    assert f"`{name}`" in DOC.read_text(encoding="utf-8")


def test_deepseek_v3_2() -> None:
    layout = Layout.preset("deepseek-v3.2-bf16", layers=4, page_tokens=64)
    assert [(p.name, p.row_bytes, p.rows, p.layers) for p in layout.planes] == [
        ("latent", 1152, 64, (0, 1, 2, 3)),
        ("indexer", 132, 64, (0, 1, 2, 3)),
    ]
    assert Layout.preset("deepseek-v3.2-bf16").token_bytes == 61 * (1152 + 132)
    assert Layout.preset("deepseek-v3.2-fp8").token_bytes == 61 * (656 + 132)
    bare = Layout.preset("deepseek-v3.2-bf16", indexer_bytes=0)
    # The figure of the SAC paper: 9.2 GB for 131,072 tokens of latent rows.
    assert bare.token_bytes * 131072 == 9_210_691_584


def test_glm_5() -> None:
    layout = Layout.preset("glm-5-bf16")
    assert len(layout.plane("latent").layers) == 78
    assert len(layout.plane("indexer").layers) == 78
    assert Layout.preset("glm-5.1-fp8") == Layout.preset("glm-5-fp8")
    layout = Layout.preset("glm-5.2-bf16")
    assert layout.plane("latent").layers == tuple(range(78))
    assert layout.plane("indexer").layers == (0, 1, 2, *range(6, 78, 4))
    reused = Layout.preset("glm-5.2-bf16", layers=[3, 4, 5])
    assert [p.name for p in reused.planes] == ["latent"]


@pytest.mark.parametrize(("model", "four", "heavy"), [("flash", 21, 20), ("pro", 30, 31)])
def test_deepseek_v4(model: str, four: int, heavy: int) -> None:
    layout = Layout.preset(f"deepseek-v4-{model}")
    planes = {p.name: p for p in layout.planes}
    assert planes["c4-data"].group == planes["c4-scale"].group
    assert [planes[n].row_bytes for n in ("c4-data", "c4-scale", "c4-indexer")] == [576, 8, 132]
    assert (len(planes["c4-data"].layers), planes["c4-data"].rows) == (four, 64)
    assert (len(planes["c128-data"].layers), planes["c128-data"].rows) == (heavy, 2)
    assert planes["window-data"].window_tokens == 128
    assert len(planes["window-data"].layers) == (43 if model == "flash" else 61)
    assert planes["c4-state"].row_bytes == 16384
    assert layout.tail_pages == 1
    assert layout.token_bytes == four * (584 + 132) / 4 + heavy * 584 / 128


def test_deepseek_v4_pro_matches_the_published_size() -> None:
    """vLLM states 9.62 GiB for 2^20 tokens with bf16 rows: 1024 B, index keys 256 B."""
    planes = {p.name: p for p in Layout.preset("deepseek-v4-pro").planes}
    four, heavy = len(planes["c4-data"].layers), len(planes["c128-data"].layers)
    gib = (four * (1024 + 256) / 4 + heavy * 1024 / 128) * 2**20 / 2**30
    assert f"{gib:.2f}" == "9.62"


def test_deepseek_v4_options() -> None:
    layout = Layout.preset("deepseek-v4-flash", state_dtype=None, indexer_bytes=0)
    assert not [p for p in layout.planes if "state" in p.name or "indexer" in p.name]
    with pytest.raises(LayoutError, match="'c128-data': tokens_per_row is 128"):
        Layout.preset("deepseek-v4-flash", page_tokens=64)
    with pytest.raises(LayoutError, match="no plane of kind rows"):
        Layout.preset("deepseek-v4-flash", layers=2)
    with pytest.raises(LayoutError, match="state_dtype is 'int8'; fp32, bf16, fp8"):
        Layout.preset("deepseek-v4-flash", state_dtype="int8")


def test_minimax_m3() -> None:
    layout = Layout.preset("minimax-m3")
    k, v, index = layout.planes
    assert (k.heads, k.row_bytes, k.group) == (4, 256, "kv") == (v.heads, v.row_bytes, v.group)
    assert index.layers == tuple(range(3, 60))
    assert index.row_bytes == 256
    # A block of 128 tokens of one KV head is one contiguous run.
    assert k.rows * k.row_pitch == 32768 == k.layer_bytes // 4
    share = Layout.preset("minimax-m3", kv_heads=1, dtype="fp8", index_bytes=128)
    assert share.token_bytes == 60 * 2 * 128 + 57 * 128


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("deepseek-v3.2-bf16", {"indexer": 1}, "no option 'indexer'; it takes layers, page_"),
        ("deepseek-v3.2-bf16", {"count": 1}, "no option 'count'"),
        ("deepseek-v3.2-bf16", {"layers": 62}, "layers is 62; 1 to 61"),
        ("deepseek-v3.2-bf16", {"layers": 0}, "layers is 0"),
        ("deepseek-v3.2-bf16", {"layers": [61]}, "has layers 0 to 60; 61 is not one"),
        ("deepseek-v3.2-bf16", {"layers": "4"}, "layers is '4'"),
        ("deepseek-v3.2-bf16", {"indexer_bytes": -1}, "indexer_bytes is -1"),
        ("deepseek-v3.2-bf16", {"page_tokens": 0}, "page_tokens is 0"),
        ("minimax-m3", {"dtype": "int4"}, "dtype is 'int4'"),
    ],
)
def test_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout.preset(name, **options)
    assert message in str(caught.value)


def test_names() -> None:
    assert Layout.presets() == presets.NAMES
    assert isinstance(Layout.presets(), tuple)
    assert len(Layout.presets()) == 11
    # The page lists them before anything else of it needs them.
    top = DOC.read_text(encoding="utf-8").partition("## The words")[0]
    assert [n for n in Layout.presets() if f"`{n}`" not in top] == []
    assert "Layout.presets()" in top


def test_unknown_names() -> None:
    with pytest.raises(NotFoundError, match=r"did you mean 'deepseek-v3\.2-bf16'"):
        Layout.preset("deepseek-v3.2-bf61")
    with pytest.raises(NotFoundError, match="there is no preset 'x': there are deepseek-v3"):
        Layout.preset("x")


if __name__ == "__main__":
    head, _, rest = DOC.read_text(encoding="utf-8").partition(BEGIN)
    DOC.write_text(head + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
