# SPDX-License-Identifier: Apache-2.0
"""The docs' examples for a GPU, on one."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit import docs_gpu

PAGES = [docs_gpu.ROOT / "README.md", *sorted((docs_gpu.ROOT / "docs").glob("*.md"))]
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "page", [p for p in PAGES if docs_gpu.has_examples(p)], ids=lambda p: p.name
)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    docs_gpu.run(page, tmp_path, real=True)
