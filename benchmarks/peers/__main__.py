# SPDX-License-Identifier: Apache-2.0
"""libsac beside Mooncake Store and LMCache on the same work, one after the other.

Each peer is installed into a virtual environment of its own and runs in network and process
namespaces of its own, with loopback only; its servers end with it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import company, machine
from peers import install, isolation
from peers.table import table
from peers.work import SIZES, Figures

HERE = Path(__file__).resolve().parent
RUN_S = 600
FOLDER = HERE.parents[1] / "build" / "peers"
LOG_LINES = 12

# By name: how it is made ready, its module in worker.py, and whether it is isolated.
PEERS: dict[str, tuple[Callable[[Path], install.Environment], str, bool]] = {
    "sac": (lambda _: install.ours(), "sac_pool", False),
    "mooncake": (install.mooncake, "mooncake_store", True),
    "lmcache": (install.lmcache, "lmcache_fs", True),
}


def measure(name: str, args: argparse.Namespace) -> tuple[str, list[Figures]]:
    """One peer's version and figures. Raises InstallError, RuntimeError."""
    prepare, module, isolated = PEERS[name]
    before = isolation.command() if isolated else []
    made = prepare(args.folder)
    log = args.folder / f"{name}.log"
    with tempfile.TemporaryDirectory() as folder, log.open("wb") as output:
        out = Path(folder) / "figures.json"
        command = [*before, str(made.python), str(HERE / "worker.py"), module, str(out)]
        command += ["--repeats", str(args.repeats), "--sizes", *map(str, args.sizes)]
        command += ["--isolated"] if isolated else []
        try:
            done = subprocess.run(
                command,
                env=install.environ(made),
                cwd=folder,
                stdout=output,
                stderr=output,
                timeout=args.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not done after {args.timeout} s; see {log}") from None
        if done.returncode != 0 or not out.exists():
            last = log.read_text(errors="replace").strip().splitlines()[-LOG_LINES:]
            raise RuntimeError("\n  ".join([f"it failed; the end of {log}:", *last]))
        found = json.loads(out.read_text())
    figures = []
    for one in found:
        # JSON made texts of the numbers that are keys.
        fields: dict[str, Any] = {
            k: v if k == "name" else {int(n): x for n, x in v.items()} for k, v in one.items()
        }
        figures.append(Figures(**fields))
    return made.version, figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/peers", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*PEERS], default=[*PEERS])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the environments")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--timeout", type=float, default=RUN_S, help="seconds a peer")
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    found: list[Figures] = []
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in args.only:
        print(f"== {name}", file=sys.stderr, flush=True)
        try:
            versions[name], figures = measure(name, args)
            found += figures
        except (install.InstallError, RuntimeError) as error:
            missing[name] = str(error)
            print(f"{name} is left out: {error}", file=sys.stderr)
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()) + company()
    print(f"{machine()}\n{when}; " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    if found:
        print("\n" + table(found, args.sizes))
    for name, why in missing.items():
        print(f"\n{name} is left out: {why}")
    if args.json is not None:
        record = {
            "machine": machine(),
            "time": when,
            "versions": versions,
            "missing": missing,
            "unit": "us a key; exists: us a call",
            "stores": [asdict(f) for f in found],
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
