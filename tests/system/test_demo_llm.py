# SPDX-License-Identifier: Apache-2.0
"""The language model demo: a shorter run of it, its page selection, and its errors.

What needs the model is skipped where the extra `llm` is not installed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from libsac.demo import llm

if TYPE_CHECKING:
    from libsac.demo.llm_kv import KVStore
    from libsac.demo.llm_model import Generation, LanguageModel
    from libsac.demo.quest import Budget

MISSING = llm.missing_modules()
needs_torch = pytest.mark.skipif("torch" in MISSING, reason="torch is not installed")
needs_model = pytest.mark.skipif(
    bool(MISSING), reason=f"of the extra llm, not installed: {', '.join(MISSING)}"
)
TOKENS = 12
BUDGET = 192
RECENT = 32


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    """One model for all tests, also for those that go through the command."""
    from libsac.demo import llm_model

    loaded = llm_model.LanguageModel()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm_model, "LanguageModel", lambda: loaded)
        yield loaded


@pytest.fixture(scope="module")
def short_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first third or so of the text shipped: about 600 tokens."""
    path = tmp_path_factory.mktemp("llm") / "short.txt"
    path.write_text(llm.read_text(llm.TEXT)[:2800], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def report(model: LanguageModel, short_text: Path) -> llm.Report:
    del model
    return llm.run(llm.Options(TOKENS, BUDGET, RECENT, short_text))


@needs_model
def test_tokens_from_the_pool_equal_local_ones(report: llm.Report) -> None:
    assert len(report.pooled.generation.tokens) == TOKENS
    assert report.pooled.generation.tokens == report.local.tokens
    assert report.logits_equal
    assert report.answer


@needs_model
def test_the_core_counts_exactly_the_selected_rows(
    report: llm.Report, model: LanguageModel
) -> None:
    from libsac.demo.quest import Budget

    shape = model.shape(llm.PAGE_TOKENS)
    budget = Budget(BUDGET, RECENT, llm.PAGE_TOKENS)
    rows = 0
    for stored in range(report.prompt_tokens, report.prompt_tokens + TOKENS):
        old, picks = budget.old_pages(stored), budget.picks(stored)
        assert 0 < picks < old
        read = stored - (old - picks) * llm.PAGE_TOKENS
        assert read <= BUDGET
        rows += 2 * read + 2 * old  # keys and values; a page's bounds are two rows long
        if stored % llm.PAGE_TOKENS == 0:
            rows += llm.PAGE_TOKENS  # keys of the page just completed, for its bounds
    expected = rows * shape.layers * shape.heads * shape.row_bytes
    assert report.pooled.bytes_read == expected
    assert report.pooled.bytes_read < report.pooled.full_bytes / 2


@needs_model
def test_the_prompt_lies_in_the_pool(report: llm.Report, model: LanguageModel) -> None:
    shape = model.shape(llm.PAGE_TOKENS)
    pages, rest = divmod(report.prompt_tokens - 1, llm.PAGE_TOKENS)
    assert report.pooled.pages == pages
    tail = shape.full_bytes(rest)
    assert report.pooled.bytes_stored == pages * shape.page_bytes + tail


@needs_model
def test_the_command_shows_text_and_figures(
    model: LanguageModel,
    short_text: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from libsac.demo.llm_kv import LocalKV, PoolKV

    local_copies = []

    def decode(last: int, store: KVStore, budget: Budget, count: int) -> Generation:
        if isinstance(store, PoolKV):
            alive = gc.get_objects()
            local_copies.append(sum(type(thing) is LocalKV for thing in alive))
        return decode_as_ever(last, store, budget, count)

    decode_as_ever = model.decode
    monkeypatch.setattr(model, "decode", decode)
    command = ["--tokens", "3", "--budget", "4096", "--text", str(short_text)]
    assert llm.main(command) == 0
    assert local_copies == [0]  # the prompt's KV was in the pool and nowhere else
    shown = capsys.readouterr().out
    assert "equal to the local run" in shown
    assert "ratio" in shown
    assert llm.REQUEST in shown


@needs_model
def test_a_text_over_the_context_is_refused(model: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("word " * model.context, encoding="utf-8")
    with pytest.raises(llm.DemoError, match="context of 8192"):
        llm.run(llm.Options(text=path))


@needs_model
def test_a_budget_without_room_is_refused() -> None:
    with pytest.raises(llm.DemoError, match="too small"):
        llm.run(llm.Options(budget=94))


def test_text_header_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("# what it is\n# more\n\nThe text.\n# a line of it\n", encoding="utf-8")
    assert llm.read_text(path) == "The text.\n# a line of it"
    path.write_text("# what it is\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no text"):
        llm.read_text(path)


@needs_torch
def test_upper_bounds_hold_for_every_key() -> None:
    import torch

    from libsac.demo import quest

    torch.manual_seed(1)
    keys, query = torch.randn(3, 160, 64), torch.randn(3, 3, 64)
    bounds = quest.upper_bounds(query, quest.page_bounds(keys, 16))
    products = (query @ keys.transpose(1, 2)).reshape(3, 3, 10, 16).amax(dim=3)
    assert bounds.shape == (3, 3, 10)
    assert bool((bounds >= products - 1e-4).all())


@needs_torch
@pytest.mark.parametrize("stored", [1, 16, 63, 64, 80, 95, 96, 160, 161, 200, 512, 1000])
def test_selection_keeps_the_budget_and_the_window(stored: int) -> None:
    import torch

    from libsac.demo import quest

    torch.manual_seed(stored)
    budget = quest.Budget(tokens=160, recent=64, page_tokens=16)
    keys, query = torch.randn(3, stored, 8), torch.randn(3, 3, 8)
    old = budget.old_pages(stored)
    bounds = quest.page_bounds(keys[:, : old * 16], 16)
    tokens = quest.select_tokens(query, bounds, stored, budget)
    if stored <= 160:
        assert tokens.shape[1] == stored
    else:
        assert 160 - 16 < tokens.shape[1] <= 160
    for head in tokens.tolist():
        assert head == sorted(set(head))
        assert set(range(max(0, stored - 64), stored)) <= set(head)


@needs_torch
def test_selection_takes_the_page_that_matters() -> None:
    import torch

    from libsac.demo import quest

    keys = torch.zeros(2, 400, 8)
    keys[0, 37, 2], keys[1, 200, 5] = 9.0, -9.0
    query = torch.zeros(2, 3, 8)
    query[0, 1, 2], query[1, 2, 5] = 1.0, -1.0
    budget = quest.Budget(tokens=95, recent=64, page_tokens=16)
    bounds = quest.page_bounds(keys[:, : budget.old_pages(400) * 16], 16)
    tokens = quest.select_tokens(query, bounds, 400, budget)
    assert tokens[0, :16].tolist() == list(range(32, 48))
    assert tokens[1, :16].tolist() == list(range(192, 208))


@needs_torch
def test_attention_over_all_rows_is_full_attention() -> None:
    import torch

    from libsac.demo import quest

    torch.manual_seed(2)
    query, keys, values = torch.randn(3, 3, 8), torch.randn(3, 50, 8), torch.randn(3, 50, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=0.5)
    torch.testing.assert_close(quest.attend(query, keys, values, 0.5), expected)
