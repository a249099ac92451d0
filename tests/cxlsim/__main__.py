# SPDX-License-Identifier: Apache-2.0
"""python -m cxlsim DIR --topology T [-- COMMAND]: a simulated machine, until it is interrupted
or the command, which runs with SAC_SYSROOT set, has ended."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from cxlsim.firmware import SITUATIONS
from cxlsim.machine import Machine
from cxlsim.shape import SHAPES


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cxlsim",
        description=__doc__,
        usage="%(prog)s DIR [options] [-- COMMAND ...]",
    )
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--topology", choices=SHAPES, default="2hb2", help="2hb2")
    parser.add_argument("--size", type=int, default=256, help="MiB of each device")
    parser.add_argument("--firmware", choices=SITUATIONS, default="")
    parser.add_argument("--kernel", choices=("6.12", "7.3"), default="6.12")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--no-kmem", action="store_true", help="kmem is not loaded")
    parser.add_argument("--auto-online", help="of auto_online_blocks")
    # Whatever stands behind -- is the command's.
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:cut])
    options: dict[str, Any] = {"version": given.kernel}
    if given.no_kmem:
        options["kmem"] = False
    if given.auto_online:
        options["auto_online"] = given.auto_online
    command = sys.argv[cut + 1 :]
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


if __name__ == "__main__":
    sys.exit(main())
