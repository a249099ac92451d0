# SPDX-License-Identifier: Apache-2.0
"""Runs one store's work in the store's own environment and writes the figures as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", choices=["mooncake_store", "lmcache_fs", "sac_pool"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--isolated", action="store_true", help="bring up loopback first")
    args = parser.parse_args()
    if args.isolated:
        from peers.isolation import loopback_up

        loopback_up()
    module = importlib.import_module(f"peers.{args.module}")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="sac-peers-") as folder:
        figures = module.measure(args.repeats, args.sizes, Path(folder))
    args.out.write_text(json.dumps([asdict(f) for f in figures]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
