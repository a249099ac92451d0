# SPDX-License-Identifier: Apache-2.0
"""Records which rows a running engine selects, without holding it up, and reads it again.

Recording: :class:`Recorder`; reading: :class:`Trace`; the file: docs/trace.md. ``sacctl
bench policy`` prints miss rates of such a file.

Selections on the GPU are copied into memory of the recorder's own on the engine's stream,
then by a side stream into pinned memory, and from there by a thread into the file. Nothing
waits: where the ring is full a selection is left out, counted, and noted in the file.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections import deque
from types import TracebackType
from typing import Any

from libsac.errors import ArgumentError, ClosedError, SacError
from libsac.trace_check import is_gpu_tensor, selection, whole
from libsac.trace_file import BATCH, Bound, Event, Lost, Released, Selection, path_of
from libsac.trace_new import begin, told
from libsac.trace_reader import Trace
from libsac.trace_ring import Ring, Slot
from libsac.trace_watch import Tape, Watched

__all__ = [
    "Bound",
    "Event",
    "Lost",
    "Recorder",
    "Released",
    "Selection",
    "Tape",
    "Trace",
    "Watched",
]

Item = tuple[str, tuple[Any, ...]]
RING = 1 << 20


class Recorder:
    """Writes a trace while an engine runs.

    ``record`` beside every resolve, ``bind`` and ``release`` beside those of the hot buffer;
    or :meth:`watch`, which does it. Any thread may call; each call is short.

    Attributes:
        recorded, lost: selections queued, and left out: because the ring was full, or because
            they named, in GPU memory, requests that there are not (seen when they are written).
        path, top_k, heads, block, requests: as given.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        top_k: int,
        heads: int = 1,
        block: int = 1,
        requests: int = 1024,
        ring: int = 256,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Creates the file (mode 0600, since selections tell about prompts) and a thread.

        Args:
            top_k: the most units of a selection, 1 to 65,536.
            heads: that select each for themselves, 1 to 1,024.
            block: tokens a unit, 1 to 128.
            requests: their numbers are below this, at most 1,048,576.
            ring: selections under way at once; each takes room of the largest batch so far on
                the GPU and in pinned memory.
            metadata: a dict that is kept in the file as JSON, at most 64 KiB.

        top_k, heads, block and requests are those of the hot buffer. Raises ArgumentError,
        SystemCallError (also where the file is there already).
        """
        ring = whole(ring, "ring", 1, RING)
        self.path = path_of(path)
        self._file, self._writer = begin(
            self.path,
            top_k=top_k,
            heads=heads,
            block=block,
            requests=requests,
            metadata=metadata,
        )
        self.top_k, self.heads = self._writer.top_k, self._writer.heads
        self.block, self.requests = self._writer.block, self._writer.requests
        self.recorded = self.lost = 0
        self._unsaid = 0  # lost since the last record that says so
        self._number = 0
        self._ring = Ring(ring)
        self._queue: deque[Item] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._write, name="sac-trace", daemon=True)
        self._thread.start()
        self._pid = os.getpid()
        atexit.register(self._exit)

    def prepare(self, batch: int, device: Any = "cpu") -> None:
        """Allocates the whole ring now, for batches of that size of top_k units each.

        Without it the first selections allocate, and pinned memory takes milliseconds each.
        device: where the selections are. Raises ArgumentError, ClosedError, GpuError.
        """
        batch = whole(batch, "batch", 1, min(BATCH, self.requests))
        self._writer.fits((batch, self.heads, self.top_k), batch)
        self._usable()
        with self._wake:
            self._ring.prepare(batch * (1 + self.heads * self.top_k), device)

    # ---------------------------------------------------------------- the engine's calls

    def record(self, group: int, layer: int, requests: Any, tokens: Any) -> bool:
        """Queues a selection; False where the ring was full and it was left out.

        group, layer: numbers; :meth:`watch` gives a group's name one. requests: (B,)
        integers. tokens: (B, K) or, per head, (B, heads, K) whole numbers that an int32 holds,
        K at most top_k, of numpy or torch; on a GPU int32. Tensors on a GPU are copied on the
        current stream; the caller may change them on that stream as soon as this returns.
        Raises ArgumentError, ClosedError, GpuError, SystemCallError where the file could not
        be written.

        Not while a CUDA graph is captured: see :meth:`tape`.
        """
        group, layer, requests, tokens = self._check(group, layer, requests, tokens)
        if is_gpu_tensor(tokens) and sys.modules["torch"].cuda.is_current_stream_capturing():
            raise ArgumentError("a graph is being captured: record on a tape (Recorder.tape)")
        with self._wake:
            slot = self._ring.take()
            number = self._number
            self._number += 1
            if slot is None:
                self.lost += 1
                self._unsaid += 1
                return False
            try:
                slot.fill(requests, tokens)
            except BaseException:
                self._ring.give(slot)
                raise
            self._note_lost(number)
            self._queue.append(("selection", (number, group, layer, slot)))
            self.recorded += 1
            self._wake.notify()
        return True

    def bind(self, request: int, units: int, fresh: bool = True) -> None:
        """Notes that a request number is in use from here on, with so many units.

        units: below 2^31. fresh: False where it only grew or shrank: what it had stays.
        Raises ArgumentError, ClosedError.
        """
        request, units = self._writer.request(request), self._writer.units(units)
        self._note("bind", request, units, bool(fresh))

    def release(self, request: int) -> None:
        """Notes that the request number is free again. Raises ArgumentError, ClosedError."""
        self._note("release", self._writer.request(request))

    def tape(self) -> Tape:
        """What a CUDA graph records on; see Tape."""
        return Tape(self)

    def watch(self, buffer: Any, groups: dict[str, int] | None = None) -> Watched:
        """buffer, a libsac.HotBuffer, with every call of resolve, bind and release noted.

        groups: number of each group's name in the trace; others get the next number free.
        Raises ArgumentError, also for a buffer whose selections the trace cannot hold.
        """
        return Watched(buffer, self, groups)

    # -------------------------------------------------------------------------- the end

    def close(self) -> None:
        """Writes what is queued and closes the file. May be called again.

        Raises SystemCallError where not all could be written, GpuError where a selection did
        not come from the GPU; the records before are whole.
        """
        with self._wake:
            if self._closed and not self._thread.is_alive():
                return
            if self._unsaid:
                self._note_lost(self._number)
            self._closed = True
            self._wake.notify()
        self._thread.join()
        try:
            self._file.close()
        except OSError as error:
            self._failed = self._failed or error
        self._ring.clear()
        atexit.unregister(self._exit)
        self._raise()

    def _exit(self) -> None:
        """At the interpreter's end. A forked process has neither thread nor file to close."""
        if os.getpid() == self._pid:
            self.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: object, __: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # the error under way matters more than one of the trace
            with contextlib.suppress(SacError):
                self.close()

    # ------------------------------------------------------------------------ within

    def _check(
        self, group: Any, layer: Any, requests: Any, tokens: Any
    ) -> tuple[int, int, Any, Any]:
        self._usable()
        return selection(self._writer, group, layer, requests, tokens)

    def _usable(self) -> None:
        self._raise()
        if self._closed:
            raise ClosedError(f"the recorder of {self.path} is closed", object=str(self.path))

    def _raise(self) -> None:
        if self._failed is not None:
            raise told(self.path, self._failed)

    def _note(self, what: str, request: int, *more: Any) -> None:
        with self._wake:
            self._usable()
            self._queue.append((what, (self._number, request, *more)))
            self._wake.notify()

    def _note_lost(self, number: int) -> None:
        if self._unsaid:
            self._queue.append(("lost", (number, self._unsaid)))
            self._unsaid = 0

    def _refuse(self, number: int) -> None:
        """That selection named requests which there are not, in GPU memory: it is lost."""
        with self._wake:
            self.recorded -= 1
            self.lost += 1
        self._writer.lost(number + 1, 1)

    def _write(self) -> None:
        """The thread: waits for copies, writes, gives slots back.

        What is written goes to the file whenever nothing else waits: who is killed loses
        what was still under way.
        """
        while True:
            if not self._queue and self._failed is None:
                try:
                    self._file.flush()
                except BaseException as error:
                    self._failed = error
            with self._wake:
                while not self._queue and not self._closed:
                    self._wake.wait()
                if not self._queue:
                    return
                what, args = self._queue.popleft()
            slot: Slot | None = None
            try:
                if what == "selection":
                    number, group, layer, slot = args
                    assert slot is not None
                    requests, tokens = slot.wait()
                    if self._failed is None and not self._writer.selection(
                        number, group, layer, requests, tokens
                    ):
                        self._refuse(number)
                elif self._failed is None:
                    getattr(self._writer, what)(*args)
            except BaseException as error:
                self._failed = self._failed or error
            finally:
                if slot is not None:
                    self._ring.give(slot)
