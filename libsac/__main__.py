"""``python -m libsac``: where the C header and library of this installation are."""

import argparse
import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from libsac import __version__

_EXAMPLE = """\
example:
  cc program.c $(python -m libsac --cflags --libs) -o program

A path with spaces in it is quoted for the shell; use it through eval then.
"""


def installation() -> Path:
    """The folder that holds ``include/sac.h`` and ``lib/libsac.so.0``.

    Found by the compiled module, which always lies beside them; the Python files may come
    from a source tree. Raises FileNotFoundError if there is no compiled module.
    """
    spec = importlib.util.find_spec("libsac._core")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("libsac is not built here: run pip install . in its sources")
    return Path(spec.origin).resolve().parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is asked for, on one line each; returns the exit code: 0, 1 or 2.

    Raises SystemExit as argparse does: for --help, and with code 2 for wrong options.
    """
    try:
        try:
            return _answer(arguments)
        finally:
            sys.stdout.flush()  # here, where a full disk or a closed pipe is still noticed
    except OSError as error:
        with suppress(OSError):
            print(f"error: cannot write to stdout: {error.strerror}", file=sys.stderr)
        with suppress(OSError):  # what is still buffered goes nowhere, without a complaint
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _answer(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m libsac",
        description="Print how to compile and link a program that uses sac.h.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--cflags", action="store_true", help="flags for the compiler")
    parser.add_argument(
        "--libs",
        action="store_true",
        help="flags for the linker; the program finds the library without LD_LIBRARY_PATH",
    )
    parser.add_argument(
        "--library", action="store_true", help="path of the library, for dlopen and ctypes"
    )
    parser.add_argument("--version", action="store_true", help="version of libsac")
    asked = parser.parse_args(arguments)
    if not (asked.cflags or asked.libs or asked.library or asked.version):
        parser.print_help(sys.stderr)
        return 2

    if asked.version:
        print(__version__)
    if not (asked.cflags or asked.libs or asked.library):
        return 0
    try:
        root = installation()
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    library = root / "lib"
    flags = []
    if asked.cflags:
        flags.append(f"-I{root / 'include'}")
    if asked.libs:
        flags += [f"-L{library}", f"-Wl,-rpath,{library}", "-lsac"]
    if flags:
        print(shlex.join(flags))
    if asked.library:
        print(library / "libsac.so.0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
