# SPDX-License-Identifier: Apache-2.0
"""Runs the scenarios in test machines: `make test-vm`, or

    python tests/vm/run.py [--kernel 6.12] [--jobs 2] [--list] [WORD ...]

A WORD chooses tests that have it in their id, such as "6.12/2hb2/interleave".
docs/vm-testing.md says more. Exit code 1 when a test failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from vm.cache import ROOT, locked, say
from vm.house import House, Outcome
from vm.scenario import KERNELS, SCENARIOS, boots, load


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs scenarios in machines with CXL memory.")
    parser.add_argument("words", nargs="*", help="only tests with one of these in their id")
    parser.add_argument("--kernel", action="append", help="only this one, such as 6.12")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--cache", type=Path, default=ROOT / "build/vm")
    parser.add_argument(
        "--keep-core", action="store_true", help="use the native core that was built last"
    )
    parser.add_argument("--list", action="store_true", help="only show what would run")
    parser.add_argument("--verbose", action="store_true", help="show what each test says")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    found = [load(file) for file in sorted(SCENARIOS.glob("*.py"))]
    kernels = given.kernel or list(KERNELS)
    machines = [b for b in boots(found, given.words) if b.kernel in kernels]
    if given.list:
        for boot in machines:
            print(boot.name)
            print(*(f"  {t.id}" for t in boot.tests + boot.second), sep="\n")
        return 0
    if not machines:
        raise SystemExit("no test has such an id; see --list")
    house = House(given.cache, keep_core=given.keep_core)
    with locked(given.cache):
        house.prepare({b.kernel for b in machines})
    runs = given.cache / "runs"
    start = time.monotonic()
    # The longest first: at the end no processor waits for one long machine.
    machines.sort(
        key=lambda b: (not b.package, -sum(t.scenario.limit for t in b.tests + b.second))
    )
    outcomes: list[Outcome] = []
    with locked(given.cache, ".running", wait=False), ThreadPoolExecutor(given.jobs) as pool:
        shutil.rmtree(runs, ignore_errors=True)
        for some in pool.map(lambda b: house.run(b, runs / b.name, given.verbose), machines):
            outcomes += some
    failed = [o for o in outcomes if o.status == "failed"]
    for outcome in failed:
        print(f"\n===== {outcome.test.id} failed\n{outcome.output}")
    passed = sum(o.status == "passed" for o in outcomes)
    skipped = [o for o in outcomes if o.status == "skipped"]
    for outcome in skipped:
        print(f"skipped {outcome.test.id}: {outcome.output.strip().splitlines()[-1:]}")
    releases = ", ".join(house.kernels[k].release for k in sorted(house.kernels))
    say(
        f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped on {len(machines)} "
        f"machines in {time.monotonic() - start:.0f} s; kernels {releases}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
