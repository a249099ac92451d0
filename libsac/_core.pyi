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
    ) -> Namespace: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

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
