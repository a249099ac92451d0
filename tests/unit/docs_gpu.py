# SPDX-License-Identifier: Apache-2.0
"""Examples of docs that want a GPU: blocks that begin with

    ```python gpu

tests/gpu runs them on one, just as they stand. Without one they run on the CUDA for tests
(fake_gpu.py): "cuda" is then the CPU, and what is captured into a graph is run at each replay.
As a program: ``python docs_gpu.py PAGE [real]`` runs all Python blocks of a page in its order,
but for those that connect to a daemon.

    ```sh gpu

is looked at only: the programs are there and know the options.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

__all__ = ["example", "has_examples", "look_at_command", "shell_lines"]


def has_examples(page: Path) -> bool:
    return "\n```python gpu\n" in page.read_text()


def example(page: Path) -> str:
    """All Python of the page, at the lines where it stands in it."""
    text = page.read_text()
    lines = [""] * (text.count("\n") + 1)
    for found in re.finditer(r"^```python(?: gpu)?\n(.*?)^```", text, re.M | re.S):
        at = text.count("\n", 0, found.start(1))
        block = [] if "libsac.connect(" in found[1] else found[1].splitlines()
        lines[at : at + len(block)] = block
    return "\n".join(lines)


def run(page: Path, folder: Path, *, real: bool) -> None:
    """The page's examples in a process of their own: it has one CUDA driver for good."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    words = [sys.executable, "-m", "unit.docs_gpu", str(page), *["real"] * real]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, f"{page.name}\n{done.stdout}{done.stderr}"


class _Graph:
    """What stands for a CUDA graph: its steps are called where it is replayed."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []

    def replay(self) -> None:
        for step in self.steps:
            step()


class _Captures(ast.NodeTransformer):
    """``with torch.cuda.graph(g): ...`` becomes a function that ``g.replay()`` calls."""

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        call = node.items[0].context_expr
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "torch.cuda.graph"):
            return node
        names = {n.id for part in node.body for n in ast.walk(part)
                 if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip
        made = ast.parse("def _step(): pass").body[0]
        assert isinstance(made, ast.FunctionDef)
        made.body = [*([ast.Global(sorted(names))] if names else []), *node.body]
        kept = ast.parse(f"{ast.unparse(call.args[0])}.steps.append(_step)").body
        return [made, *kept]


def _put(module: ModuleType, **values: Any) -> None:
    """Replaces names that must be there."""
    for name, value in values.items():
        getattr(module, name)
        setattr(module, name, value)


def _on_the_cpu() -> None:
    """This process takes the CPU for its GPU: torch's tensors there are the GPU's."""
    import torch
    from unit import fake_gpu
    from unit.hot_model import CpuBuffer

    import libsac
    from libsac import trace_watch
    from libsac.gpu import tensor

    fake_gpu.use()

    def is_gpu(value: Any) -> bool:
        return isinstance(value, torch.Tensor) or hasattr(value, "__cuda_array_interface__")

    def new(lead: tuple[int, ...], row_bytes: int, device: int) -> Any:
        return torch.empty((*lead, row_bytes), dtype=torch.uint8)

    # Functions of libsac.gpu have the names of these modules, and hide them.
    gather, put = (sys.modules[f"libsac.gpu.{name}"] for name in ("gather", "put"))
    for module in (tensor, gather, put):
        _put(module, is_gpu=is_gpu)
    _put(gather, _new=new)
    _put(trace_watch, captured=lambda *_: None)  # a tape is one of tensors on the CPU here
    setattr(libsac, "HotBuffer", CpuBuffer)  # noqa: B010
    _put(
        torch.cuda,
        CUDAGraph=_Graph,
        Stream=contextlib.nullcontext,
        synchronize=lambda *_: None,
    )


def _main(page: Path, *, real: bool) -> None:
    code: Any = example(page)
    if not real:
        _on_the_cpu()
        code = re.sub(r'"cuda(:0)?"', '"cpu"', code)
        code = ast.fix_missing_locations(_Captures().visit(ast.parse(code, page.name)))
    exec(compile(code, page.name, "exec"), {"__name__": "__main__"})


# ------------------------------------------------------------------------ commands


def shell_lines(page: Path) -> list[str]:
    """Commands of the page's ``sh gpu`` blocks."""
    found = []
    for block in re.findall(r"^```sh gpu\n(.*?)^```", page.read_text(), re.M | re.S):
        joined = block.replace("\\\n", " ")
        found += [re.sub(r"\s+#.*", "", x).strip() for x in joined.splitlines() if x.strip()]
    return found


def _options(program: Path) -> set[str]:
    """Options that a program's source adds: it may not run here, without a GPU's packages."""
    source = program / "__main__.py" if program.is_dir() else program
    return set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', source.read_text()))


def look_at_command(line: str) -> None:
    """AssertionError where a program of the line is not there, or does not know an option."""
    words = [w for w in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=\S*", w)]
    program, *rest = words
    if program == "python" and rest[:2] == ["-m", "pytest"]:
        program, rest = "pytest", rest[2:]
    if program == "pytest":
        paths = [w.split("::")[0] for w in rest if w.startswith("tests/")]
        assert paths, f"{line}: names no tests"
        for path in paths:
            assert (ROOT / path).exists(), f"{line}: there is no {path}"
    elif program == "python" and (script := ROOT / rest[0]).exists():
        options = {w.split("=")[0] for w in rest[1:] if w.startswith("--")}
        assert options <= _options(script), (
            f"{line}: {options - _options(script)} are no options"
        )
    elif program.endswith(".sh"):
        subprocess.run(["sh", "-n", ROOT / program], check=True)
        assert os.access(ROOT / program, os.X_OK), f"{line}: {program} cannot be run"
    else:
        assert program in ("pip", "make"), f"{line}: what is {program}?"


if __name__ == "__main__":
    _main(Path(sys.argv[1]), real=sys.argv[2:] == ["real"])
