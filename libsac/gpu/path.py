# SPDX-License-Identifier: Apache-2.0
"""Movers: what goes between a namespace's pages and one GPU's memory."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Literal

from libsac import _core
from libsac.arguments import milliseconds, unsigned
from libsac.closing import Closing
from libsac.errors import ArgumentError
from libsac.gpu.device import Device, ordinal
from libsac.gpu.gather import gather_rows
from libsac.gpu.put import put_rows
from libsac.pages import Prefix, Put, Sequence
from libsac.sizes import parse_size
from libsac.store import Namespace

__all__ = ["Fault", "Mover", "MoverInfo", "Path", "gather", "put"]

Path = Literal["auto", "gpu", "cpu"]
PATHS: tuple[Path, ...] = ("auto", "gpu", "cpu")  # position: sac_gpu_path
_FAULTS = ((1, "range"), (4, "page"), (16, "gpu"))  # bits: SAC_GPU_FAULT_...


@dataclass(frozen=True, slots=True)
class MoverInfo:
    """How a mover works.

    Attributes:
        path: "gpu" or "cpu"; "auto" before the first gather.
        why: a sentence.
        forced: it was asked for, or there is no other.
        gpu_us, cpu_us: median time of the measurement, microseconds. rows, row_bytes: what
            was gathered in it; rows is 0 where none was made.
        threads: of the CPU's path. cores: they may run on, of NUMA node ``numa_node`` (-1: not
            known, then all).
        staging_bytes: of pinned memory by now.
    """

    path: Path
    forced: bool
    threads: int
    numa_node: int
    cores: int
    row_bytes: int
    rows: int
    gpu_us: float
    cpu_us: float
    staging_bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What was wrong with a request of a gather whose call could not know it yet.

    Attributes:
        number: of the gather, as ``Mover.last`` said behind it.
        request: position among its prefixes.
        what: "range": a row that is not there, "page": a page that died or was forced out
            (both gave zeros, or bytes that are not right), "gpu": the GPU failed.
    """

    number: int
    request: int
    what: frozenset[str]


def path_number(path: Any) -> int:
    """A path's number in the core. Raises ArgumentError."""
    if path not in PATHS:
        raise ArgumentError(f"path is {path!r}; there are 'auto', 'gpu' and 'cpu'")
    return PATHS.index(path)


class Mover(Closing):
    """Moves rows between the pages of a namespace and the memory of one GPU.

    All of it goes into a stream and waits for nothing, but for what is said. Thread-safe; a
    context manager.

    Args:
        ns: the namespace. Its pool is registered with CUDA in the background, unless path is
            "cpu".
        device: as ``libsac.gpu.Device`` takes it.
        path: of gathers: "gpu": a kernel reads the pool in place; "cpu": threads gather into
            pinned memory, and the copy engine brings it on; "auto": the faster of both in a
            measurement of about a millisecond at the first gather, and "cpu" where CUDA
            refuses the pool's memory.
        threads: of the CPU's path, the caller included; 0: 8. They run on the cores of the
            GPU's NUMA node, and one core is left free.
        staging: bytes of pinned memory of the CPU's path ("64M"), used in two halves.
        chunk: bytes of one copy to the GPU there; 0: chosen by size.
        plain_stores: threads write pinned memory through their caches.
        timeout: seconds to wait for the registration, at each call that needs it.

    Attributes:
        last: number of the last gather, from 1.
    """

    def __init__(
        self,
        ns: Namespace,
        device: Any = None,
        *,
        path: Path = "auto",
        threads: int = 0,
        staging: int | str = 0,
        chunk: int | str = 0,
        plain_stores: bool = False,
        timeout: float = 600.0,
    ) -> None:
        if not isinstance(ns, Namespace):
            raise ArgumentError(f"a Namespace is needed, not {type(ns).__name__}")
        self.device = ordinal(device)
        gpu = Device(self.device)
        self.layout = ns.layout
        self._numbers = ns._plane
        self._native = _core.mover_open(
            gpu._native,
            ns._native,
            path_number(path),
            unsigned(threads, "threads"),
            parse_size(staging),
            parse_size(chunk),
            bool(plain_stores),
            max(1, milliseconds(timeout, "timeout")),
        )
        self.last = 0

    def put(
        self,
        target: Put | Sequence,
        planes: Mapping[str, Any],
        axes: str | Mapping[str, str] = "layer token",
        *,
        layers: Many[int] | None = None,
        slots: Any = None,
        blocks: Any = None,
        first: int | None = None,
        stream: Any = None,
    ) -> None:
        """Writes rows from GPU memory into the pages of a put, or of a growing sequence.

        Args:
            target: a Put: whole missing pages are written, and ``commit()`` waits until the GPU
                is done with them, for nothing else. A Sequence: rows of tokens appended by
                ``extend()`` and not committed, all layers of each plane at once; its pages are
                committed by ``flush()`` and ``extend()`` when the GPU is done; neither waits.
            planes: for each plane a tensor in GPU memory, or a list of them, one a layer, then
                without "layer" in axes. Any dtype whose last dimensions make up one row.
            axes: what the leading dimensions are, in their order: of "layer", "page", "head",
                "token"; "layer token": (layers, tokens, row ...), "page layer head token":
                (pages, layers, heads, tokens, row ...). Strides may be any. page: the engine's
                page, of as many rows as "token" has. For all planes, or by plane. "token" means
                rows: a compressed plane has fewer.
            layers: model layers, in the order of the tensors; None: all of the plane.
            slots: (rows,) where each row lies: page * rows of a page + place in it, int64 or
                int32, in GPU memory or not. For all planes, or by plane. None: slots 0, 1, ...
            blocks: instead: the engine's page numbers, in turn; needs "page" in axes.
            first: of a Put: position among its missing pages (missing_tails for window and
                state planes) of the first one given; None: 0. Of a Sequence: number of the
                first row; None: the row of the first token of the last extend().
            stream: a torch stream or its number; None: torch's current one.

        Torch tensors may be given up at once: torch keeps their memory for the stream. What is
        not torch's is kept as long as target.

        Raises ArgumentError, RangeError (a row, page or layer that is not there; slots in GPU
        memory are seen by the commit, which raises it), GpuError,
        BusyError, ClosedError. Planes before the one that fails are written.
        """
        put_rows(self, target, planes, axes, layers, slots, blocks, first, stream)

    def ready(self, put: Put) -> bool:
        """Whether ``put.commit()`` would not wait for the GPU. Does not wait itself."""
        return _core.put_quiet(put._native)

    def gather(
        self,
        plane: str,
        layer: int,
        prefixes: Many[Prefix | Sequence],
        tokens: Any = None,
        *,
        rows: Any = None,
        head: int | None = None,
        out: Any = None,
        path: Path | None = None,
        stream: Any = None,
    ) -> Any:
        """Rows of several prefixes, copied to GPU memory: (batch, k, row_bytes) uint8.

        Args:
            prefixes: one a request. They may be closed as soon as the call returns.
            tokens: (batch, k) integers, in the host's memory or the GPU's; where the plane has
                heads and no ``head`` is given (batch, heads, k), and the result has (batch,
                heads, k, row_bytes). -1: a row of zeros. In a compressed plane a token means
                the row that holds it.
            rows: row numbers of the plane instead.
            out: where to copy to, of any dtype whose last dimensions make up a row, contiguous.
                Mutated and returned. None: a new torch tensor.
            path: "gpu" or "cpu"; None: the mover's.

        Numbers in the host's memory are checked before anything is copied: RangeError. Those in
        GPU memory are not seen here: wrong ones give zeros, and :meth:`faults` tells of them.
        On the CPU's path with numbers in the host's memory the call returns when the rows are
        gathered, and raises StaleError or MediaError itself; else those are faults as well. Not
        for graph capture. Raises ArgumentError, GpuError, BusyError, ClosedError, ForkedError.
        """
        way = 0 if path is None else path_number(path)
        result, self.last = gather_rows(
            self, plane, layer, prefixes, tokens, rows, head, out, way, stream
        )
        return result

    def faults(self) -> list[Fault]:
        """Faults of gathers that have ended, oldest first, each told once. Does not wait."""
        return [
            Fault(number, request, frozenset(name for bit, name in _FAULTS if bits & bit))
            for number, request, bits in self._native.faults()
        ]

    def info(self) -> MoverInfo:
        """The path taken and why, and what the CPU's path uses."""
        values = dict(self._native.info())
        values["path"] = PATHS[values["path"]]
        return MoverInfo(**values)

    def close(self) -> None:
        """Waits for what it gave to the GPU. May be called twice."""
        self._native.close()

    def __repr__(self) -> str:
        if self._native.closed:
            return "<Mover: closed>"
        i = self.info()
        return f"<Mover to GPU {self.device}: {i.why}>"


def _kept(ns: Namespace, device: Any) -> Mover:
    number = ordinal(device)
    kept: Mover = ns._movers.get(number) or ns._movers.setdefault(number, Mover(ns, number))
    return kept


def put(
    target: Put | Sequence,
    planes: Mapping[str, Any],
    axes: str | Mapping[str, str] = "layer token",
    *,
    layers: Many[int] | None = None,
    slots: Any = None,
    blocks: Any = None,
    first: int | None = None,
    device: Any = None,
    stream: Any = None,
) -> None:
    """As ``Mover.put``, with one mover kept for the namespace and GPU."""
    if not isinstance(target, (Put, Sequence)):
        raise ArgumentError(f"target must be a Put or a Sequence, not {type(target).__name__}")
    _kept(target._ns, device).put(
        target,
        planes,
        axes,
        layers=layers,
        slots=slots,
        blocks=blocks,
        first=first,
        stream=stream,
    )


def gather(
    ns: Namespace,
    plane: str,
    layer: int,
    prefixes: Many[Prefix | Sequence],
    tokens: Any = None,
    *,
    rows: Any = None,
    head: int | None = None,
    out: Any = None,
    path: Path | None = None,
    device: Any = None,
    stream: Any = None,
) -> Any:
    """As ``Mover.gather``, with one mover kept for the namespace and GPU."""
    if not isinstance(ns, Namespace):
        raise ArgumentError(f"a Namespace is needed, not {type(ns).__name__}")
    return _kept(ns, device).gather(
        plane,
        layer,
        prefixes,
        tokens,
        rows=rows,
        head=head,
        out=out,
        path=path,
        stream=stream,
    )
