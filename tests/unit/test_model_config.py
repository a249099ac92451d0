# SPDX-License-Identifier: Apache-2.0
"""Layouts from Transformers configurations."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from libsac.errors import LayoutError
from libsac.layout import Layout

SMOL = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "torch_dtype": "bfloat16",
}
MLA = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "dtype": "torch.bfloat16",
}
GEMMA = {
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "sliding_window": 512,
    "dtype": "bfloat16",
}


def shapes(layout: Layout) -> list[tuple[Any, ...]]:
    return [(p.name, len(p.layers), p.heads, p.row_bytes, p.kind) for p in layout.planes]


def test_gqa() -> None:
    layout = Layout.from_config(SMOL, page_tokens=16)
    assert shapes(layout) == [("k", 30, 3, 128, "rows"), ("v", 30, 3, 128, "rows")]
    assert {p.group for p in layout.planes} == {"kv"}
    assert {p.dtype for p in layout.planes} == {"bf16"}
    assert Layout.from_config(SimpleNamespace(**SMOL), 16) == layout
    assert Layout.from_config({"text_config": SMOL}, 16) == layout
    assert Layout.from_config(SMOL, 16, per_head=False).plane("k").row_bytes == 384
    assert Layout.from_config(SMOL, 16, dtype="fp32").plane("k").row_bytes == 256
    assert Layout.from_config(SMOL, 16, layers=2).plane("v").layers == (0, 1)
    mha = {k: v for k, v in SMOL.items() if k != "num_key_value_heads"}
    assert Layout.from_config(mha).plane("k").heads == 9
    assert Layout.from_config({**SMOL, "v_head_dim": 32}).plane("v").row_bytes == 64


def test_mla() -> None:
    assert shapes(Layout.from_config(MLA)) == [("latent", 61, 1, 1152, "rows")]
    assert Layout.from_config(MLA, dtype="fp8_ds_mla").plane("latent").row_bytes == 656
    indexed = {**MLA, "index_head_dim": 128, "layer_types": ["indexed_attention"] * 61}
    assert Layout.from_config(indexed) == Layout.preset("deepseek-v3.2-bf16")
    modes = ["full", "shared", "shared"] * 20 + ["full"]
    shared = Layout.from_config({**indexed, "indexer_types": modes})
    assert shared.plane("indexer").layers == tuple(range(0, 61, 3))


def test_sliding_windows() -> None:
    layout = Layout.from_config(GEMMA)
    assert shapes(layout) == [
        ("k", 1, 4, 512, "rows"),
        ("v", 1, 4, 512, "rows"),
        ("k-window", 5, 4, 512, "window"),
        ("v-window", 5, 4, 512, "window"),
    ]
    assert layout.plane("k-window").window_tokens == 512
    assert layout.tail_pages == 8
    assert len(Layout.from_config(GEMMA, windows=False).plane("k").layers) == 6
    # A window without layer_types does not say which layers use it: all rows are kept.
    assert Layout.from_config({**SMOL, "sliding_window": 64}) == Layout.from_config(SMOL)
    chunked = {**GEMMA, "layer_types": ["chunked_attention", "full_attention"] * 3}
    chunked["attention_chunk_size"] = 8192
    assert Layout.from_config(chunked).plane("k-chunk").window_tokens == 8192
    sharing = {**GEMMA, "layer_types": ["full_attention"] * 6, "num_kv_shared_layers": 2}
    assert Layout.from_config(sharing).plane("k").layers == (0, 1, 2, 3)


def test_layers_that_differ_in_size() -> None:
    uneven = {**GEMMA, "layer_types": ["full_attention"] * 6}
    uneven["per_layer_config"] = {"05": {"head_dim": 512, "num_key_value_heads": 2}}
    assert shapes(Layout.from_config(uneven)) == [
        ("k", 5, 4, 512, "rows"),
        ("v", 5, 4, 512, "rows"),
        ("k.2", 1, 2, 1024, "rows"),
        ("v.2", 1, 2, 1024, "rows"),
    ]


def test_deepseek_v4() -> None:
    ratios = [0, 0] + [4, 128] * 20 + [4]
    config = {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 43,
        "head_dim": 512,
        "index_head_dim": 128,
        "sliding_window": 128,
        "compress_ratios": [*ratios, 0],  # the last one is the draft head's
    }
    flash = Layout.preset("deepseek-v4-flash")
    assert Layout.from_config(config, 256) == flash
    names = {0: "sliding", 4: "compressed_sparse", 128: "heavily_compressed"}
    config["layer_types"] = [f"{names[r]}_attention" for r in ratios]
    del config["compress_ratios"]
    assert Layout.from_config(config, 256) == flash
    with pytest.raises(LayoutError, match="other than head_dim 512"):
        Layout.from_config({**config, "head_dim": 256}, 256)


def test_minimax_m3() -> None:
    sparse = {"sparse_attention_freq": [0] * 3 + [1] * 57, "sparse_index_dim": 128}
    config = {
        "num_hidden_layers": 60,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "dtype": "bfloat16",
        "sparse_attention_config": sparse,
    }
    assert Layout.from_config({"text_config": config}, 128) == Layout.preset("minimax-m3")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no num_hidden_layers"),
        ({**SMOL, "num_hidden_layers": "30"}, "num_hidden_layers is '30'"),
        ({**SMOL, "torch_dtype": None}, "no dtype; pass dtype="),
        ({**SMOL, "torch_dtype": "int4"}, "dtype 'int4' is not known"),
        ({**SMOL, "dtype": "fp8_ds_mla"}, "a format of MLA rows"),
        ({**SMOL, "hidden_size": None}, "no hidden_size"),
        ({**SMOL, "num_key_value_heads": [1, 2]}, "num_key_value_heads is [1, 2]"),
        ({**SMOL, "num_key_value_heads": None, "multi_query": True}, "has multi_query"),
        (
            {**SMOL, "num_key_value_heads": None, "num_attention_groups": 3},
            "has num_attention_",
        ),
        (
            {**SMOL, "hidden_size": 577},
            "hidden_size 577 is no multiple of its num_attention_heads 9",
        ),
        (
            {**SMOL, "num_key_value_heads": 2},
            "num_key_value_heads is 2, which does not divide its num_attention_heads 9",
        ),
        ({**SMOL, "num_key_value_heads": 18}, "is 18, which does not divide"),
        ({**SMOL, "kv_channels": 128}, "has kv_channels but no head_dim"),
        ({**SMOL, "global_head_dim": 512}, "has global_head_dim"),
        ({**SMOL, "layer_types": ["linear_attention"] * 30}, "'linear_attention', and what"),
        ({**SMOL, "layer_types": ["indexed_attention"] * 30}, "layer 0 is of type 'indexed"),
        ({**SMOL, "layer_types": ["full_attention"]}, "layer_types does not name 30 layers"),
        ({**GEMMA, "sliding_window": None}, "no sliding_window"),
        ({**GEMMA, "layer_types": ["sliding_attention"] * 6}, "no plane of kind rows"),
        ({**MLA, "qk_rope_head_dim": None}, "no qk_rope_head_dim"),
        ({**MLA, "layer_types": ["sliding_attention"] * 61}, "layer 0 is of type 'sliding"),
        ({**MLA, "index_head_dim": 128, "model_type": "new"}, "model type 'new' are not known"),
        ({**MLA, "index_head_dim": 128, "index_topk_freq": 4}, "load it with Transformers"),
        ({**MLA, "index_head_dim": 128, "indexer_types": ["full"]}, "indexer_types does not"),
    ],
)
def test_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout.from_config(config)
    assert message in str(caught.value)


def test_head_dim_stands_for_an_odd_hidden_size() -> None:
    odd = {**SMOL, "hidden_size": 577, "head_dim": 48}
    assert Layout.from_config(odd).plane("k").row_bytes == 96
    assert (
        Layout.from_config({**SMOL, "kv_channels": 128, "head_dim": 64}).plane("k").heads == 3
    )


@pytest.mark.parametrize("config", ["config.json", b"{}", Path("c"), None, 3, [SMOL], dict])
def test_what_is_no_configuration(config: Any) -> None:
    with pytest.raises(
        LayoutError, match=r"a configuration object, such as model\.config, or"
    ) as e:
        Layout.from_config(config)
    assert repr(config) in str(e.value)


@pytest.mark.parametrize(
    ("model_type", "planes"),
    [
        ("llama", ["k", "v"]),
        ("gpt_oss", ["k", "v", "k-window", "v-window"]),
        ("gemma4_text", ["k", "v", "k-window", "v-window"]),
        ("deepseek_v3", ["latent"]),
        ("deepseek_v32", ["latent", "indexer"]),
        ("glm_moe_dsa", ["latent", "indexer"]),
    ],
)
def test_objects_of_transformers(model_type: str, planes: list[str]) -> None:
    transformers = pytest.importorskip("transformers")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this Transformers has no {model_type}")
    config = transformers.CONFIG_MAPPING[model_type]()
    layout = Layout.from_config(config, 64, dtype="bf16")
    assert [p.name for p in layout.planes] == planes
    assert Layout.from_config(config.to_dict(), 64, dtype="bf16") == layout
