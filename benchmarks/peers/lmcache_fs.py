# SPDX-License-Identifier: Apache-2.0
"""LMCache's file-system backends on tmpfs, through the adapter classes that its own
``lmcache bench l2`` uses: fs (asyncio) and fs_native (its C++ threads)."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from peers.work import Array, Figures, buffers, run

TIMEOUT_S = 60.0
BENCH = "lmcache.cli.commands.bench.l2_adapter_bench"
ADAPTERS = "lmcache.v1.distributed.l2_adapters"


class LMCacheSession:
    """Keys and memory objects as LMCache has them; each call is submitted and waited for."""

    def __init__(self, adapter: Any, source: Array, target: Array, path: Path) -> None:
        import torch

        self.adapter, self.path = adapter, path
        data = self._data = importlib.import_module(f"{BENCH}.data")
        self._runner = importlib.import_module(f"{BENCH}.runner")
        ring, size = source.shape
        both = (torch.from_numpy(source).reshape(-1), torch.from_numpy(target).reshape(-1))
        # They fill what they are made over; the bytes are put back after.
        kept = source.copy()
        self._from, self._to = (data.make_memory_objects(side, ring, size, 0) for side in both)
        np.copyto(source, kept)

    def batch(self, numbers: list[int]) -> Any:
        keys = [self._data.make_object_keys(1, key_offset=n)[0] for n in numbers]
        ring = len(self._from)
        return (
            keys,
            [self._from[n % ring] for n in numbers],
            [self._to[n % ring] for n in numbers],
        )

    def put(self, batch: Any) -> None:
        keys, sources, _ = batch
        task = self.adapter.submit_store_task(keys, sources)
        done = self._runner._wait_store_finished(self.adapter, [task], TIMEOUT_S)
        if task not in done or not done[task].is_successful():
            raise RuntimeError("LMCache: a value was not stored")

    def get(self, batch: Any) -> None:
        keys, _, targets = batch
        task = self.adapter.submit_load_task(keys, targets)
        done = self._runner._wait_load_finished(self.adapter, [task], TIMEOUT_S)
        if task not in done or done[task].popcount() != len(keys):
            raise RuntimeError("LMCache: a value was not loaded")

    def exists(self, batch: Any) -> Any:
        keys = batch[0]
        layout = {0: self._runner._PLACEHOLDER_LAYOUT_DESC}
        task = self.adapter.submit_lookup_and_lock_task(keys, layout)
        return self._runner._wait_lookup_finished(self.adapter, [task], TIMEOUT_S).get(task)

    def found(self, answer: Any) -> int:
        return 0 if answer is None else int(answer.popcount())

    def clear(self) -> None:
        for file in self.path.rglob("*"):
            if file.is_file():
                file.unlink()


class LMCache:
    """One of its backends, in a folder of its own on /dev/shm."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.name, self.kind = f"LMCache {kind}", kind
        self._path = folder / kind

    def buffers(self, size: int, ring: int) -> tuple[Array, Array]:
        return buffers(size, ring)

    @contextmanager
    def session(self, source: Array, target: Array, count: int) -> Iterator[LMCacheSession]:
        import torch

        adapters = importlib.import_module(ADAPTERS)
        settings = importlib.import_module(f"{ADAPTERS}.config")
        data = importlib.import_module(f"{BENCH}.data")
        self._path.mkdir(parents=True)
        spec = json.dumps({"type": self.kind, "base_path": str(self._path)})
        config = settings.parse_args_to_l2_adapters_config(
            argparse.Namespace(l2_adapter=[spec])
        )
        memory = data.create_l1_memory_desc(torch.from_numpy(source).reshape(-1))
        adapter = adapters.create_l2_adapter(config.adapters[0], l1_memory_desc=memory)
        try:
            yield LMCacheSession(adapter, source, target, self._path)
        finally:
            adapter.close()
            shutil.rmtree(self._path)


def measure(repeats: int, sizes: list[int], folder: Path) -> list[Figures]:
    """Both backends, one after the other, in folder."""
    return [run(LMCache(kind, folder), repeats, sizes) for kind in ("fs", "fs_native")]
