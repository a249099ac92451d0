# SPDX-License-Identifier: Apache-2.0
"""Planes of a model from its Transformers configuration (an object or a dict)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, SupportsIndex

from libsac.errors import LayoutError
from libsac.plane import ELEMENT_BYTES, MAX_LAYERS, Plane, choose_layers, dtype_label, integer
from libsac.presets import deepseek_v4, deepseek_v4_ratios, refuse_unsized

__all__ = ["planes"]

Layers = SupportsIndex | Iterable[SupportsIndex] | None

# Types of layers that keep the rows of every token, with K and V and with MLA. A type
# that is not here keeps something whose size the configuration does not give.
_KV_TYPES = ("full_attention", "attention", "minimax_m3_sparse")
_MLA_TYPES = ("full_attention", "attention", "indexed_attention", "deepseek_sparse_attention")
_WINDOW_FIELD = {
    "sliding_attention": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}
# Models whose indexer keeps one fp8 key and its scale a token.
_INDEXED_MODELS = ("deepseek_v32", "glm_moe_dsa")
# Sizes for some of the layers, each model in its own way.
_UNEVEN_FIELDS = (
    *("global_head_dim", "num_global_key_value_heads"),
    *("swa_head_dim", "swa_num_key_value_heads", "num_key_value_heads_per_layer"),
)
# Other names of num_key_value_heads and of head_dim. What they mean differs by model.
_KV_HEAD_FIELDS = (
    *("multi_query", "multi_query_group_num", "num_kv_heads", "n_head_kv"),
    *("num_attention_groups", "num_query_groups"),
)
_HEAD_DIM_FIELDS = ("kv_channels", "attention_head_dim", "attention_head_size", "d_kv")
_NO_CONFIG = (str, bytes, os.PathLike, int, float, list, tuple, set, type, type(None))


class _Config:
    """Reads fields of a configuration, a nested text_config first."""

    def __init__(self, config: Any) -> None:
        self.levels = [config]
        text = self._field(config, "text_config")
        if text is not None:
            self.levels.insert(0, text)

    @staticmethod
    def _field(level: Any, key: str) -> Any:
        if isinstance(level, Mapping):
            return level.get(key)
        try:
            return getattr(level, key, None)
        except Exception as error:
            # Transformers has an error of its own for values that differ between layers.
            raise LayoutError(f"the configuration's {key} cannot be read: {error}") from error

    def get(self, key: str) -> Any:
        """The field, or None where it is missing or null."""
        for level in self.levels:
            value = self._field(level, key)
            if value is not None:
                return value
        return None

    def layer(self, i: int) -> _Config:
        """The configuration of one layer, where layers differ; else self."""
        for level in self.levels:
            if self._field(level, "is_heterogeneous"):
                return _Config(level.per_layer_config[i])
            if isinstance(level, Mapping) and level.get("per_layer_config"):
                # Keys are layer numbers as text, with leading zeros.
                each = {int(key): value for key, value in level["per_layer_config"].items()}
                own = _Config(each.get(i, {}))
                own.levels.extend(self.levels)
                return own
        return self

    def number(self, key: str, high: int = 1 << 24) -> int:
        """A whole number of 1 or more; LayoutError where it is missing."""
        value = self.get(key)
        if value is None:
            raise LayoutError(f"the configuration has no {key}")
        return integer(value, f"the configuration's {key}", 1, high)


def planes(
    config: Any, dtype: str | None, layers: Layers, per_head: bool, windows: bool
) -> list[Plane]:
    """Planes of a configuration; see Layout.from_config for the arguments and errors."""
    if isinstance(config, _NO_CONFIG):
        raise LayoutError(
            f"config is {config!r}; a configuration object, such as model.config, or the dict "
            "of a config.json is wanted (of a file: json.loads(Path(file).read_text()))"
        )
    c = _Config(config)
    for level in c.levels:
        refuse_unsized(level, partial(c._field, level))
    count = c.number("num_hidden_layers", MAX_LAYERS)
    if c.get("model_type") == "deepseek_v4":
        return _deepseek_v4(c, count, layers)
    dtype = _dtype(c, dtype)
    if c.get("kv_lora_rank") is not None:
        return _mla(c, count, dtype, layers)
    return _kv(c, count, dtype, layers, per_head, windows)


def _dtype(c: _Config, dtype: str | None) -> str:
    given = dtype if dtype is not None else c.get("dtype") or c.get("torch_dtype")
    if given is None:
        raise LayoutError("the configuration has no dtype; pass dtype=, such as 'bf16'")
    name = dtype_label(given)
    if name not in ELEMENT_BYTES and name != "fp8_ds_mla":
        known = ", ".join((*ELEMENT_BYTES, "fp8_ds_mla"))
        raise LayoutError(f"dtype {given!r} is not known; {known} are")
    return name


def _layer_types(c: _Config, count: int) -> list[str]:
    types = c.get("layer_types")
    if types is None:
        # The configuration file of MiniMax-M3 has a 0 or 1 for each layer instead.
        flags = (c.get("sparse_attention_config") or {}).get("sparse_attention_freq")
        if flags is None:
            # A sliding_window alone does not say which layers use it: keep all rows.
            return ["full_attention"] * count
        types = ["minimax_m3_sparse" if flag else "full_attention" for flag in flags]
    if not isinstance(types, list | tuple) or len(types) < count:
        raise LayoutError(f"the configuration's layer_types does not name {count} layers")
    return [str(t) for t in types[:count]]


def _kv(
    c: _Config, count: int, dtype: str, layers: Layers, per_head: bool, windows: bool
) -> list[Plane]:
    """K and V planes, those of sliding-window layers apart; MiniMax-M3's index keys."""
    if dtype == "fp8_ds_mla":
        raise LayoutError("dtype 'fp8_ds_mla' is a format of MLA rows; this model has K and V")
    types = _layer_types(c, count)
    # The last layers of some models read the KV of layers before them and keep none.
    shared = c.get("num_kv_shared_layers") or 0
    if shared:
        count -= integer(shared, "the configuration's num_kv_shared_layers", 0, count - 1)
    chosen = choose_layers(layers, count, "the model")
    # Layers with rows of one size and the same window share a pair of planes.
    kept: dict[tuple[str, int, int, int], list[int]] = {}
    for i in chosen:
        window_field = _window_field(types[i], i, _KV_TYPES)
        shape = (window_field if windows else "", *_kv_shape(c.layer(i)))
        kept.setdefault(shape, []).append(i)
    out = []
    tags: dict[str, int] = {}
    for (field, heads, k_dim, v_dim), which in sorted(kept.items(), key=lambda e: e[0][0]):
        window = c.number(field, (1 << 32) - 1) if field else 0
        tag = {"": "", "sliding_window": "-window"}.get(field, "-chunk")
        nth = tags[tag] = tags.get(tag, 0) + 1
        tag += f".{nth}" if nth > 1 else ""
        for name, dim in (("k", k_dim), ("v", v_dim)):
            row = dim * ELEMENT_BYTES[dtype]
            out.append(
                Plane(
                    f"{name}{tag}",
                    which,
                    row if per_head else row * heads,
                    kind="window" if field else "rows",
                    group=f"kv{tag}",
                    heads=heads if per_head else 1,
                    window_tokens=window,
                    dtype=dtype,
                )
            )
    return out + _block_index(c, [i for i in chosen if types[i] == "minimax_m3_sparse"])


def _kv_shape(c: _Config) -> tuple[int, int, int]:
    """KV heads, and values of a head's K row and of its V row."""
    attention_heads = c.number("num_attention_heads", 65535)
    heads = _kv_heads(c, attention_heads)
    if attention_heads % heads:
        raise LayoutError(
            f"the configuration's num_key_value_heads is {heads}, which does not divide its "
            f"num_attention_heads {attention_heads}"
        )
    if c.get("head_dim") is not None:
        k_dim = c.number("head_dim")
    else:
        _refuse_alias(c, _HEAD_DIM_FIELDS, "head_dim")
        hidden = c.number("hidden_size")
        if hidden % attention_heads:
            raise LayoutError(
                f"the configuration has no head_dim, and its hidden_size {hidden} is no "
                f"multiple of its num_attention_heads {attention_heads}; set head_dim"
            )
        k_dim = hidden // attention_heads
    v_dim = c.number("v_head_dim") if c.get("v_head_dim") is not None else k_dim
    return heads, k_dim, v_dim


def _block_index(c: _Config, layers: list[int]) -> list[Plane]:
    """MiniMax-M3: one bf16 index key a token in the layers that select blocks by it."""
    if not layers:
        return []
    sparse = c.get("sparse_attention_config") or {}
    dim = c.get("index_head_dim") or sparse.get("sparse_index_dim")
    dim = integer(dim, "the configuration's index_head_dim", 1, 1 << 16)
    return [Plane("index", layers, dim * 2, dtype="bf16")]


def _kv_heads(c: _Config, attention_heads: int) -> int:
    for field in _UNEVEN_FIELDS:
        if c.get(field):
            raise LayoutError(
                f"the configuration has {field}: its layers differ in the size of their "
                "rows; load it with Transformers, or describe the planes by hand"
            )
    if c.get("num_key_value_heads") is not None:
        return c.number("num_key_value_heads", 65535)
    _refuse_alias(c, _KV_HEAD_FIELDS, "num_key_value_heads")
    return attention_heads


def _refuse_alias(c: _Config, fields: Iterable[str], wanted: str) -> None:
    for field in fields:
        if c.get(field):
            raise LayoutError(f"the configuration has {field} but no {wanted}; set that field")


def _window_field(layer_type: str, layer: int, full: tuple[str, ...]) -> str:
    """Name of the field with a layer's window, or "" where it keeps all rows."""
    if layer_type in full:
        return ""
    if layer_type in _WINDOW_FIELD and full is _KV_TYPES:
        return _WINDOW_FIELD[layer_type]
    raise LayoutError(
        f"layer {layer} is of type '{layer_type}', and what it keeps cannot be sized from "
        "the configuration; describe the planes by hand (kind 'state' for a fixed state)"
    )


def _mla(c: _Config, count: int, dtype: str, layers: Layers) -> list[Plane]:
    """The latent with its RoPE part in one row, and the indexer's keys where there are."""
    types = _layer_types(c, count)
    chosen = choose_layers(layers, count, "the model")
    for i in chosen:
        _window_field(types[i], i, _MLA_TYPES)
    rank, rope = c.number("kv_lora_rank"), c.number("qk_rope_head_dim")
    if dtype == "fp8_ds_mla":
        # fp8 latent, an fp32 scale for each 128 of it, RoPE in bf16.
        if rank % 128:
            raise LayoutError(f"fp8_ds_mla needs a kv_lora_rank in 128s, not {rank}")
        row = rank + rank // 128 * 4 + rope * 2
    else:
        row = (rank + rope) * ELEMENT_BYTES[dtype]
    out = [Plane("latent", chosen, row, dtype=dtype)]
    out.extend(_indexer(c, count, chosen))
    return out


def _indexer(c: _Config, count: int, chosen: tuple[int, ...]) -> list[Plane]:
    if c.get("index_head_dim") is None:
        return []
    if c.get("model_type") not in (None, *_INDEXED_MODELS):
        raise LayoutError(
            f"the keys of the indexer of model type '{c.get('model_type')}' are not known; "
            "describe the planes by hand"
        )
    modes = c.get("indexer_types")
    if modes is None:
        if c.get("index_topk_pattern") or (c.get("index_topk_freq") or 1) != 1:
            raise LayoutError(
                "the configuration says by a pattern which layers have an indexer; load it "
                "with Transformers, which lists them in indexer_types"
            )
        modes = ["full"] * count
    if len(modes) < count:
        raise LayoutError(f"the configuration's indexer_types does not name {count} layers")
    own = [i for i in chosen if modes[i] != "shared"]
    dim = c.number("index_head_dim")
    # fp8 values and an fp32 scale for each 128 of them or part of that.
    size = dim + -(-dim // 128) * 4
    return [Plane("indexer", own, size, dtype="fp8+fp32 scale")] if own else []


def _deepseek_v4(c: _Config, count: int, layers: Layers) -> list[Plane]:
    if (c.number("head_dim"), c.get("index_head_dim")) != (512, 128):
        raise LayoutError("a deepseek_v4 configuration with other than head_dim 512 and "
                          "index_head_dim 128; describe its planes by hand")  # fmt: skip
    ratios = c.get("compress_ratios")
    if ratios is None:
        ratios = deepseek_v4_ratios(_layer_types(c, count), c.get("compress_rates") or {})
    if len(ratios) < count:
        raise LayoutError(f"the configuration's compress_ratios does not name {count} layers")
    window = c.number("sliding_window")
    # Entries past the model's layers belong to draft heads.
    return deepseek_v4("the model", layers, ratios[:count], window_tokens=window)
