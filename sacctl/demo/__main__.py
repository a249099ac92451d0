# SPDX-License-Identifier: Apache-2.0
"""The main job through a daemon: a process writes, another reads, every byte checked.

Run as ``python -m sacctl.demo``; ``sacctl demo`` is the same.
"""

from __future__ import annotations

import argparse
import os
import sys

from libsac.demo.__main__ import check, options
from libsac.errors import SacError
from sacctl.demo import run
from sacctl.errors import CtlError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sacctl.demo", description=__doc__)
    options(parser)
    args = parser.parse_args()
    check(parser, args)
    try:
        code = run(tokens=args.tokens, layers=args.layers, steps=args.steps)
        sys.stdout.flush()
    except CtlError as error:
        print(f"error: {error.sentence()}", file=sys.stderr)
        return error.exit_code
    except SacError as error:
        print(f"error: {error}", file=sys.stderr)
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
