# SPDX-License-Identifier: Apache-2.0
"""python3 -m steps [--sysroot DIR] [--kernel 6.12|7.3]: the script on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from sacctl.cxl.sysfs import Sysfs
from steps.run import Runner
from steps.script import SCRIPT, parse


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m steps", description=__doc__)
    parser.add_argument("--sysroot", default=os.environ.get("SAC_SYSROOT", "/"))
    parser.add_argument("--kernel", help="whose answers are expected; else that which runs")
    parser.add_argument("--script", type=Path, default=SCRIPT)
    parser.add_argument("--quiet", action="store_true", help="only what differs")
    given = parser.parse_args()
    sysfs = Sysfs(given.sysroot)
    kernel = given.kernel or release(sysfs)
    runner = Runner(sysfs, kernel, (lambda line: None) if given.quiet else print)
    found = runner.run(parse(given.script.read_text()))
    for one in found:
        print(f"DIFFERS {one}")
    print(f"{runner.ran} steps on {kernel}, {len(found)} differ")
    return 1 if found or not runner.ran else 0


def release(sysfs: Sysfs) -> str:
    """The kernel's major and minor number: "6.12"."""
    text = sysfs.read("/proc/sys/kernel/osrelease")
    return ".".join(text.split(".")[:2])


if __name__ == "__main__":
    sys.exit(main())
