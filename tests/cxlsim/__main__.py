# SPDX-License-Identifier: Apache-2.0
"""python -m cxlsim DIR --topology T [-- COMMAND]: a simulated machine, until it is interrupted
or the command, which runs with SAC_SYSROOT set, has ended.

python -m cxlsim DIR --unplug 0x100, --plug 0x100: of the machine that runs there, the device
with that serial number goes, or comes back."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from cxlsim.firmware import SITUATIONS
from cxlsim.machine import Machine
from cxlsim.shape import SHAPES
from sacctl.cxl.sysfs import SIMULATOR


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cxlsim",
        description=__doc__,
        usage="%(prog)s DIR [options] [-- COMMAND ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--topology", choices=SHAPES, default="2hb2", help="2hb2")
    parser.add_argument("--size", type=int, default=256, help="MiB of each device")
    parser.add_argument("--firmware", choices=SITUATIONS, default="")
    parser.add_argument("--kernel", choices=("6.12", "7.3"), default="6.12")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--no-kmem", action="store_true", help="kmem is not loaded")
    parser.add_argument("--auto-online", help="of auto_online_blocks")
    for word in ("unplug", "plug"):
        parser.add_argument(
            f"--{word}", metavar="SERIAL", help="of the machine that runs in DIR"
        )
    # Whatever stands behind -- is the command's.
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:cut])
    for word in ("unplug", "plug"):
        serial = getattr(given, word)
        if serial is not None:
            return tell(Path(given.folder), word, serial)
    options: dict[str, Any] = {"version": given.kernel}
    if given.no_kmem:
        options["kmem"] = False
    if given.auto_online:
        options["auto_online"] = given.auto_online
    command = sys.argv[cut + 1 :]
    if command:
        program = found(command[0])
        if program is None:
            print(f"{command[0]}: no such command: put .venv/bin on the PATH", file=sys.stderr)
            return 127
        command[0] = program
    stop = threading.Event()
    if not command:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
    with Machine(
        given.folder,
        given.topology,
        given.size << 20,
        seed=given.seed,
        firmware=given.firmware,
        **options,
    ) as machine:
        if command:
            env = os.environ | {"SAC_SYSROOT": str(machine.root)}
            return subprocess.run(command, env=env, check=False).returncode
        print(f"ready: sacctl --sysroot {machine.root} device list", flush=True)
        stop.wait()
    return 0


def found(command: str) -> str | None:
    """The program of that name: on the PATH, else beside this Python."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(command) or shutil.which(command, path=beside)


def tell(folder: Path, word: str, serial: str) -> int:
    """Tells the machine that runs in a folder; the exit code."""
    try:
        number = int(serial, 0)
    except ValueError:
        print(f"{serial}: no serial number, such as 0x100", file=sys.stderr)
        return 2
    here = os.open(folder, os.O_PATH | os.O_DIRECTORY) if folder.is_dir() else -1
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.connect(f"/proc/self/fd/{here}/{SIMULATOR}")
            with link.makefile("rwb") as lines:
                lines.write(json.dumps({word: number}).encode() + b"\n")
                lines.flush()
                code = int(json.loads(lines.readline())["errno"])
    except (OSError, ValueError):
        print(f"{folder}: no simulated machine runs there", file=sys.stderr)
        return 1
    finally:
        if here >= 0:
            os.close(here)
    if code:
        print(f"{serial}: {os.strerror(code)}", file=sys.stderr)
    return min(code, 1)


if __name__ == "__main__":
    sys.exit(main())
