"""Native part of libsac; use the package libsac instead."""

from collections.abc import Sequence as _Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

def version() -> str: ...
def embedded(
    bytes: int,
    path: str | None,
    extents: int,
    metadata_bytes: int,
    prefault: bool,
    open_only: bool,
) -> Pool: ...
def connect(
    socket: str, pool: str | None, name: str | None, timeout_ms: int, reconnect_ms: int
) -> Pool: ...

class Pool:
    def info(self) -> dict: ...
    def names(self) -> list[str]: ...
    def drop(self, arg: str, /) -> None: ...
    def open_namespace(
        self,
        name: str,
        layout: tuple[
            int, _Sequence[tuple[str, _Sequence[int], int, int, int, int, int, int, int, str]]
        ]
        | None,
        model: str,
        key_scheme: int,
        max_bytes: int,
        checksum: bool,
        token_ids: bool,
        mode: int = 0,
        owner: tuple[int, int] | None = None,
    ) -> Namespace: ...
    def extents(self) -> list[tuple[str, int, int, int, bool, int, int]]: ...
    def resize(self, name: str, max_bytes: int) -> None: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def extend(self, extent: tuple[int, str, bool, int]) -> None: ...
    def set_weights(self, weights: _Sequence[int]) -> None: ...
    def quarantine(self, extent: int, offset: int, bytes: int) -> int: ...
    def check_writable(self) -> None: ...
    def lose(self, extent: int) -> int: ...

class Namespace:
    def info(self) -> dict: ...
    def stats(self) -> dict: ...
    def events(self, next: int, most: int) -> tuple: ...
    def planes(self) -> list[tuple[str, list[int], int, int, int, int, int, int, int, str]]: ...
    def keys(
        self,
        tokens: Annotated[
            NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        salt: bytes,
        parent: bytes | None,
    ) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None))]: ...
    def root(self, arg: bytes, /) -> bytes: ...
    def lookup(
        self,
        arg: Annotated[
            NDArray[numpy.uint8],
            dict(shape=(None, 32), order="C", device="cpu", writable=False),
        ],
        /,
    ) -> Annotated[NDArray[numpy.bool_], dict(shape=(None,))]: ...
    def longest(
        self,
        arg: Annotated[
            NDArray[numpy.uint8],
            dict(shape=(None, 32), order="C", device="cpu", writable=False),
        ],
        /,
    ) -> int: ...
    def evict(self, arg: int, /) -> int: ...
    def verify(self) -> tuple: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

class Prefix:
    @property
    def pages(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    def rows(self, arg0: int, arg1: int, /) -> int: ...
    def handles(self) -> list: ...
    def view(self, arg0: int, arg1: int, arg2: int, /) -> object: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

def pin(
    arg0: Namespace,
    arg1: Annotated[
        NDArray[numpy.uint8], dict(shape=(None, 32), order="C", device="cpu", writable=False)
    ],
    /,
) -> Prefix: ...
def put(
    ns: Namespace,
    keys: Annotated[
        NDArray[numpy.uint8], dict(shape=(None, 32), order="C", device="cpu", writable=False)
    ],
    parents: Annotated[
        NDArray[numpy.uint8], dict(shape=(None, 32), order="C", device="cpu", writable=False)
    ]
    | None,
    tokens: Annotated[
        NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)
    ]
    | None,
    deadline_ms: int,
    timeout_ms: int,
    first_tail: int,
) -> Put: ...

class Put:
    def missing(self, arg: int, /) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...
    def write(
        self, plane: int, layer: int, rows: object | None, first: int, threads: int
    ) -> None: ...
    def view(self, arg0: int, arg1: int, arg2: int, /) -> object: ...
    def commit(self) -> int: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

def sequence(
    arg0: Namespace,
    arg1: Annotated[
        NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    arg2: bytes,
    /,
) -> Sequence: ...

class Sequence:
    def prefix(self) -> Prefix: ...
    def extend(
        self,
        arg0: Annotated[
            NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        arg1: int,
        /,
    ) -> None: ...
    def write(
        self, plane: int, layer: int, rows: object | None, first: int, threads: int
    ) -> None: ...
    def flush(self) -> int: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

def gather(
    ns: Namespace,
    prefixes: _Sequence[Prefix],
    plane: int,
    layer: int,
    first_head: int,
    heads: int,
    index: Annotated[NDArray, dict(device="cpu", writable=False)] | None,
    count: int,
    out: object,
    stream: bool,
    threads: int,
) -> None: ...
def open_fds(
    meta: tuple[int, str, bool, int],
    data: _Sequence[tuple[int, str, bool, int]],
    create: bool,
    prefault: bool,
) -> Pool: ...
def scrub(
    extent: tuple[int, str, bool, int], offset: int, bytes: int, progress: object | None
) -> None: ...

class Server:
    def __init__(
        self,
        run_dir: str,
        socket_path: str | None,
        listen_fd: int,
        socket_mode: int,
        socket_gid: int,
        creators_gid: int,
        max_clients: int,
    ) -> None: ...
    def add_pool(self, name: str, pool: Pool) -> None: ...
    def remove_pool(self, name: str, force: bool = False) -> None: ...
    def serve(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def heartbeat(self) -> int: ...
    def next_request(self, timeout_ms: int) -> object: ...
    def answer(self, id: int, body: bytes) -> None: ...
    def clients(self) -> list: ...
    def tables(self) -> list: ...
    def ops(self) -> list: ...
    def evict(self, id: bytes, kill: bool) -> None: ...

def gpu_open(ordinal: int) -> Gpu: ...
def gpu_set_nvrtc(path: str) -> None: ...
def gpu_sources() -> list[tuple[str, str]]: ...
def gpu_compile(source: str, arch: str, macros: _Sequence[tuple[str, str]]) -> dict: ...

class Gpu:
    def info(self) -> dict: ...
    def register(self, namespace: Namespace, chunk_bytes: int) -> GpuRegistration: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

class GpuRegistration:
    def info(self) -> dict: ...
    def wait(self, timeout_ms: int) -> None: ...
    def unregister(self) -> None: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

class GpuRows:
    def __init__(
        self,
        plane: int,
        layers: _Sequence[int],
        sources: _Sequence[int],
        slots: int,
        slots_on_gpu: bool,
        block_rows: int,
        block_stride: int,
        row_stride: int,
        head_stride: int,
        source_rows: int,
        first: int,
        count: int,
    ) -> None: ...

def mover_open(
    gpu: Gpu,
    ns: Namespace,
    path: int,
    threads: int,
    staging: int,
    chunk: int,
    plain_stores: bool,
    timeout_ms: int,
) -> GpuMover: ...

class GpuMover:
    def put(self, put: Put, rows: GpuRows, stream: int) -> None: ...
    def put_sequence(self, sequence: Sequence, rows: GpuRows, stream: int) -> None: ...
    def gather(
        self,
        prefixes: _Sequence[Prefix],
        plane: int,
        layer: int,
        first_head: int,
        heads: int,
        rows: int,
        rows_on_gpu: bool,
        count: int,
        out: int,
        path: int,
        stream: int,
    ) -> int: ...
    def info(self) -> dict: ...
    def faults(self) -> list: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

def put_quiet(arg: Put, /) -> bool: ...

class HotOptions:
    def __init__(
        self,
        *,
        requests: int,
        slots: int,
        top_k: int,
        block: int,
        policy: int,
        flags: int,
        threads: int,
        max_tokens: int,
        timeout_ms: int,
        groups: _Sequence[int],
        share: _Sequence[tuple[int, int]],
    ) -> None: ...

def hot_check(namespace: Namespace, options: HotOptions) -> None: ...
def hot_open(gpu: Gpu, namespace: Namespace, options: HotOptions) -> Hot: ...

class Hot:
    def info(self) -> dict: ...
    def rows(self, arg0: int, arg1: int, arg2: int, /) -> object: ...
    def bind(self, arg0: int, arg1: Prefix, arg2: bool, arg3: int, /) -> None: ...
    def extend(self, arg0: _Sequence[int], arg1: int, /) -> None: ...
    def truncate(self, arg0: int, arg1: int, arg2: int, /) -> None: ...
    def written(self, arg0: _Sequence[int], arg1: int, /) -> None: ...
    def release(self, arg0: int, arg1: int, /) -> None: ...
    def refresh(self, arg: int, /) -> int: ...
    def resolve(
        self,
        arg0: int,
        arg1: int,
        arg2: int,
        arg3: int,
        arg4: int,
        arg5: int,
        arg6: int,
        arg7: int,
        arg8: int,
        arg9: int,
        arg10: bool,
        /,
    ) -> None: ...
    def prefetch(
        self,
        arg0: int,
        arg1: int,
        arg2: int,
        arg3: int,
        arg4: int,
        arg5: int,
        arg6: int,
        arg7: int,
        arg8: int,
        arg9: int,
        arg10: bool,
        /,
    ) -> None: ...
    def replay(self, arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, /) -> None: ...
    def append(
        self,
        arg0: int,
        arg1: int,
        arg2: int,
        arg3: int,
        arg4: int,
        arg5: int,
        arg6: _Sequence[tuple[int, int, int, int, int]],
        arg7: int,
        /,
    ) -> None: ...
    def stats(self) -> tuple: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
