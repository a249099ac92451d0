# SPDX-License-Identifier: Apache-2.0
"""Reading files of recorded selections (docs/trace.md).

A file may come from anywhere. What a record says of itself is checked against the file's
size and the header's limits before a byte of it is used.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from libsac.errors import ClosedError, CorruptError, SystemCallError, VersionError
from libsac.trace_file import (
    BATCH,
    BIND,
    HEADER,
    LIMITS,
    LOST,
    MAGIC,
    MAX_UNITS,
    META_BYTES,
    RECORD,
    RECORD_BYTES,
    RECORD_MAGIC,
    RELEASE,
    SELECTION,
    VERSION,
    Bound,
    Event,
    Lost,
    Released,
    Selection,
    path_of,
)

__all__ = ["Trace"]


class Trace:
    """A trace file, open for reading. Iterate over it for its events, in their order.

    Attributes:
        top_k, heads, block, requests: as Recorder was given them. metadata: a dict, from
            whoever wrote it.
        truncated: after an iteration to the end: the file ends within a record, as one does
            whose recorder was killed. What stands before is whole.

    ``close()``, or use it as a context manager. Iterations are independent of each other.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises ArgumentError, SystemCallError where it cannot be read, CorruptError for what
        is no trace (``offset`` says where), VersionError for a version not known."""
        self._fd = -1
        self.path = path_of(path)
        self.truncated = False
        try:
            # Not to wait for a writer where somebody gave the name of a pipe.
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self._size = os.fstat(self._fd).st_size
            start = self._read(0, HEADER.size)
        except OSError as error:
            self.close()
            raise self._unreadable(error) from error
        try:
            self._open(start)
        except BaseException:
            self.close()
            raise

    def _open(self, start: bytes) -> None:
        if len(start) < HEADER.size:
            raise self._corrupt(0, f"it has {len(start)} bytes, fewer than a header")
        fields = HEADER.unpack(start)
        magic, version, length, top_k, heads, block, requests, meta, *_, crc = fields
        if magic != MAGIC:
            raise self._corrupt(0, "it does not begin as a trace")
        if version != VERSION:
            raise VersionError(
                f"the trace {self.path} has version {version}; this library reads {VERSION}",
                object=str(self.path),
            )
        if length != HEADER.size or meta > META_BYTES or length + meta > self._size:
            raise self._corrupt(8, "its header has lengths that cannot be")
        self._start = length + meta
        text = self._read(length, meta)
        if zlib.crc32(text, zlib.crc32(start[:-4])) != crc:
            raise self._corrupt(0, "the checksum of its header is wrong")
        named = {"top_k": top_k, "heads": heads, "block": block, "requests": requests}
        for name, value in named.items():
            if not 1 <= value <= LIMITS[name]:
                raise self._corrupt(8, f"{name} is {value}")
        try:
            metadata = json.loads(text)
        except (ValueError, RecursionError):
            metadata = None
        if not isinstance(metadata, dict):
            raise self._corrupt(length, "its metadata is no JSON object")
        self.top_k, self.heads, self.block, self.requests = top_k, heads, block, requests
        self.metadata: dict[str, Any] = metadata

    def __iter__(self) -> Iterator[Event]:
        """Raises CorruptError at the first record that is not sound, SystemCallError where
        the file cannot be read, ClosedError."""
        if self._fd < 0:
            raise ClosedError(f"the trace {self.path} is closed", object=str(self.path))
        self.truncated = False
        at = self._start
        while at < self._size:
            try:
                head = self._read(at, RECORD.size)
                fields = RECORD.unpack(head) if len(head) == RECORD.size else None
                length = fields[3] if fields else 0
                room = self._size - at - RECORD.size
                if fields and (fields[0] != RECORD_MAGIC or length > RECORD_BYTES):
                    raise self._corrupt(at, "a record does not begin as one")
                payload = self._read(at + RECORD.size, length) if length <= room else b""
            except OSError as error:
                raise self._unreadable(error) from error
            if fields is None or len(payload) < length:
                self.truncated = True
                return
            if zlib.crc32(payload, zlib.crc32(head[8:])) != fields[1]:
                raise self._corrupt(at, "the checksum of a record is wrong")
            yield self._event(at, fields[2], payload, fields[4:8], fields[8])
            at += RECORD.size + length

    def _event(
        self, at: int, kind: int, payload: bytes, what: tuple[int, ...], number: int
    ) -> Event:
        a, b, c, d = what
        if kind == SELECTION:
            if not 0 < c <= BATCH or not 0 < d <= self.top_k:
                raise self._corrupt(at, f"a selection of {c} requests with {d} units")
            if len(payload) != 4 * c * (1 + self.heads * d):
                raise self._corrupt(at, f"a selection has {len(payload)} bytes")
            values = np.frombuffer(payload, "<i4")
            requests = values[:c]
            if int(requests.min()) < 0 or int(requests.max()) >= self.requests:
                raise self._corrupt(at, "a selection names a request that cannot be")
            return Selection(number, a, b, requests, values[c:].reshape(c, self.heads, d))
        if payload:
            raise self._corrupt(at, f"a record of kind {kind} has a payload")
        if kind in (BIND, RELEASE) and a >= self.requests:
            raise self._corrupt(at, f"request {a} of {self.requests}")
        if kind == BIND and b <= 1 and c < MAX_UNITS:
            return Bound(number, a, c, bool(b))
        if kind == RELEASE:
            return Released(number, a)
        if kind == LOST:
            return Lost(number, a)
        raise self._corrupt(at, f"a record of kind {kind} with {what}")

    def _read(self, at: int, length: int) -> bytes:
        """Fewer bytes only at the file's end."""
        parts = []
        while length:
            part = os.pread(self._fd, min(length, 16 << 20), at)
            if not part:
                break
            parts.append(part)
            at, length = at + len(part), length - len(part)
        return b"".join(parts)

    def _corrupt(self, offset: int, why: str) -> CorruptError:
        return CorruptError(
            f"{self.path} is no sound trace: {why} (byte {offset})",
            object=str(self.path),
            offset=offset,
        )

    def _unreadable(self, error: OSError) -> SystemCallError:
        return SystemCallError(
            f"cannot read the trace {self.path}: {error.strerror or error}. "
            "Give a file that libsac.trace.Recorder wrote",
            object=str(self.path),
            errno=error.errno or 0,
        )

    def close(self) -> None:
        """Closes the file. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
