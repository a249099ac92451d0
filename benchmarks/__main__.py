# SPDX-License-Identifier: Apache-2.0
"""All figures of docs/performance.md: ``make bench``. Ratios are taken within one run."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import attach
import connected
import daemon
import pages
import processes
from common import Section, company, machine
from gather import run as gather

WORKS = [
    "gather",
    "lookup",
    "put",
    "recovery",
    "attach",
    "connected",
    "values",
    "start",
    "processes",
]


def show(section: Section) -> None:
    print(f"\n{section.title}")
    if section.floor:
        print(f"  floor: {section.floor}")
    for r in section.results:
        goal = "" if r.goal is None else f"goal {r.goal[0]} {r.goal[1]:g}"
        met = {None: "", True: "met", False: "NOT MET"}[r.met]
        print(f"  {r.what:40} {r.value:12.4g} {r.unit:8} {goal:14} {met:8} {r.note}")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=WORKS)
    parser.add_argument("--gib", type=float, default=4.0, help="data of the gather (default 4)")
    parser.add_argument("--pages", type=int, default=1 << 20, help="pages (default 2^20)")
    parser.add_argument("--repeats", type=int, default=101)
    args = parser.parse_args()
    print(machine())
    print(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()) + company())
    works: dict[str, Callable[[], list[Section]]] = {
        "gather": lambda: gather(args.gib, args.repeats),
        "lookup": lambda: [pages.lookup_and_pin(args.pages, args.repeats)],
        "put": lambda: [pages.put()],
        "recovery": lambda: [pages.recovery(args.pages, 5)],
        "attach": lambda: [attach.run()],
        "connected": lambda: [connected.run(args.repeats)],
        "values": lambda: [daemon.values()],
        "start": lambda: [daemon.start(args.pages)],
        "processes": lambda: [processes.run()],
    }
    missed = 0
    for name, work in works.items():
        if args.only is None or name in args.only:
            for section in work():
                show(section)
                missed += sum(r.met is False for r in section.results)
    print(f"\n{missed} goals not met" if missed else "\nall goals met")
    return 0


if __name__ == "__main__":
    sys.exit(main())
