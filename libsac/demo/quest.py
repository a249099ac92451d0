# SPDX-License-Identifier: Apache-2.0
"""Quest page selection: which tokens a decode step reads, and attention over just those.

Each page of keys is summed up by its bounds: the smallest and the largest value of every
channel, per KV head. With them a query gets an upper bound of its product with any key of
the page, and the pages with the highest bounds are read whole. The newest tokens are always
read. (Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference".)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Budget:
    """How many tokens a decode step may read, per layer and KV head.

    tokens: the most tokens read, the recent window included.
    recent: at least this many of the newest tokens are always read.
    page_tokens: tokens a page.

    Raises ValueError where the window, rounded up to pages, leaves no room for a page.
    """

    tokens: int = 512
    recent: int = 64
    page_tokens: int = 16

    def __post_init__(self) -> None:
        if self.page_tokens < 1 or self.recent < 1:
            raise ValueError("page_tokens and recent must be at least 1")
        smallest = self.recent + 2 * self.page_tokens - 1
        if self.tokens < smallest:
            raise ValueError(
                f"a budget of {self.tokens} tokens is too small: a recent window of "
                f"{self.recent} and one page more need {smallest}"
            )

    def old_pages(self, stored: int) -> int:
        """Pages wholly before the recent window of a sequence of `stored` tokens.

        These are the pages that must be chosen; the window starts on the page behind them,
        so an unfinished page is always in the window.
        """
        return max(0, stored - self.recent) // self.page_tokens

    def picks(self, stored: int) -> int:
        """How many of the old pages are read: as many as the budget leaves room for."""
        old = self.old_pages(stored)
        window = stored - old * self.page_tokens
        return min(old, (self.tokens - window) // self.page_tokens)


def page_bounds(keys: torch.Tensor, page_tokens: int) -> torch.Tensor:
    """Bounds of whole pages of keys.

    keys: (heads, pages * page_tokens, dim). Returns (heads, pages, 2, dim) of the same
    dtype: [..., 0, :] the smallest value of each channel, [..., 1, :] the largest.
    """
    heads, tokens, dim = keys.shape
    pages = keys.reshape(heads, tokens // page_tokens, page_tokens, dim)
    return torch.stack((pages.amin(dim=2), pages.amax(dim=2)), dim=2)


def upper_bounds(query: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """The most that query . key can be for any key within the bounds.

    query: (heads, group, dim), the query heads that share a KV head side by side.
    bounds: (heads, pages, 2, dim). Returns (heads, group, pages).
    """
    low, high = bounds.unbind(dim=2)
    # A channel's product is largest at the high end where the query is positive, at the low
    # end where it is negative: two products of matrices instead of a maximum per channel.
    rising = query.clamp(min=0) @ high.transpose(1, 2)
    falling = query.clamp(max=0) @ low.transpose(1, 2)
    return rising + falling


def select_tokens(
    query: torch.Tensor, bounds: torch.Tensor, stored: int, budget: Budget
) -> torch.Tensor:
    """Tokens that each KV head reads for one query token.

    query: (heads, group, dim). bounds: (heads, budget.old_pages(stored), 2, dim).
    stored: tokens of the sequence, the query's own included.
    Returns (heads, k) int64, ascending, k <= budget.tokens. A page counts for a KV head by
    the sum of the bounds of the query heads in its group.
    """
    heads = query.shape[0]
    old = budget.old_pages(stored)
    window = torch.arange(old * budget.page_tokens, stored).expand(heads, -1)
    picks = budget.picks(stored)
    if picks == 0:
        return window.contiguous()
    scores = upper_bounds(query, bounds).sum(dim=1)
    pages = scores.topk(picks, dim=1).indices.sort(dim=1).values
    offsets = torch.arange(budget.page_tokens)
    picked = (pages[:, :, None] * budget.page_tokens + offsets).reshape(heads, -1)
    return torch.cat((picked, window), dim=1)


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """Softmax attention of one query token over the given rows.

    query: (heads, group, dim); keys, values: (heads, k, dim). Returns (heads, group, dim).
    """
    weights = torch.softmax((query @ keys.transpose(1, 2)) * scale, dim=-1)
    return weights @ values
