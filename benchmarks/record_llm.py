# SPDX-License-Identifier: Apache-2.0
"""Records a trace of a real small model: ``python benchmarks/record_llm.py FILE``.

SmolLM2-135M decodes with full attention on the CPU. What is recorded is, for each step, layer
and KV head, the tokens that got the most of the attention: what an exact selection would pick.
``sacctl bench policy FILE`` and ``benchmarks/hot_buffer.py --trace FILE`` play it. Needs what
docs/demo-llm.md says.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from libsac.demo.llm import PAGE_TOKENS, REQUEST, TEXT, read_text
from libsac.demo.llm_kv import LocalKV
from libsac.demo.llm_model import ATTENTION, LanguageModel, attention
from libsac.trace import Recorder


class Noted:
    """Attention for Transformers that notes each decode step's selections."""

    def __init__(self, top_k: int, layers: set[int] | None) -> None:
        """layers: to record; None: all."""
        self._top_k, self._layers = top_k, layers
        self.recorder: Recorder | None = None  # while steps are to be recorded

    def __call__(
        self, module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any
    ) -> Any:
        out = attention(module, query, key, value, mask, **more)
        layer = int(module.layer_idx)
        if self.recorder is None or (self._layers is not None and layer not in self._layers):
            return out
        store, heads = more["kv_store"], key.shape[1]
        every = torch.arange(store.tokens).expand(heads, -1)
        keys, _ = store.rows(layer, every)
        grouped = query.reshape(heads, -1, key.shape[3])
        weights = torch.softmax((grouped @ keys.transpose(1, 2)) * more["scaling"], dim=-1)
        picked = weights.sum(dim=1).topk(self._top_k, dim=-1).indices
        self.recorder.record(0, layer, [0], picked[None].int())
        return out


def main() -> int:
    parser = argparse.ArgumentParser(prog="record_llm", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--top-k", type=int, default=256)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--layers", type=int, nargs="+", help="all where left out")
    parser.add_argument("--text", type=Path, default=TEXT)
    args = parser.parse_args()
    model = LanguageModel()
    noted = Noted(args.top_k, set(args.layers) if args.layers else None)
    import_module("transformers").AttentionInterface.register(ATTENTION, noted)
    prompt = model.prompt(read_text(args.text), REQUEST)
    most = len(prompt) + args.steps
    if args.top_k >= len(prompt) or most > model.context:
        print(
            f"the prompt has {len(prompt)} tokens; more than {args.top_k} are needed, and "
            f"{model.context - args.steps} are the most",
            file=sys.stderr,
        )
        return 1
    store = LocalKV(model.shape(PAGE_TOKENS), most)
    seconds = model.prefill(prompt[:-1], store)
    print(f"{model.name}: {len(prompt)} tokens prefilled in {seconds:.0f} s", flush=True)
    heads = model.shape(PAGE_TOKENS).heads
    about = {"model": model.name, "prompt": len(prompt), "selection": "exact, by attention"}
    with Recorder(
        args.file, top_k=args.top_k, heads=heads, requests=1, ring=1 << 14, metadata=about
    ) as recorder:
        recorder.bind(0, most)
        noted.recorder = recorder
        token = prompt[-1]
        for _ in range(args.steps):
            token = int(model._step([token], store, None).argmax())
        recorder.release(0)
    lost = recorder.lost
    print(f"{recorder.recorded} selections of {args.top_k} tokens in {args.file}, {lost} lost")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
