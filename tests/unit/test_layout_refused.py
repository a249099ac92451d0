# SPDX-License-Identifier: Apache-2.0
"""Models whose planes do not follow from their configuration get no layout."""

from __future__ import annotations

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
# Types of models with other planes than K and V in every layer, and of plain ones.
OTHER = """\
jamba zamba zamba2 bamba falcon_h1 falcon_mamba mamba mamba2 nemotron_h granitemoehybrid
rwkv rwkv7 xlstm recurrent_gemma qwen3_next qwen3_5_moe_text lfm2 lfm2_moe kimi_linear
bailing_hybrid olmo_hybrid minimax minimax_m1 minimax_text_01 plamo2 phi4flash zaya hymba
retnet gated_deltanet gla whisper mllama_text_model musicgen_decoder mimo_v2_flash xlnet
reformer dory"""
PLAIN = """\
llama qwen2 qwen3 qwen3_moe mistral gemma3_text minimax_m2 minimax_m3_vl_text nemotron
granite granitemoe olmo2 olmo3 gpt_oss phi3 phi4_multimodal deepseek_vl_hybrid falcon
longcat_flash glm4_moe ministral3 gpt_bigcode"""
# Classes of Transformers.
OTHER_CLASSES = """\
jamba zamba zamba2 bamba falcon_h1 falcon_mamba mamba mamba2 nemotron_h granitemoehybrid
rwkv xlstm recurrent_gemma qwen3_next qwen3_5_text lfm2 kimi_linear bailing_hybrid
olmo_hybrid minimax zaya t5 bart whisper mllama mimo_v2_flash dory"""

# A sign of each kind of field; the values are those of published configurations.
SIGNS: dict[str, Any] = {
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "attn_layer_indices": [9, 18, 27],
    "attn_type_list": [0, 0, 1],
    "layers_block_type": ["mamba", "hybrid"],
    "block_types": ["recurrent", "attention"],
    "_block_types": ["recurrent", "attention"],
    "hybrid_override_pattern": "M-M*-",
    "layer_group_size": 6,
    "full_attention_interval": 4,
    "full_attn_idxs": [2, 5],
    "mamba_d_ssm": 16,
    "use_mamba_kernels": True,
    "n_mamba_heads": 2,
    "ssm_state_size": 128,
    "rwkv_version": 7,
    "state_size": 16,
    "time_step_rank": "auto",
    "time_step_floor": 1e-4,
    "rescale_every": 6,
    "lru_width": 2560,
    "conv_L_cache": 3,
    "conv1d_width": 4,
    "short_conv_kernel_size": 4,
    "linear_num_key_heads": 16,
    "linear_attn_config": {"num_heads": 32},
    "linear_attn_alpha_factor": 1,
    "kda_safe_gate": True,
    "mixer_types": ["lightning", "minicpm4"],
    "is_encoder_decoder": True,
    "add_cross_attention": True,
    "cross_attention_layers": [3, 8],
    "decoder_layers": 6,
    "num_decoder_layers": 6,
    "total_ut_steps": 4,
    "n_recurrent_loops": 2,
    "use_cla": True,
}


@pytest.mark.parametrize("field", SIGNS)
def test_fields_of_models_with_other_planes(field: str) -> None:
    config = {**SMOL, field: SIGNS[field]}
    deep = {"text_config": SMOL, field: SIGNS[field]}
    for given in (config, SimpleNamespace(**config), {"text_config": config}, deep):
        with pytest.raises(LayoutError) as caught:
            Layout.from_config(given)
        assert f"configuration has {field} " in str(caught.value)
        assert "describe them with Layout([Plane" in str(caught.value)
    nothings: tuple[Any, ...] = (None, False, [], {}, "")
    for nothing in nothings:
        assert Layout.from_config({**SMOL, field: nothing}) == Layout.from_config(SMOL)


def test_fields_that_look_like_signs() -> None:
    plain = {
        "attn_type_list": [1] * 30,
        "is_decoder": True,
        "rope_scaling": {"type": "linear"},
        "sliding_window_pattern": 6,
        "state": 1,
        7: "mamba",
    }
    assert Layout.from_config({**SMOL, **plain}) == Layout.from_config(SMOL)


@pytest.mark.parametrize(
    "model_type",
    OTHER.split(),
)
def test_types_of_models_with_other_planes(model_type: str) -> None:
    for given in (
        {**SMOL, "model_type": model_type},
        {"model_type": model_type, "text_config": SMOL},
    ):
        with pytest.raises(LayoutError, match=f"model_type '{model_type}'"):
            Layout.from_config(given)


@pytest.mark.parametrize(
    "model_type",
    PLAIN.split(),
)
def test_types_of_models_with_plain_attention(model_type: str) -> None:
    config = {**SMOL, "model_type": model_type}
    assert Layout.from_config(config) == Layout.from_config(SMOL)


def test_a_field_that_cannot_be_read() -> None:
    class Uneven(SimpleNamespace):
        @property
        def kv_lora_rank(self) -> int:
            raise RuntimeError("differs between layers")

    with pytest.raises(
        LayoutError, match="kv_lora_rank cannot be read: differs between layers"
    ):
        Layout.from_config(Uneven(**SMOL))


@pytest.mark.parametrize(
    "model_type",
    OTHER_CLASSES.split(),
)
def test_objects_of_transformers_with_other_planes(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this Transformers has no {model_type}")
    config = transformers.CONFIG_MAPPING[model_type]()
    # As a file has it, or with the fields that a newcomer would add.
    bare = {k: v for k, v in config.to_dict().items() if k != "layer_types"}
    full = {**SMOL, **bare, **SMOL}
    for given in (config, config.to_dict(), bare, full):
        with pytest.raises(LayoutError, match=r"^a model (of|whose)"):
            Layout.from_config(given, dtype="bf16")
