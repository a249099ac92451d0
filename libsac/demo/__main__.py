# SPDX-License-Identifier: Apache-2.0
"""The main job on the CPU: a long prefix put, pinned, its top-k rows gathered and checked.

Run as ``python -m libsac.demo``; needs no torch.
"""

from __future__ import annotations

import argparse
import os
import sys

import libsac
from libsac.demo import job


def run(args: argparse.Namespace) -> int:
    layout = libsac.Layout.preset(job.PRESET, layers=args.layers, page_tokens=job.PAGE_TOKENS)
    with libsac.embedded(job.pool_bytes(layout, args.tokens), args.path) as pool:
        job.show_layout(layout, args.layers)
        where = "memory of this process" if args.path is None else args.path
        print(f"pool       {job.mib(pool.info.data_bytes)} in {where}")
        ns = pool.namespace("demo", layout)
        keys = ns.keys(range(args.tokens), salt=b"demo")
        job.write(ns, keys)
        wrong = job.read(ns, keys, args.steps, args.layers)
    if wrong:
        print("error: bytes read back differ from bytes written", file=sys.stderr)
        return 1
    return 0


def options(parser: argparse.ArgumentParser) -> None:
    """Adds what the job can be told."""
    parser.add_argument("--tokens", type=int, default=16384, help="prefix (default 16384)")
    parser.add_argument("--layers", type=int, default=8, help="layers, 1 to 61 (default 8)")
    parser.add_argument("--steps", type=int, default=8, help="decode steps (default 8)")


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends the process with code 2 where the job cannot be done so."""
    if args.tokens < job.TOP_K or not 1 <= args.layers <= 61 or args.steps < 1:
        parser.error(f"--tokens at least {job.TOP_K}, --layers 1 to 61, --steps at least 1")
    if args.tokens >= 1 << 32:
        parser.error("--tokens must be below 2^32")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m libsac.demo", description=__doc__)
    options(parser)
    parser.add_argument("--path", help="keep the pool in this folder and find it again later")
    args = parser.parse_args()
    check(parser, args)
    try:
        code = run(args)
        sys.stdout.flush()
    except libsac.errors.SacError as error:
        hint = ""
        if isinstance(error, (libsac.errors.ExistsError, libsac.errors.LayoutError)):
            hint = " To find the pool again give the same --tokens and --layers as before."
        print(f"error: {error}{hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:  # a full or closed standard output
        print(f"error: cannot write the output: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
