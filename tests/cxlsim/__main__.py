# SPDX-License-Identifier: Apache-2.0
"""python -m cxlsim DIR --topology T: a simulated machine until it is interrupted."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Any

from cxlsim.firmware import SITUATIONS
from cxlsim.machine import Machine
from cxlsim.shape import SHAPES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cxlsim", description=__doc__)
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--topology", choices=SHAPES, default="2hb2")
    parser.add_argument("--size", type=int, default=256, help="MiB of each device")
    parser.add_argument("--firmware", choices=SITUATIONS, default="")
    parser.add_argument("--kernel", choices=("6.12", "7.3"), default="6.12")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--no-kmem", action="store_true", help="kmem is not loaded")
    parser.add_argument("--auto-online", help="of auto_online_blocks")
    given = parser.parse_args()
    options: dict[str, Any] = {"version": given.kernel}
    if given.no_kmem:
        options["kmem"] = False
    if given.auto_online:
        options["auto_online"] = given.auto_online
    stop = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    with Machine(
        given.folder,
        given.topology,
        given.size << 20,
        seed=given.seed,
        firmware=given.firmware,
        **options,
    ) as machine:
        print(f"ready: sacctl --sysroot {machine.root} device list", flush=True)
        signal.sigwait(stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
