# SPDX-License-Identifier: Apache-2.0
"""Files of recorded selections: docs/trace.md in Python, its numbers, events and writing."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from libsac.errors import ArgumentError
from libsac.trace_check import whole

__all__ = [
    "Bound",
    "Event",
    "Lost",
    "Released",
    "Selection",
    "Writer",
    "path_of",
]

MAGIC = b"SACTRACE"
VERSION = 1
HEADER = struct.Struct("<8s9IQI")  # crc at the end, over what stands before and the metadata
RECORD = struct.Struct("<4I4I2Q")
RECORD_MAGIC = 0x54434153
SELECTION, BIND, RELEASE, LOST = 1, 2, 3, 4
META_BYTES = 64 << 10
LIMITS = {"top_k": 1 << 16, "heads": 1 << 10, "block": 128, "requests": 1 << 20}
BATCH = 1 << 16
RECORD_BYTES = 1 << 30
MAX_UNITS = 1 << 31
MAX_NAME = (1 << 32) - 1  # of a group or layer


@dataclass(frozen=True, slots=True)
class Selection:
    """One resolve call: what each request of a batch selected in one layer.

    number: of the call, counted by the recorder from 0. requests: (B,) int32. tokens:
    (B, heads, K) int32 unit numbers, -1 for padding. Both are read-only.
    """

    number: int
    group: int
    layer: int
    requests: NDArray[np.int32]
    tokens: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Bound:
    """Request number ``request`` began, or its length changed: ``units`` units now.

    fresh: it began, and whatever was cached under that number is gone.
    """

    number: int
    request: int
    units: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class Released:
    """Request number ``request`` ended."""

    number: int
    request: int


@dataclass(frozen=True, slots=True)
class Lost:
    """``count`` selections could not be recorded here: the ring was full, or they named
    requests in GPU memory that the trace does not have."""

    number: int
    count: int


Event = Selection | Bound | Released | Lost


def _header(top_k: int, heads: int, block: int, requests: int, meta: bytes) -> bytes:
    fields = (MAGIC, VERSION, HEADER.size, top_k, heads, block, requests, len(meta), 0, 0, 0)
    start = HEADER.pack(*fields, 0)[:-4]
    return start + struct.pack("<I", zlib.crc32(meta, zlib.crc32(start))) + meta


def _meta(metadata: Any) -> bytes:
    """metadata as the file has it; ArgumentError for what a reader would not take."""
    todo = "Give a dict of what JSON has: texts, numbers, lists, dicts with texts as keys"
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise ArgumentError(f"metadata is a {type(metadata).__name__}. {todo}")
    try:
        meta = json.dumps(metadata, sort_keys=True, allow_nan=False).encode()
        json.loads(meta)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"metadata cannot be written as JSON: {error}. {todo}") from error
    meta += b" " * (-(HEADER.size + len(meta)) % 8)  # so that records are aligned
    if len(meta) > META_BYTES:
        raise ArgumentError(
            f"metadata has {len(meta)} bytes; up to {META_BYTES} are allowed. Keep less in it"
        )
    return meta


def path_of(path: Any) -> Path:
    """A file's name as a Path; ArgumentError for what cannot be one."""
    try:
        found = Path(path)
    except TypeError:
        found = Path("\0")
    if "\0" in str(found):
        raise ArgumentError(f"path is {path!r}; a file's name is needed, as a text or a Path")
    return found


class Writer:
    """Writes a trace. One thread at a time may use it."""

    def __init__(
        self,
        file: BinaryIO,
        *,
        top_k: int,
        heads: int = 1,
        block: int = 1,
        requests: int = 1024,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Writes the header to file, which stays the caller's to close.

        top_k: the most units of a selection. heads: selections a request has (1 where they
        are not made per head). block: tokens a unit. requests: numbers are below this.
        metadata: what else is worth knowing, as JSON. Raises ArgumentError.
        """
        given = {"top_k": top_k, "heads": heads, "block": block, "requests": requests}
        limits = {n: whole(value, n, 1, LIMITS[n]) for n, value in given.items()}
        header = _header(**limits, meta=_meta(metadata))
        self._file = file
        self.top_k, self.heads = limits["top_k"], limits["heads"]
        self.block, self.requests = limits["block"], limits["requests"]
        file.write(header)

    def _record(
        self, kind: int, number: int, what: tuple[int, int, int, int], *parts: NDArray[np.int32]
    ) -> None:
        payload = b"".join(part.tobytes() for part in parts)
        fields = (kind, len(payload), *what, number, 0)
        head = RECORD.pack(RECORD_MAGIC, 0, *fields)
        # The checksum covers what stands behind it in the record, and the payload.
        crc = zlib.crc32(payload, zlib.crc32(head[8:]))
        self._file.write(RECORD.pack(RECORD_MAGIC, crc, *fields) + payload)

    def selection(
        self,
        number: int,
        group: int,
        layer: int,
        requests: NDArray[np.int32],
        tokens: NDArray[np.int32],
    ) -> bool:
        """requests: (B,); tokens: (B, heads, K) or, with one head, (B, K).

        False, and nothing is written, where one of the requests is none of the trace's.
        Raises ArgumentError for other things that a reader would refuse.
        """
        batch = len(requests)
        count = self.fits(tokens.shape, batch)
        if not self.knows(requests):
            return False
        group, layer = self.names(group, layer)
        what = (group, layer, batch, count)
        self._record(
            SELECTION, number, what, requests.astype("<i4", copy=False), tokens.astype("<i4")
        )
        return True

    def fits(self, shape: tuple[int, ...], batch: int) -> int:
        """K of a selection for so many requests; ArgumentError unless its shape is
        (B, heads, K) or, with one head, (B, K), and the trace can hold it."""
        wide = shape if len(shape) == 3 else (*shape[:1], 1, *shape[1:])
        if len(shape) not in (2, 3) or wide[:2] != (batch, self.heads):
            want = f"({batch}, {self.heads}, K)" + f" or ({batch}, K)" * (self.heads == 1)
            raise ArgumentError(
                f"tokens have the shape {shape} with {batch} requests; {want} is needed"
            )
        most = min(BATCH, self.requests)
        if not 0 < batch <= most:
            raise ArgumentError(
                f"a batch of {batch} requests; 1 to {most} are allowed. "
                "Recorder(requests=...) says how many there can be"
            )
        count = wide[2]
        if not 0 < count <= self.top_k:
            raise ArgumentError(
                f"a selection of {count} units; 1 to {self.top_k} are allowed. "
                "Recorder(top_k=...) says how many there can be"
            )
        size = 4 * batch * (1 + self.heads * count)
        if size > RECORD_BYTES:
            raise ArgumentError(
                f"a selection of {size} bytes; up to {RECORD_BYTES} are allowed. Record fewer "
                "requests in a call"
            )
        return count

    def knows(self, requests: NDArray[np.int32]) -> bool:
        """Whether all of them are numbers that the trace's requests can have."""
        # Negative ones are large as unsigned: one look in place of two.
        return int(requests.view(np.uint32).max()) < self.requests

    def names(self, group: Any, layer: Any) -> tuple[int, int]:
        """Both as numbers that a selection can have; ArgumentError."""
        todo = "Recorder.watch(buffer, groups={'latent': 0}) gives a name its number"
        return (
            whole(group, "group", 0, MAX_NAME, todo),
            whole(layer, "layer", 0, MAX_NAME),
        )

    def request(self, request: Any) -> int:
        """request as a number that the trace has; ArgumentError."""
        todo = "Recorder(requests=...) says how many there can be"
        return whole(request, "request", 0, self.requests - 1, todo)

    def units(self, units: Any) -> int:
        """units as a request's length; ArgumentError."""
        return whole(units, "units", 0, MAX_UNITS - 1)

    def bind(self, number: int, request: int, units: int, fresh: bool = True) -> None:
        """The request begins (fresh) or has grown or shrunk to units."""
        what = (self.request(request), int(bool(fresh)), self.units(units), 0)
        self._record(BIND, number, what)

    def release(self, number: int, request: int) -> None:
        """The request ends."""
        self._record(RELEASE, number, (self.request(request), 0, 0, 0))

    def lost(self, number: int, count: int) -> None:
        """So many selections are missing here."""
        self._record(LOST, number, (min(count, 0xFFFFFFFF), 0, 0, 0))
