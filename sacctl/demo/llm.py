# SPDX-License-Identifier: Apache-2.0
"""A language model whose KV outlives its process: `python -m sacctl.demo.llm`.

One process prefills a real text and puts its KV into a pool that a daemon serves. Another,
which has nothing of the first but the daemon's socket, finds the pages by their keys and
decodes without recomputing them; then it does recompute them, to compare.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from libsac.demo.llm_command import fail
from libsac.demo.llm_options import REQUEST, DemoError, Options, check, mib, parse
from libsac.errors import SacError
from sacctl.demo.house import House, ending_signals
from sacctl.errors import CtlError

__all__ = ["main"]

PART = "sacctl.demo.llm_part"
# A context of 8,192 tokens with 30 layers, 3 heads and 64 floats is 400 MB. Memory is taken as
# pages fill it.
POOL_BYTES = 1 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status: 0 done, 1 failed or tokens differ, 130 Ctrl-C.

    Raises SystemExit as argparse does: for --help, and with code 2 for wrong options.
    """
    try:
        try:
            options = parse(arguments, "python -m sacctl.demo.llm")
            check(options)
            found = run(options)
            print(render(found, options))
        finally:
            sys.stdout.flush()  # here, where a full disk or a closed pipe is still noticed
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    except CtlError as error:
        return fail(error.sentence(), error.exit_code)
    except (DemoError, SacError) as error:
        return fail(str(error), 1)
    except OSError as error:
        return fail(f"cannot write the output: {error.strerror}", 1)
    return 0 if found["read"]["tokens_equal"] else 1


def run(options: Options) -> dict[str, Any]:
    """Both processes, one after the other: {"write": ..., "read": ...}, what each found.

    Raises DemoError, CtlError; the daemon and its pool are gone then as well.
    """
    # Transformers shows a progress bar of its own while it reads the weights.
    os.environ.setdefault("TQDM_DISABLE", "1")
    words = json.dumps({**asdict(options), "text": str(options.text.absolute())})
    with ending_signals(), House(POOL_BYTES) as house:
        return {role: _part(house, role, words) for role in ("write", "read")}


def _part(house: House, role: str, words: str) -> dict[str, Any]:
    code, text = house.ask(PART, role, words)
    if code != 0:
        # It has said on stderr what was wrong.
        raise DemoError(f"the {role[:4]}ing process failed with exit code {code}")
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def render(found: dict[str, Any], options: Options) -> str:
    """What was found, as lines for a person."""
    w, r = found["write"], found["read"]
    steps = len(r["tokens"])
    share = r["bytes_read"] / r["full_bytes"]
    local = r["local_decode_s"]
    reuse, anew = r["first_token_s"], r["recomputed_first_token_s"]
    equal = "equal to those with all KV recomputed" if r["tokens_equal"] else "DIFFER"
    lines = (
        ("model", w["model"]),
        ("prompt", f"{w['prompt_tokens']:,} tokens"),
        ("process 1", f"{w['pid']}: prefilled in {w['prefill_s']:.1f} s"),
        ("", f"put {w['pages']:,} full pages, {mib(w['bytes'])}, in {w['put_s'] * 1e3:.0f} ms"),
        ("process 2", f"{r['pid']}: attached in {r['attach_s'] * 1e3:.1f} ms"),
        ("", f"found and pinned {r['found_pages']:,} pages in {r['find_s'] * 1e3:.1f} ms"),
        ("", f"computed the {r['rest_tokens']} tokens behind them"),
        ("first token", f"after {reuse:.2f} s; recomputed: {anew:.2f} s, {anew / reuse:.0f}x"),
        ("decoded", f"{steps} tokens in {r['decode_s']:.1f} s (local: {local:.1f} s)"),
        ("selection", f"{options.budget} tokens a KV head, {options.recent} newest included"),
        ("read a step", f"{mib(r['bytes_read'] / steps)}: {share:.3f} of full attention"),
        ("tokens", equal),
        ("logits", f"differ by {r['logits_differ']:.1e} at most"),
    )
    table = "\n".join(f"{name:<15} {value}" for name, value in lines)
    return f"{table}\n\n{REQUEST}\n{r['answer']}"


if __name__ == "__main__":
    sys.exit(main())
