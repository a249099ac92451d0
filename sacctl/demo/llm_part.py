# SPDX-License-Identifier: Apache-2.0
"""The two processes of the language model demo. Each says what it found as JSON on stdout."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import libsac
from libsac.demo.llm_command import fail
from libsac.demo.llm_options import PAGE_TOKENS, SALT, DemoError, Options, load, say
from libsac.errors import SacError
from sacctl.demo.house import POOL

NAMESPACE = "llm"


def write(options: Options) -> dict[str, Any]:
    """Prefills the prompt but for its last token, and puts its full pages."""
    model, prompt, _ = load(options)
    from libsac.demo.llm_kv import LocalKV, put_prompt

    shape, body = model.shape(PAGE_TOKENS), prompt[:-1]
    say(f"process 1 prefills {len(body):,} tokens")
    local = LocalKV(shape, len(prompt))
    seconds = model.prefill(body, local)
    with libsac.connect(POOL) as pool:
        ns = pool.namespace(NAMESPACE, shape.layout(), model=model.name)
        begin = time.perf_counter()
        pages = put_prompt(ns, shape, body, local, SALT)
        put_seconds = time.perf_counter() - begin
        return {
            "pid": os.getpid(),
            "model": model.name,
            "prompt_tokens": len(prompt),
            "prefill_s": seconds,
            "pages": pages,
            "bytes": ns.stats().bytes_written,
            "put_s": put_seconds,
        }


def read(options: Options) -> dict[str, Any]:
    """Decodes from the pages that are there, then from all KV computed anew."""
    model, prompt, budget = load(options)
    from libsac.demo.llm_kv import LocalKV, PoolKV

    shape, body = model.shape(PAGE_TOKENS), prompt[:-1]
    # The first tokens of a process page its weights in; a server has that behind it.
    model.prefill(prompt[:PAGE_TOKENS], LocalKV(shape, PAGE_TOKENS))
    say("process 2 decodes from the pool")
    begin = time.perf_counter()
    with libsac.connect(POOL) as pool:
        ns = pool.namespace(NAMESPACE)
        attached = time.perf_counter() - begin
        begin = time.perf_counter()
        with PoolKV(ns, shape, body, salt=SALT) as store:
            found = store.tokens
            find_seconds = time.perf_counter() - begin
            rest_seconds = model.prefill(body[found:], store)
            before = ns.stats().bytes_gathered
            pooled = model.decode(prompt[-1], store, budget, options.tokens)
            bytes_read = ns.stats().bytes_gathered - before
    say("process 2 recomputes the prompt and decodes from local tensors, to compare")
    local = LocalKV(shape, len(prompt) + options.tokens)
    prefill_seconds = model.prefill(body, local)
    anew = model.decode(prompt[-1], local, budget, options.tokens)
    equal = pooled.tokens == anew.tokens
    return {
        "pid": os.getpid(),
        "attach_s": attached,
        "found_pages": found // PAGE_TOKENS,
        "find_s": find_seconds,
        "rest_tokens": len(body) - found,
        "first_token_s": find_seconds + rest_seconds + pooled.first_seconds,
        "recomputed_first_token_s": prefill_seconds + anew.first_seconds,
        "decode_s": pooled.seconds,
        "local_decode_s": anew.seconds,
        "bytes_read": bytes_read,
        "full_bytes": sum(
            shape.full_bytes(len(body) + step) for step in range(1, len(pooled.tokens) + 1)
        ),
        "tokens": pooled.tokens,
        "tokens_equal": equal,
        "logits_differ": float((pooled.logits - anew.logits).abs().max()) if equal else -1.0,
        "answer": model.text(pooled.tokens),
    }


def main(role: str, words: str) -> int:
    given = json.loads(words)
    options = Options(**{**given, "text": Path(given["text"])})
    try:
        print(json.dumps({"write": write, "read": read}[role](options)), flush=True)
    except KeyboardInterrupt:
        return 130  # who started it says so
    except (DemoError, SacError) as error:
        return fail(str(error), 1)
    except OSError as error:
        return fail(f"cannot write the output: {error.strerror}", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
