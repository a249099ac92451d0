# SPDX-License-Identifier: Apache-2.0
"""Blocks of docs for a GPU: how they are read and run here, and that a wrong one fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit import docs_gpu

PAGE = """
```python
count = []
```

```python
import libsac
libsac.connect()
```

```python gpu
import torch
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    seen = torch.ones(1, device="cuda")
    count.append(seen)
assert not count
graph.replay(), graph.replay()
assert len(count) == 2 and seen.sum() == 1
```

```sh gpu
python benchmarks/bulk.py --json x  # a comment
TOOLS=racecheck tests/gpu/sanitize.sh
```
"""


def test_a_graphs_steps_are_called_at_each_replay(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert docs_gpu.has_examples(page)
    docs_gpu.run(page, tmp_path, real=False)
    page.write_text(PAGE.replace("== 2", "== 3"))
    with pytest.raises(AssertionError, match=r"page\.md"):
        docs_gpu.run(page, tmp_path, real=False)


def test_commands_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    lines = docs_gpu.shell_lines(page)
    assert lines == [
        "python benchmarks/bulk.py --json x",
        "TOOLS=racecheck tests/gpu/sanitize.sh",
    ]
    for line in lines:
        docs_gpu.look_at_command(line)


@pytest.mark.parametrize(
    "line",
    [
        "python benchmarks/bulk.py --jsno x",
        "python benchmarks/none.py",
        "python -m pytest -m gpu",
        "python -m pytest tests/gpu/none.py",
        "nvcc x.cu",
    ],
)
def test_wrong_commands_fail(line: str) -> None:
    with pytest.raises(AssertionError):
        docs_gpu.look_at_command(line)
