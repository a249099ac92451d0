# SPDX-License-Identifier: Apache-2.0
"""sacctl.bench and the helpers of benchmarks/ do their work, whatever time it takes here."""

from __future__ import annotations

import importlib
import json
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import libsac
from libsac.errors import NoSpaceError
from sacctl.bench import BENCHES
from sacctl.bench.interleave import mapped_files
from sacctl.bench.record import measure

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {"lookup": 5, "put": 2, "gather": 4, "interleave": 1}

needs_source = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="benchmarks/ is in the sources only"
)


@pytest.mark.parametrize("name", BENCHES)
def test_bench_measures_beside_its_limit_and_leaves_nothing(name: str) -> None:
    with libsac.embedded("64M") as pool:
        found = BENCHES[name](pool, pool_name="kv", size=8 << 20, repeats=3)
        assert pool.namespaces() == []
    assert (found["what"], found["pool"]) == (name, "kv")
    assert found["size_bytes"] == found["pages"] * found["page_bytes"]
    assert 0 < found["size_bytes"] <= 8 << 20
    assert len(found["results"]) == COUNTS[name]
    for result in found["results"]:
        assert result["units"] > 0
        assert 0 < result["calls"] <= 3
        assert 0 < result["p50_ns"] <= result["p99_ns"]
        assert result["limit_ns"] > 0
        assert result["ratio"] > 0
        assert result["limit"]
    json.dumps(found)


@pytest.mark.parametrize("name", BENCHES)
def test_bench_takes_what_room_there_is(name: str) -> None:
    with libsac.embedded("16M") as pool:
        found = BENCHES[name](pool, size=1 << 30, repeats=3)
        assert 0 < found["size_bytes"] < 16 << 20
        assert pool.namespaces() == []


def test_bench_says_that_there_is_no_room() -> None:
    with libsac.embedded("4M") as pool, pytest.raises(NoSpaceError, match="temporary"):
        BENCHES["put"](pool)


def test_failing_bench_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    # The package's names of the functions hide its modules of the same names.
    module = importlib.import_module("sacctl.bench.put")
    monkeypatch.setattr(module, "fill", broken)
    with libsac.embedded("16M") as pool:
        with pytest.raises(KeyboardInterrupt):
            BENCHES["put"](pool, size=4 << 20, repeats=3)
        assert pool.namespaces() == []


def test_interleave_names_the_files(tmp_path: Path) -> None:
    with libsac.embedded("64M", tmp_path / "pool", extents=2) as pool:
        found = BENCHES["interleave"](pool, size=16 << 20, repeats=3)
    names = [result["name"] for result in found["results"]]
    assert len(names) == 3
    assert names[0].startswith("all extents by turns: 64 of 64")
    assert "data.0" in names[1]
    assert "data.1" in names[2]


def test_mapped_files(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(bytes(8192))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        inside = np.frombuffer(memory, np.uint8)
        plain = np.ones(1 << 16, np.uint8)
        addresses = np.array([inside.ctypes.data + 4097, plain.ctypes.data], np.uint64)
        assert mapped_files(addresses) == [str(path), ""]
        del inside


def test_measure_gives_turns_in_order() -> None:
    seen: list[tuple[str, int]] = []
    result = measure(
        "x",
        lambda n: seen.append(("work", n)),
        lambda n: seen.append(("limit", n)),
        limit_name="y",
        unit="page",
        units=2,
        repeats=2,
        prepare=lambda n: seen.append(("prepare", n)),
    )
    assert seen == [(what, n) for n in range(5) for what in ("prepare", "work", "limit")]
    assert (result["calls"], result["units"], result["limit"]) == (2, 2, "y")


# ------------------------------------------------------------------------------ benchmarks/


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of benchmarks/, and forgets it afterwards."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


class DictStore:
    """The simplest store: a dict."""

    name = "dict"

    def __init__(self, work: ModuleType, broken: bool = False) -> None:
        self._work, self._broken = work, broken
        self.kept: dict[int, NDArray[np.uint8]] = {}

    def buffers(self, size: int, ring: int) -> Any:
        return self._work.buffers(size, ring)

    @contextmanager
    def session(self, source: Any, target: Any, count: int) -> Iterator[DictStore]:
        self.source, self.target, self.count = source, target, count
        yield self

    def batch(self, numbers: list[int]) -> list[int]:
        assert max(numbers) < self.count
        return numbers

    def put(self, batch: list[int]) -> None:
        for n in batch:
            self.kept[n] = self.source[n % len(self.source)].copy()

    def get(self, batch: list[int]) -> None:
        for n in batch:
            self.target[n % len(self.target)] = 0 if self._broken else self.kept[n]

    def exists(self, batch: list[int]) -> int:
        return sum(n in self.kept for n in batch)

    def found(self, answer: int) -> int:
        return answer

    def clear(self) -> None:
        self.kept.clear()


@needs_source
def test_peers_work_on_a_store_and_its_table(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, table = benchmark("peers.work"), benchmark("peers.table")
    monkeypatch.setattr(work, "RING_BYTES", 1 << 20)
    store = DictStore(work)
    figures = work.run(store, 2, [4096, 65536])
    assert store.kept == {}
    assert set(figures.put) == set(figures.get_batch_ratio) == {4096, 65536}
    assert set(figures.exists) == {1, 64, 2048}
    text = table.table([figures], [4096, 65536])
    assert text.count("dict") == 5
    assert "64 KiB" in text
    assert "2,048 keys" in text


@needs_source
def test_peers_work_notices_wrong_bytes(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = benchmark("peers.work")
    monkeypatch.setattr(work, "RING_BYTES", 1 << 20)
    with pytest.raises(RuntimeError, match="other bytes"):
        work.run(DictStore(work, broken=True), 1, [4096])


@needs_source
def test_peers_say_why_one_cannot_be_installed(benchmark: Any, tmp_path: Path) -> None:
    install = benchmark("peers.install")
    with pytest.raises(install.InstallError, match="it failed: the last line"):
        install._run("it", [sys.executable, "-c", "print('the last line'); exit(1)"])
    with pytest.raises(install.InstallError, match="No such file"):
        install._run("it", [str(tmp_path / "absent")])


@needs_source
def test_peers_have_loopback_only(benchmark: Any) -> None:
    isolation = benchmark("peers.isolation")
    try:
        words = isolation.command()
    except RuntimeError as error:
        pytest.skip(str(error))
    code = (
        "import socket; from peers.isolation import loopback_up; loopback_up(); "
        "s = socket.create_server(('127.0.0.1', 0)); "
        "socket.create_connection(s.getsockname()).close(); "
        "print([name for _, name in socket.if_nameindex()])"
    )
    done = subprocess.run(
        [*words, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")},
    )
    assert done.stdout.strip() == "['lo']"


@needs_source
def test_benchmarks_own_memory(benchmark: Any) -> None:
    own_memory = benchmark("daemon").own_memory
    before = own_memory(os.getpid())
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE) as memory:
        memory[::4096] = b"x" * (len(memory) // 4096)
        assert own_memory(os.getpid()) - before >= 60 << 20


@needs_source
def test_benchmarks_against_a_daemon_of_their_own(benchmark: Any) -> None:
    connected = benchmark("connected")
    before = set(Path("/dev/shm").glob("sac-bench-*"))
    section = connected.run(3, pages=4096, rows=4096)
    assert len(section.results) == 3 * len(connected.KINDS)
    assert all(result.value > 0 for result in section.results)
    assert set(Path("/dev/shm").glob("sac-bench-*")) <= before


@needs_source
@pytest.mark.skipif(shutil.which("c++") is None, reason="the bare loop needs a compiler")
def test_benchmarks_of_many_processes(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = benchmark("processes")
    monkeypatch.setattr(processes, "PROCESSES", 2)
    monkeypatch.setattr(processes, "SPELL_S", 0.05)
    section = processes.run(rows=8192, rounds=1)
    assert all(result.value > 0 for result in section.results)


@needs_source
def test_house_tells_why_the_daemon_does_not_start(benchmark: Any, tmp_path: Path) -> None:
    house = benchmark("house")
    made = house.House(tmp_path / "house")
    (tmp_path / "house" / "sac.toml").write_text("[daemon]\nnonsense = 1\n")
    with pytest.raises(RuntimeError, match=r"did not start: .*nonsense"), made:
        pass
    assert not (tmp_path / "house").exists()
