# SPDX-License-Identifier: Apache-2.0
"""The main job by two processes: one puts a long prefix, the other finds and reads it. In
between the daemon is killed and started anew."""

from __future__ import annotations

import argparse
import os
import sys
import time

import libsac
from libsac.demo import job
from libsac.demo.llm_command import fail
from sacctl.demo.house import POOL, House, ending_signals

__all__ = ["run"]

NAMESPACE = "demo"
SALT = b"demo"


def run(tokens: int, layers: int, steps: int) -> int:
    """Runs all of it; returns the exit code. Raises CtlError, KeyboardInterrupt, SystemExit;
    the daemon and all files are gone then as well."""
    layout = libsac.Layout.preset(job.PRESET, layers=layers, page_tokens=job.PAGE_TOKENS)
    size = job.pool_bytes(layout, tokens)
    with ending_signals(), House(size) as house:
        job.show_layout(layout, layers)
        print(f"daemon     process {house.pid} at {house.socket}")
        print(f"pool       {job.mib(size)} in 2 extents in {house.where}")
        code = house.part(__name__, "write", tokens, layers)
        if code == 0:
            house.kill()
            seconds = house.start()
            print(f"daemon     killed; the next one answers after {seconds:.2f} s")
            code = house.part(__name__, "read", tokens, layers, steps)
    if code == 0:
        print("removed    daemon, socket and pool")
    return code


def _connect() -> libsac.Pool:
    begin = time.perf_counter()
    pool = libsac.connect(POOL)
    print(f"           attached in {(time.perf_counter() - begin) * 1e3:.1f} ms")
    return pool


def _write(tokens: int, layers: int) -> int:
    layout = libsac.Layout.preset(job.PRESET, layers=layers, page_tokens=job.PAGE_TOKENS)
    _say_who("writer")
    with _connect() as pool:
        ns = pool.namespace(NAMESPACE, layout)
        job.write(ns, ns.keys(range(tokens), salt=SALT))
    return 0


def _read(tokens: int, layers: int, steps: int) -> int:
    _say_who("reader")
    with _connect() as pool:
        ns = pool.namespace(NAMESPACE)
        wrong = job.read(ns, ns.keys(range(tokens), salt=SALT), steps, layers)
    if wrong:
        print("error: bytes read back differ from bytes written", file=sys.stderr)
        return 1
    return 0


def _say_who(role: str) -> None:
    print(f"{role:10} process {os.getpid()}")


def _part() -> int:
    """What a part's process does."""
    parser = argparse.ArgumentParser(prog=f"python -m {__name__}")
    parser.add_argument("role", choices=("write", "read"))
    parser.add_argument("numbers", type=int, nargs="+")
    args = parser.parse_args()
    try:
        code = _write(*args.numbers) if args.role == "write" else _read(*args.numbers)
        sys.stdout.flush()
    except libsac.errors.SacError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # a full or closed standard output
        return fail(f"cannot write the output: {error.strerror}", 1)
    return code


if __name__ == "__main__":
    sys.exit(_part())
