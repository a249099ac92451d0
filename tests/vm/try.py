# SPDX-License-Identifier: Apache-2.0
"""Boots a test machine with the product of this checkout and runs one script in it:

    python tests/vm/try.py [--topology 2hb2] [--kernel 6.12] [--init systemd] SCRIPT

A .py file may import vm.guest.kit and vm.guest.cxl, another file is run by bash. What it
prints, and the kernel's warnings, appear as they come. The exit code is the script's.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from vm.cache import ROOT, locked
from vm.house import House
from vm.machine import HungError, Machine, Settings
from vm.scenario import KERNELS
from vm.topologies import TOPOLOGIES, find


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs a script in a machine with CXL memory.")
    parser.add_argument("script", type=Path)
    parser.add_argument("--topology", default="2hb2", help=", ".join(TOPOLOGIES))
    parser.add_argument("--kernel", default=KERNELS[0], help=" or ".join(KERNELS))
    parser.add_argument("--init", choices=("minimal", "systemd"), default="minimal")
    parser.add_argument("--append", default="", help="to the kernel's command line")
    parser.add_argument("--file", action="append", type=Path, default=[], help="to bring along")
    parser.add_argument("--limit", type=float, default=300, help="seconds")
    parser.add_argument("--cache", type=Path, default=ROOT / "build/vm")
    parser.add_argument(
        "--keep-core", action="store_true", help="use the native core that was built last"
    )
    parser.add_argument("--folder", type=Path, help="keep the machine's files here")
    return parser.parse_args()


class Tail(threading.Thread):
    """Shows what a file gets, as it gets it."""

    def __init__(self, file: Path) -> None:
        super().__init__(daemon=True)
        self.file = file
        self.over = threading.Event()

    def run(self) -> None:
        seen = 0
        while True:
            last = self.over.is_set()
            if self.file.exists():
                with self.file.open("rb") as lines:
                    lines.seek(seen)
                    new = lines.read()
                seen += len(new)
                sys.stdout.write(new.decode(errors="replace").replace("\r\n", "\n"))
                sys.stdout.flush()
            if last:
                return
            time.sleep(0.1)


def main() -> int:
    given = arguments()
    house = House(given.cache, keep_core=given.keep_core)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="vm-try-"))
    folder.mkdir(parents=True, exist_ok=True)
    payload = folder / "payload.tar"
    with locked(given.cache):
        house.prepare([given.kernel])
        plan = {"topology": given.topology, "script": given.script.name, "limit": given.limit}
        house.payload.write(payload, plan, [given.script, *given.file])
    settings = Settings(
        find(given.topology),
        house.kernels[given.kernel],
        house.root,
        given.init,
        given.append,
    )
    tail = Tail(folder / "console.log")
    code = 1
    try:
        with Machine(settings, folder, payload) as machine:
            tail.start()
            for message in machine.messages(lambda: given.limit + 150):
                if "finished" in message:
                    code = message["finished"]
                    break
    except HungError as error:
        print(f"{error}", file=sys.stderr)
    finally:
        tail.over.set()
        if tail.is_alive():
            tail.join()
        if not given.folder:
            shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
