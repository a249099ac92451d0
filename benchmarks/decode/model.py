# SPDX-License-Identifier: Apache-2.0
"""What one layer does beside fetching rows: indexer, sparse MLA, the dense rest.

Sizes are DeepSeek-V3.2's: hidden size 7,168, 128 query heads over latent rows of 512 + 64
channels, 256 experts of 2,048 of which a token uses eight. One GPU of eight is modelled, with
attention data-parallel and experts spread: it holds all of a layer's attention and 32 experts,
and the tokens of all eight GPUs come to its experts.
"""

from __future__ import annotations

from typing import Any

import torch

from decode import index

HIDDEN, Q_RANK, HEADS, LATENT, ROPE, HEAD = 7168, 1536, 128, 512, 64, 128
WIDTH = LATENT + ROPE
ROW_BYTES = WIDTH * 2
EXPERT = 2048
GPUS, EXPERTS_USED = 8, 8
# bf16 has twice the bytes of the fp8 that experts really have, so half as many experts read
# as much memory; each gets twice the tokens, so the arithmetic is the same as well.
EXPERTS = 256 // GPUS // 2
MODEL_LAYERS = 61
TOP_K = 2048


class Layer:
    """Weights of one layer; all layers of the loop use the same, since none stays in the
    caches until the next. Activations go through every matrix, and their values mean
    nothing."""

    def __init__(self, generator: Any) -> None:
        def weights(*shape: int) -> Any:
            made = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
            return made.normal_(std=shape[-2] ** -0.5, generator=generator)

        self.q_down = weights(HIDDEN, Q_RANK)
        self.q_up = weights(Q_RANK, HEADS * (HEAD + ROPE))
        self.kv_down = weights(HIDDEN, WIDTH)
        self.absorb = weights(HEADS, HEAD, LATENT)
        self.value = weights(HEADS, LATENT, HEAD)
        self.output = weights(HEADS * HEAD, HIDDEN)
        self.index_q = weights(Q_RANK, index.HEADS * index.DIM)
        self.gate_up = weights(EXPERTS, HIDDEN, 2 * EXPERT)
        self.down = weights(EXPERTS, EXPERT, HIDDEN)

    @property
    def nbytes(self) -> int:
        return sum(w.nbytes for w in vars(self).values())

    def queries(self, hidden: Any) -> Any:
        """(B, 128, 576) of hidden (B, 7168); the indexer's projection is computed too."""
        low = hidden @ self.q_down
        q = (low @ self.q_up).view(-1, HEADS, HEAD + ROPE)
        latent = torch.bmm(q[..., :HEAD].transpose(0, 1), self.absorb).transpose(0, 1)
        torch.mm(low, self.index_q)
        torch.mm(hidden, self.kv_down)
        return torch.cat((latent, q[..., HEAD:]), dim=-1)

    def attend(self, query: Any, rows: Any, wrong: Any) -> Any:
        """Attention of one token over its selected rows; hidden (B, 7168).

        rows: (B, K, 576) bf16. wrong: (B, K) bool, rows that do not count.
        """
        scores = torch.bmm(query, rows.transpose(1, 2)) * (HEAD + ROPE) ** -0.5
        weights = torch.softmax(scores.masked_fill(wrong[:, None], -torch.inf).float(), dim=-1)
        mixed = torch.bmm(weights.to(rows.dtype), rows[..., :LATENT])
        heads = torch.bmm(mixed.transpose(0, 1), self.value).transpose(0, 1)
        return heads.reshape(len(heads), -1) @ self.output

    def dense(self, hidden: Any) -> Any:
        """This GPU's share of the experts for its own and the other GPUs' tokens."""
        batch = len(hidden)
        each = max(1, -(-batch * GPUS * EXPERTS_USED // GPUS // EXPERTS))
        tokens = hidden.repeat(-(-EXPERTS * each // batch), 1)[: EXPERTS * each]
        gate, up = torch.bmm(tokens.view(EXPERTS, each, HIDDEN), self.gate_up).chunk(2, -1)
        out = torch.bmm(torch.nn.functional.silu(gate) * up, self.down).view(-1, HIDDEN)
        return hidden + out[:batch]


def normed(hidden: Any) -> Any:
    """RMS norm without weights: keeps numbers in range from layer to layer."""
    return torch.nn.functional.rms_norm(hidden, (HIDDEN,))
