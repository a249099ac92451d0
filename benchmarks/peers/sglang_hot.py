# SPDX-License-Identifier: Apache-2.0
"""SGLang's fused swap-in kernel (HiSparse), called as its own coordinator calls it.

Needs the package ``sglang`` (measured with 0.5.23), torch with a GPU and nvcc: SGLang compiles
the kernel from the sources in its package. On a machine without the rest of SGLang's
dependencies these are enough: ``pip install --no-deps sglang apache-tvm-ffi orjson pybase64
starlette msgspec pyzmq pydantic-core``. Nothing of the package is copied here.

As a program it measures the peer alone: ``python benchmarks/peers/sglang_hot.py``.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module, metadata, util
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from hot import payload, timing, traces
from numpy.typing import NDArray

NAME = "SGLang HiSparse"
PACKAGES = ("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.kvcache")
THREADS = 960  # swap_in_block_size, where the server's configuration does not say otherwise
PAGE = 64  # of SGLang's device pool; the coordinator adds one to each request's buffer


class PeerError(Exception):
    """The peer cannot be had here; the message says why."""


def load() -> Any:
    """The public function of the kernel. Raises PeerError."""
    entered = sys.modules.get(PACKAGES[0])
    found = None if entered else util.find_spec(PACKAGES[0])
    places = entered.__path__ if entered else found and found.submodule_search_locations
    if not places:
        raise PeerError("the package sglang is not installed")
    root = Path(next(iter(places)))
    # The packages' own __init__ import a whole server. The kernel's module needs none of it,
    # so they are entered without running them, unless somebody imported them already.
    for name in (
        "sglang",
        "sglang.kernels",
        "sglang.kernels.ops",
        "sglang.kernels.ops.kvcache",
    ):
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = package
    try:
        return import_module(
            "sglang.kernels.ops.kvcache.hisparse"
        ).load_cache_to_device_buffer_mla
    except (ImportError, AttributeError) as error:
        raise PeerError(f"sglang's kernel cannot be imported: {error}") from error


def version() -> str:
    """Of the installed package."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return "unknown"


class HostRows:
    """Rows of many requests in one registered piece of host memory, layer-first, as SGLang's
    host pool has them: page after page, a request's pages anywhere.

    Attributes: rows, a uint8 CPU tensor (tokens, row_bytes); locations, (requests, context)
    int64 numbers of rows.
    """

    def __init__(self, requests: int, context: int, row_bytes: int, seed: int = 2) -> None:
        tokens = requests * context
        self._memory = np.empty(tokens * row_bytes + 4096, np.uint8)
        skip = -self._memory.ctypes.data % 4096
        array = self._memory[skip : skip + tokens * row_bytes].reshape(tokens, row_bytes)
        pages = np.random.default_rng(seed).permutation(tokens // PAGE)
        self.locations: NDArray[np.int64] = (pages[:, None] * PAGE + np.arange(PAGE)).reshape(
            requests, context
        )
        numbers = np.empty(tokens, np.uint32)
        for request in range(requests):
            numbers[self.locations[request]] = request * payload.STRIDE + np.arange(
                context, dtype=np.uint32
            )
        payload.fill(array.view(np.uint32), numbers)
        self.rows = torch.from_numpy(array)
        failed = torch.cuda.cudart().cudaHostRegister(array.ctypes.data, array.nbytes, 0)
        if int(failed) != 0:
            raise PeerError(f"cudaHostRegister of {array.nbytes} bytes: {failed}")

    def close(self) -> None:
        """Unregisters the memory."""
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaHostUnregister(self.rows.data_ptr())


class SglangHot:
    """State of the kernel for a batch, laid out and begun as the coordinator does it for
    requests that were admitted directly: an empty buffer, every token in host memory."""

    def __init__(self, host: HostRows, batch: int, slots: int, top_k: int) -> None:
        self._function = load()
        context = host.locations.shape[1]
        width = slots + PAGE
        self.slots, self.top_k, self.row_bytes = slots, top_k, host.rows.shape[1]
        self._host = host.rows

        def full(shape: tuple[int, ...], value: int, dtype: Any) -> Any:
            return torch.full(shape, value, dtype=dtype, device="cuda")

        self._tokens = full((batch, width), -1, torch.int32)
        self._where = torch.arange(batch * width, dtype=torch.int32, device="cuda").view(
            batch, width
        )
        self._host_locations = full((batch, context + PAGE), -1, torch.int64)
        self._host_locations[:, :context] = torch.from_numpy(host.locations[:batch])
        self.rows = torch.zeros(
            (batch * width, self.row_bytes), dtype=torch.uint8, device="cuda"
        )
        self.out = full((batch, top_k), -1, torch.int32)
        self._requests = torch.arange(batch, dtype=torch.int64, device="cuda")
        # The newest token has a slot of its own there and is never fetched: it lies behind
        # those that are selected here.
        self._lengths = full((batch,), context + 1, torch.int64)
        self._order = (
            torch.arange(slots, dtype=torch.int16, device="cuda").repeat(batch, 1).contiguous()
        )
        self._batch = full((1,), batch, torch.int32)

    def call(self, tokens: Any, plan_only: bool = False) -> Any:
        """One layer of one step; (batch, top_k) rows of ``rows``. tokens: int32 CUDA."""
        self._function(
            top_k_tokens=tokens,
            device_buffer_tokens=self._tokens,
            host_cache_locs=self._host_locations,
            device_buffer_locs=self._where,
            host_cache=self._host,
            device_buffer=self.rows,
            top_k_device_locs=self.out,
            req_pool_indices=self._requests,
            seq_lens=self._lengths,
            lru_slots=self._order,
            item_size_bytes=self.row_bytes,
            num_top_k=self.top_k,
            hot_buffer_size=self.slots,
            page_size=1,
            block_size=THREADS,
            num_real_reqs=self._batch,
            skip_io=plan_only,
        )
        return self.out


def build(shapes: list[tuple[int, int, int]]) -> None:
    """Compiles the kernels for (row bytes, slots, top_k) side by side, whole and planning
    alone: each takes the compiler most of a minute."""

    def one(shape: tuple[int, int, int], plan_only: bool) -> None:
        row_bytes, slots, top_k = shape
        host = HostRows(1, PAGE, row_bytes)
        try:
            peer = SglangHot(host, 1, slots, top_k)
            tokens = torch.zeros((1, top_k), dtype=torch.int32, device="cuda")
            peer.call(tokens, plan_only)
        finally:
            host.close()

    load()
    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(one, shape, plan) for shape in shapes for plan in (False, True)]
        for each in done:
            each.result()


def measure(host: HostRows, trace: Any, slots: int, check: bool = True) -> tuple[float, float]:
    """Microseconds of a whole call and of planning alone. trace: (steps, batch, top_k).

    check: plays the trace once first, compares every row, hits and misses, and says how many
    are wrong where some are.
    """
    steps, batch, top_k = trace.shape
    peer = SglangHot(host, batch, slots, top_k)
    requests = torch.arange(batch, device="cuda").repeat_interleave(top_k)
    if check:
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for step in range(steps):
            slot = peer.call(trace[step]).long().reshape(-1)
            wrong += payload.wrong(peer.rows[slot], requests, trace[step].long().reshape(-1))
        if int(wrong):
            print(f"{NAME}: {int(wrong)} rows are not those selected", file=sys.stderr)
    whole = timing.captured(lambda n: peer.call(trace[n]), steps)
    plan = timing.captured(lambda n: peer.call(trace[n], plan_only=True), steps)
    return (
        timing.replayed({"whole": whole})["whole"],
        timing.replayed({"plan": plan})["plan"],
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="sglang_hot", description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--slots", type=int, nargs="+", default=[4096, 6144])
    parser.add_argument("--rows", type=int, nargs="+", default=[1152, 656], help="bytes")
    parser.add_argument("--context", type=int, default=131072)
    parser.add_argument("--top-k", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=96)
    args = parser.parse_args()
    torch.zeros(1, device="cuda")
    try:
        build([(row, slots, args.top_k) for row in args.rows for slots in args.slots])
    except PeerError as error:
        print(f"{NAME} is left out: {error}", file=sys.stderr)
        return 1
    made = traces.closed(args.steps, max(args.batch), args.context, args.top_k)
    print(f"{NAME} {version()}, {torch.cuda.get_device_name()}, us a call of one layer")
    print("batch  slots   row   whole    plan")
    for row in args.rows:
        host = HostRows(max(args.batch), args.context, row)
        for slots in args.slots:
            for batch in args.batch:
                trace = torch.from_numpy(np.ascontiguousarray(made[:, :batch])).cuda()
                whole, plan = measure(host, trace, slots)
                print(f"{batch:5} {slots:6} {row:5} {whole:7.1f} {plan:7.1f}", flush=True)
        host.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
