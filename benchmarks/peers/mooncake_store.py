# SPDX-License-Identifier: Apache-2.0
"""Mooncake Store: a master, a process that holds the memory, and this client. Over TCP on
loopback, and with its client that shares memory ("dummy") with the store process."""

from __future__ import annotations

import ctypes
import importlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from peers.isolation import stop
from peers.work import Array, Figures, buffers, run

MASTER, METRICS, STORE = 50051, 50061, 50052
START_S = 30.0


def expect(results: Any, good: Any, what: str) -> None:
    """Raises RuntimeError unless each result is good: Mooncake answers with bare numbers."""
    for result in results:
        if result != good:
            raise RuntimeError(f"Mooncake: {what} answered {result}, not {good}")


class MooncakeSession:
    """Keys are texts; buffers are registered with the client and given by address."""

    def __init__(self, client: Any, source: Array, target: Array, name: str) -> None:
        self.client, self.source, self.target, self.name = client, source, target, name

    def batch(self, numbers: list[int]) -> Any:
        keys = [f"{self.name}/{n}" for n in numbers]
        ring, size = self.source.shape
        return (
            keys,
            [self.source[n % ring].ctypes.data for n in numbers],
            [self.target[n % ring].ctypes.data for n in numbers],
            [size] * len(numbers),
        )

    def put(self, batch: Any) -> None:
        keys, sources, _, sizes = batch
        if len(keys) == 1:
            expect([self.client.put_from(keys[0], sources[0], sizes[0])], 0, "put_from")
        else:
            expect(self.client.batch_put_from(keys, sources, sizes), 0, "batch_put_from")

    def get(self, batch: Any) -> None:
        keys, _, targets, sizes = batch
        if len(keys) == 1:
            got = self.client.get_into(keys[0], targets[0], sizes[0])
            expect([got], sizes[0], "get_into")
        else:
            expect(self.client.batch_get_into(keys, targets, sizes), sizes[0], "batch_get_into")

    def exists(self, batch: Any) -> Any:
        keys = batch[0]
        if len(keys) == 1:
            return [self.client.is_exist(keys[0])]
        return self.client.batch_is_exist(keys)

    def found(self, answer: Any) -> int:
        return sum(result == 1 for result in answer)

    def clear(self) -> None:
        self.client.remove_all(True)


class Mooncake:
    """A client; shared: the one that shares memory with the store process."""

    def __init__(self, client: Any, shared: bool) -> None:
        self.name = "Mooncake, shared memory" if shared else "Mooncake, TCP"
        self.client, self.shared = client, shared
        self._memory: Array | None = None

    def buffers(self, size: int, ring: int) -> tuple[Array, Array]:
        if not self.shared:
            return buffers(size, ring)
        # Memory of its own, taken and registered once and as a whole, in two halves.
        if self._memory is None:
            address = self.client.alloc_from_mem_pool(SHARED_BYTES)
            if not address:
                raise RuntimeError("Mooncake: alloc_from_mem_pool gave nothing")
            expect([self.client.register_buffer(address, SHARED_BYTES)], 0, "register_buffer")
            raw = (ctypes.c_uint8 * SHARED_BYTES).from_address(address)
            self._memory = np.ctypeslib.as_array(raw)
        pair = self._memory[: 2 * ring * size].reshape(2, ring, size)
        return pair[0], pair[1]

    @contextmanager
    def session(self, source: Array, target: Array, count: int) -> Iterator[MooncakeSession]:
        sides = () if self.shared else (source, target)
        for side in sides:
            result = self.client.register_buffer(side.ctypes.data, side.nbytes)
            expect([result], 0, "register_buffer")
        try:
            yield MooncakeSession(self.client, source, target, f"{source.shape[1]}")
        finally:
            for side in sides:
                self.client.unregister_buffer(side.ctypes.data)


SHARED_BYTES = 2 * (128 << 20)


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} does not listen on port {port}")


@contextmanager
def servers(segment: str) -> Iterator[None]:
    """Master and store process, on 127.0.0.1; stopped at the end."""
    programs = Path(sys.executable).parent
    commands = {
        MASTER: [
            "mooncake_master",
            "--rpc_address=127.0.0.1",
            f"--rpc_port={MASTER}",
            "--metrics_host=127.0.0.1",
            f"--metrics_port={METRICS}",
            "--enable_metric_reporting=false",
        ],
        STORE: [
            "mooncake_client",
            "--host=127.0.0.1",
            f"--port={STORE}",
            "--metadata_server=P2PHANDSHAKE",
            f"--master_server_address=127.0.0.1:{MASTER}",
            "--protocol=tcp",
            f"--global_segment_size={segment}",
        ],
    }
    with ExitStack() as stack:
        for port, (program, *options) in commands.items():
            process = subprocess.Popen([str(programs / program), *options])
            stack.callback(stop, process)
            wait_for_port(port, process)
        yield


def measure(repeats: int, sizes: list[int], folder: Path) -> list[Figures]:
    """Both clients, one after the other. Nothing is written to folder."""
    store = importlib.import_module("mooncake.store")
    figures = []
    for shared in (False, True):
        with servers("3GB"):
            client = store.MooncakeDistributedStore()
            if shared:
                result = client.setup_dummy(SHARED_BYTES, 16 << 20, f"127.0.0.1:{STORE}")
            else:
                result = client.setup(
                    "127.0.0.1",
                    "P2PHANDSHAKE",
                    0,
                    2 * SHARED_BYTES,
                    "tcp",
                    "",
                    f"127.0.0.1:{MASTER}",
                )
            expect([result], 0, "setup")
            try:
                figures.append(run(Mooncake(client, shared), repeats, sizes))
            finally:
                client.close()
    return figures
