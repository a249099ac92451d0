# SPDX-License-Identifier: Apache-2.0
"""Time on the GPU: medians of graph replays, the works of a comparison by turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

REPLAYS = 21


@dataclass
class Graph:
    """A captured run of ``calls`` calls; after: what follows a replay, not timed."""

    graph: Any
    calls: int
    after: Callable[[], object] | None = None


def captured(call: Callable[[int], object], calls: int, warm: bool = True) -> Graph:
    """A graph of call(0) .. call(calls - 1), on a stream of its own.

    warm: call all of them once first, so that nothing is built during the capture.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        if warm:
            for n in range(calls):
                call(n)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for n in range(calls):
            call(n)
    return Graph(graph, calls)


class Eager:
    """Stands for a graph where the work has a part on the CPU and cannot be captured."""

    def __init__(self, call: Callable[[int], object], calls: int) -> None:
        self._call, self._calls = call, calls

    def replay(self) -> None:
        """Makes the calls."""
        for n in range(self._calls):
            self._call(n)


def eager(call: Callable[[int], object], calls: int) -> Graph:
    """As captured, but the calls are made anew each time."""
    return Graph(Eager(call, calls), calls)


def replayed(graphs: dict[str, Graph], replays: int = REPLAYS) -> dict[str, float]:
    """Microseconds of one call of each: the median of its replays.

    The graphs take turns, so that what else happens on the machine hits all alike. Each is
    replayed twice before.
    """
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for turn in range(-2, replays):
        for name, one in graphs.items():
            begin.record()
            one.graph.replay()
            end.record()
            end.synchronize()
            if turn >= 0:
                taken[name].append(begin.elapsed_time(end) * 1000 / one.calls)
            if one.after is not None:
                one.after()
    return {name: median(values) for name, values in taken.items()}
