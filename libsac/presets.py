# SPDX-License-Identifier: Apache-2.0
"""What is known of models: layouts by name, and the kinds that have none.

docs/layouts.md says what each layout assumes and where that is written.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, SupportsIndex

from libsac.errors import LayoutError, NotFoundError
from libsac.plane import Plane, choose_layers, integer

__all__ = [
    "DEFAULT_PAGE_TOKENS",
    "NAMES",
    "build",
    "deepseek_v4",
    "deepseek_v4_ratios",
    "refuse_unsized",
]

DEFAULT_PAGE_TOKENS = 64
INDEXER_BYTES = 132  # a key of 128 fp8 values and one fp32 scale

Layers = SupportsIndex | Iterable[SupportsIndex] | None

# Layers whose own indexer runs in GLM-5.2; the others reuse the selection before them.
_GLM_5_2_INDEXERS = tuple(i for i in range(78) if max(i - 2, 0) % 4 == 0)

# Compression of each layer's long-range KV; 0: the layer has its sliding window only.
_V4_FLASH = (0, 0, *(128 if i % 2 else 4 for i in range(2, 43)))
_V4_PRO = (128, 128, *(128 if i % 2 else 4 for i in range(2, 61)))

_V4_RATIOS = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}

_ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp8": 1}

_STATE = "has layers that keep a running state (state-space, recurrent, convolution or linear)"
_CROSS = "has cross-attention, which keeps rows of another input"
_OTHER = "runs layers more than once, or has layers with other rows than K and V of one size"
# Kinds of models that keep something else than rows of every token once in every layer:
# why, names of model types, and fields that only such models have.
_UNSIZED = (
    (
        _STATE,
        re.compile(
            r"mamba|rwkv|lstm|jamba|zamba|bamba|samba|hymba|hyena|griffin|retnet|hgrn|"
            r"delta_?net|recurrent|(bailing|olmo|moe)_?hybrid|_linear$|falcon_?h1|nemotron_h(_|$)|"
            r"jet_nemotron|plamo2|phi4flash|lfm[23]|qwen3_(next|5)|qwen4_exp|zaya|inkling|"
            r"lara_mini|glm5_next|minicpm_sala|minimax(_text|_m1|$)|megalodon|(gla|gsa|ttt)$"
        ),
        re.compile(
            r".*(mamba|rwkv|lstm|delta_?net).*|_?(ssm|lru|gla|gdn|kda|cca|hyena|lightning|hybrid|"
            r"retention|time_(step|mix|decay)|linear_(attn|attention|conv|num|key|value|head|dt)|"
            r"attn_layer|layer_group|short_conv|conv_states|dt_(rank|min|max|init))_.+|"
            r"_?block_types?|layers?_block_types?|block_pattern|mixer_types?|attn_type_list|"
            r"state_size|rescale_every|conv_L_cache|conv1d_width|number_of_conv_states|"
            r"(sequence|step|chunkwise)_kernel|"
            r"full_attn_idxs|full_(attention|attn)_interval"
        ),
    ),
    (
        _CROSS,
        re.compile(r"mllama|encoder-decoder|musicgen|t5_?gemma|pix2struct|seamless|whisper"),
        re.compile(
            r"is_encoder_decoder|add_cross_attention|cross_attention_(layers|hidden_size)|"
            r"(en|de)coder_(num_hidden_)?layers|num_(en|de)coder_layers"
        ),
    ),
    (
        _OTHER,
        re.compile(r"^mimo_v2|^(xlnet|reformer|transfo-xl|dory)$"),
        re.compile(
            r"(n|num)_(recurrent|loop).*|(recurrent|loop)_.+|total_ut_steps|use_cla|"
            r"attention_other_setting"
        ),
    ),
)


@dataclass(frozen=True)
class _Preset:
    build: Callable[..., list[Plane]]
    page_tokens: int
    fixed: dict[str, Any]


def build(
    name: str, layers: Layers, page_tokens: SupportsIndex | None, **options: Any
) -> tuple[list[Plane], SupportsIndex]:
    """Planes and page_tokens of a preset.

    Raises NotFoundError for an unknown name, LayoutError for an option that the preset
    does not take and for values that are out of range.
    """
    preset = _PRESETS.get(name)
    if preset is None:
        near = get_close_matches(str(name), NAMES, 1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise NotFoundError(
            f"there is no preset '{name}': {hint}there are {', '.join(NAMES)}", object=str(name)
        )
    takes = [p for p in inspect.signature(preset.build).parameters if p not in preset.fixed]
    takes = [p for p in takes if p not in ("name", "layers")]
    for option in options:
        if option not in takes:
            raise LayoutError(
                f"preset '{name}' has no option '{option}'; it takes layers, page_tokens, "
                + ", ".join(takes)
            )
    planes = preset.build(name, layers, **preset.fixed, **options)
    return planes, preset.page_tokens if page_tokens is None else page_tokens


def _mla(
    name: str,
    layers: Layers,
    count: int,
    latent_bytes: int,
    dtype: str,
    indexer_layers: Sequence[int] | None = None,
    indexer_bytes: SupportsIndex = INDEXER_BYTES,
) -> list[Plane]:
    """One latent row a token and layer, and the keys of the indexer that selects them.

    indexer_bytes 0 leaves the indexer out.
    """
    chosen = choose_layers(layers, count, name)
    planes = [Plane("latent", chosen, latent_bytes, dtype=dtype)]
    with_indexer = [i for i in chosen if indexer_layers is None or i in indexer_layers]
    size = integer(indexer_bytes, "indexer_bytes", 0, 1 << 24)
    if size and with_indexer:
        label = "fp8+fp32 scale" if size == INDEXER_BYTES else ""
        planes.append(Plane("indexer", with_indexer, size, dtype=label))
    return planes


def deepseek_v4(
    name: str,
    layers: Layers,
    compress_ratios: Sequence[int],
    indexer_bytes: SupportsIndex = INDEXER_BYTES,
    state_dtype: str | None = "fp32",
    window_tokens: SupportsIndex = 128,
) -> list[Plane]:
    """Every layer a sliding window; layers with a ratio also one row each ratio tokens.

    Data (448 fp8 values and 64 bf16 of RoPE) and scales are two planes of one group.
    Layers of ratio 4 have an indexer over their compressed rows, and compress with an
    overlap of 4 tokens: the values and gates of the last 4 tokens of a page are what the
    next page's first row still needs, kept in two state planes (state_dtype "fp32" or
    "bf16"; None leaves them out, and a resumed prefix then differs in that row).
    """
    ratios = [integer(r, f"{name}: compress_ratios", 0, 65536) for r in compress_ratios]
    chosen = choose_layers(layers, len(ratios), name)
    window = integer(window_tokens, "window_tokens", 1, 1 << 31)
    planes = []

    def rows(prefix: str, which: list[int], kind: str, **how: int) -> None:
        for part, size, dtype in (("data", 576, "fp8+bf16 rope"), ("scale", 8, "ue8m0")):
            planes.append(
                Plane(f"{prefix}-{part}", which, size, kind, prefix, dtype=dtype, **how)
            )

    for ratio in sorted({ratios[i] for i in chosen} - {0, 1}):
        which = [i for i in chosen if ratios[i] == ratio]
        rows(f"c{ratio}", which, "rows", tokens_per_row=ratio)
    overlapped = [i for i in chosen if ratios[i] == 4]
    size = integer(indexer_bytes, "indexer_bytes", 0, 1 << 24)
    if overlapped and size:
        label = "fp8+fp32 scale" if size == INDEXER_BYTES else ""
        planes.append(Plane("c4-indexer", overlapped, size, tokens_per_row=4, dtype=label))
    rows("window", list(chosen), "window", window_tokens=window)
    if overlapped and state_dtype is not None:
        element = _element_bytes(state_dtype, "state_dtype")
        for label, width in (("c4-state", 512), ("c4-indexer-state", 128)):
            both = 4 * 2 * width * element  # of 4 tokens the value and its gate
            planes.append(Plane(label, overlapped, both, "state", dtype=state_dtype))
    return planes


def _minimax_m3(
    name: str,
    layers: Layers,
    dtype: str = "bf16",
    kv_heads: SupportsIndex = 4,
    index_bytes: SupportsIndex = 256,
) -> list[Plane]:
    """GQA whose layers from 3 on select blocks of 128 tokens a KV head by an index key.

    With pages of 128 tokens a selected block is one page's run of rows of that head.
    """
    chosen = choose_layers(layers, 60, name)
    row = 128 * _element_bytes(dtype, "dtype")
    planes = [Plane(p, chosen, row, group="kv", heads=kv_heads, dtype=dtype) for p in "kv"]
    sparse = [i for i in chosen if i >= 3]
    size = integer(index_bytes, "index_bytes", 0, 1 << 24)
    if sparse and size:
        label = {256: "bf16", 128: "fp8"}.get(size, "")
        planes.append(Plane("index", sparse, size, dtype=label))
    return planes


def deepseek_v4_ratios(layer_types: Iterable[str], rates: Mapping[str, int]) -> list[int]:
    """compress_ratios from a configuration's layer_types and compress_rates."""
    unknown = [t for t in layer_types if t not in _V4_RATIOS]
    if unknown:
        raise LayoutError(f"layer type '{unknown[0]}' is not known in DeepSeek-V4")
    return [rates.get(t, _V4_RATIOS[t]) for t in layer_types]


def refuse_unsized(config: Any, value: Callable[[str], Any]) -> None:
    """LayoutError, naming the field, where a configuration (one level of it) is of a model
    whose planes do not follow from it. ``value`` gives the value of a field."""
    ask = "; its planes do not follow from that: describe them with Layout([Plane(...), ...])"
    names = config if isinstance(config, Mapping) else dir(config)
    model_type = str(value("model_type") or "")
    for why, types, fields in _UNSIZED:
        if types.search(model_type):
            raise LayoutError(f"a model of model_type '{model_type}' {why}{ask}")
        for name in names:
            if isinstance(name, str) and fields.fullmatch(name) and _says(name, value(name)):
                raise LayoutError(f"a model whose configuration has {name} {why}{ask}")


def _says(name: str, value: Any) -> bool:
    if name == "attn_type_list" and isinstance(value, list | tuple):
        return any(kind != 1 for kind in value)  # 1: full attention
    if isinstance(value, Sized):
        return len(value) > 0
    return value is not None and value is not False and not callable(value)


def _element_bytes(dtype: Any, what: str) -> int:
    if dtype not in _ELEMENT_BYTES:
        raise LayoutError(f"{what} is {dtype!r}; {', '.join(_ELEMENT_BYTES)} are known")
    return _ELEMENT_BYTES[dtype]


def _presets() -> dict[str, _Preset]:
    formats = {"bf16": (1152, "bf16"), "fp8": (656, "fp8+fp32 scale+bf16")}
    out = {}
    for model, count, indexers in (
        ("deepseek-v3.2", 61, None),
        ("glm-5", 78, None),
        ("glm-5.1", 78, None),
        ("glm-5.2", 78, _GLM_5_2_INDEXERS),
    ):
        for short, (size, dtype) in formats.items():
            fixed = {
                "count": count,
                "latent_bytes": size,
                "dtype": dtype,
                "indexer_layers": indexers,
            }
            out[f"{model}-{short}"] = _Preset(_mla, DEFAULT_PAGE_TOKENS, fixed)
    # Pages of 256 tokens are a multiple of both compressions and of the window.
    for model, ratios in (("flash", _V4_FLASH), ("pro", _V4_PRO)):
        fixed = {"compress_ratios": ratios}
        out[f"deepseek-v4-{model}"] = _Preset(deepseek_v4, 256, fixed)
    out["minimax-m3"] = _Preset(_minimax_m3, 128, {})
    return out


_PRESETS = _presets()
NAMES = tuple(_PRESETS)
