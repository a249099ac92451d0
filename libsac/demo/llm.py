# SPDX-License-Identifier: Apache-2.0
"""A language model that decodes from the pool: `python -m libsac.demo.llm`.

A real text is prefilled with full attention and its KV moved into a libsac pool. The model
then answers a request about the text while each layer reads only the rows that Quest's page
bounds pick. The same is done again with all KV in local tensors: the tokens must be equal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libsac
from libsac.demo.llm_command import fail
from libsac.demo.llm_options import (
    INSTALL,
    PAGE_TOKENS,
    REQUEST,
    SALT,
    TEXT,
    DemoError,
    Options,
    load,
    mib,
    missing_modules,
    parse,
    read_text,
    say,
)
from libsac.errors import SacError

if TYPE_CHECKING:
    from libsac.demo.llm_kv import LocalKV
    from libsac.demo.llm_model import Generation, LanguageModel
    from libsac.demo.quest import Budget

__all__ = [
    "INSTALL",
    "PAGE_TOKENS",
    "REQUEST",
    "SALT",
    "TEXT",
    "DemoError",
    "Options",
    "PoolRun",
    "Report",
    "main",
    "missing_modules",
    "read_text",
    "render",
    "run",
]


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


def run(options: Options) -> Report:
    """Runs the demo; says on stderr what it is at. Raises DemoError."""
    model, prompt, budget = load(options)
    task = _Task(model, prompt, budget, options.tokens)
    say(f"prefilling {len(prompt):,} tokens, then decoding from the pool")
    pooled = task.decode_from_pool()
    say("prefilling again, then decoding from local tensors")
    local = task.decode_from_tensors()
    answer = model.text(pooled.generation.tokens)
    return Report(model.name, len(prompt), options, pooled, local, answer)


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
        ("in the pool", f"{pooled.pages:,} full pages, {mib(pooled.bytes_stored)} of rows"),
        ("selection", f"{options.budget} tokens a KV head, {options.recent} newest included"),
        ("decoded", f"{steps} tokens in {from_pool:.1f} s (local run: {from_tensors:.1f} s)"),
        ("read a step", f"{mib(pooled.bytes_read / steps)}, counted by libsac's core"),
        ("full attention", f"{mib(pooled.full_bytes / steps)} a step"),
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
    options = parse(arguments, "python -m libsac.demo.llm")
    # Transformers shows a progress bar of its own while it reads the weights.
    os.environ.setdefault("TQDM_DISABLE", "1")
    report = run(options)
    print(render(report))
    return 0 if report.tokens_equal else 1


if __name__ == "__main__":
    sys.exit(main())
