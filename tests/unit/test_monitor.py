# SPDX-License-Identifier: Apache-2.0
"""The monitor: a trace of its own; bad memory is told to the daemon, over its restarts too."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from unit.cli_fake import FakeDaemon
from unit.faults_kit import CxlHouse, cxl_house, trace_lines

from sacctl.cli import root
from sacctl.cxl.read import read
from sacctl.cxl.tracefs import Trace, read_poison
from sacctl.daemon import monitor as monitor_module
from sacctl.daemon.monitor import Monitor, watch
from sacctl.daemon.notify import Notifier
from sacctl.daemon.signals import Signals
from sacctl.errors import CtlError, NotFoundError

TRACING = "/sys/kernel/tracing"


class Kernel:
    """tracefs of the simulated machine: the instance's files, a pipe for its trace."""

    def __init__(self, house: CxlHouse, name: str) -> None:
        self.house = house
        self.folder = house.sysfs.at(f"{TRACING}/instances/{name}")
        (self.folder / "events/cxl").mkdir(parents=True)
        for file in ("events/cxl/enable", "buffer_percent", "trace"):
            (self.folder / file).write_text("")
        os.mkfifo(self.folder / "trace_pipe")
        # Both ends, so that opening and writing never wait.
        self.fd = os.open(self.folder / "trace_pipe", os.O_RDWR | os.O_NONBLOCK)
        self.seen = 0

    def say(self, *lines: str) -> None:
        os.write(self.fd, "".join(f"{line}\n" for line in lines).encode())

    def pass_on(self) -> None:
        """What the machine's tracepoints have said since."""
        new = self.house.machine.events[self.seen :]
        self.seen += len(new)
        if new:
            # The machine says it shortly; this is how the kernel prints it.
            self.say(*(f"x-1 [000] ..... 1.5: {text} trace_type=List" for text in new))

    def value(self, name: str) -> str:
        return (self.folder / name).read_text()


class FakeLink:
    """A daemon that is there or not, and what it was told."""

    def __init__(self, house: CxlHouse) -> None:
        self.pools = [house.pool]
        self.there = True
        self.told: list[tuple[int, int, int]] = []

    def __call__(self) -> FakeLink:
        if not self.there:
            raise NotFoundError("no daemon")
        return self

    def __enter__(self) -> FakeLink:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, op: str, **args: Any) -> dict[str, Any]:
        if op == "pool.list":
            return {"pools": self.pools}
        assert op == "pool.quarantine"
        if args["pool"] != "kv":
            raise NotFoundError("no such pool")
        self.told.append((args["extent"], args["offset"], args["bytes"]))
        return {"pages": 2}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CxlHouse]:
    with cxl_house(tmp_path, "2hb2") as made:
        yield made


@pytest.fixture
def kernel(house: CxlHouse) -> Kernel:
    return Kernel(house, "sac")


class Case:
    """A monitor on the simulated machine. poison() goes the whole way of a real one."""

    def __init__(self, house: CxlHouse, kernel: Kernel, trace: Trace) -> None:
        self.house, self.kernel, self.link = house, kernel, FakeLink(house)
        self.monitor = Monitor(house.sysfs, trace, cast(Any, self.link))
        self.start = read(house.sysfs).regions[0].start or 0

    def event(self, hpa: int, dpa: int = 0x1000, size: int = 64, kind: str = "List") -> None:
        line = trace_lines("7.3")[0]
        line = line.replace("hpa=0x4d0008000", f"hpa={hpa:#x}").replace(
            "dpa=0x4000", f"dpa={dpa:#x}"
        )
        line = line.replace("dpa_length=0x80", f"dpa_length={size:#x}")
        line = line.replace("trace_type=List", f"trace_type={kind}")
        self.kernel.say(line.replace("region=region2", f"region={self.house.region}"))


@pytest.fixture
def case(house: CxlHouse, kernel: Kernel) -> Iterator[Case]:
    with Trace(house.sysfs, "sac") as trace:
        made = Case(house, kernel, trace)
        made.monitor.tell()
        yield made


# -------------------------------------------------------------------------- the trace


def test_the_trace_is_switched_on_and_off(house: CxlHouse, kernel: Kernel) -> None:
    with Trace(house.sysfs, "sac") as trace:
        assert kernel.value("events/cxl/enable") == "1"
        assert kernel.value("buffer_percent") == "0"
        assert trace.read() == []
        kernel.say(trace_lines("6.12")[0], "CPU:1 [LOST 7 EVENTS]", "# a comment")
        assert trace.wait(1.0)
        assert len(trace.read()) == 1
        assert trace.lost == 7
        # A line that comes in two pieces.
        whole = trace_lines("7.3")[1] + "\n"
        os.write(kernel.fd, whole[:50].encode())
        assert trace.read() == []
        os.write(kernel.fd, whole[50:].encode())
        assert [e.dpa for e in trace.read()] == [0x1000]
    assert kernel.value("events/cxl/enable") == "0"


def test_without_tracefs(house: CxlHouse) -> None:
    # Of a simulated machine it cannot be mounted either.
    with (
        pytest.raises(NotFoundError, match="simulated machine has no trace"),
        Trace(house.sysfs, "sac"),
    ):
        pass


def test_a_kernel_without_cxl_events(house: CxlHouse) -> None:
    instances = house.sysfs.at(f"{TRACING}/instances")
    instances.mkdir(parents=True)
    with pytest.raises(NotFoundError, match="no CXL events"), Trace(house.sysfs, "sac"):
        pass
    assert list(instances.iterdir()) == []  # nothing is left


def test_poison_lists(house: CxlHouse, kernel: Kernel) -> None:
    house.machine.poison(0x100, 0x4000)
    names = [m.name for m in read(house.sysfs).memdevs]
    with Trace(house.sysfs, "sac") as trace:
        # The machine's events reach the pipe while the list is read.
        write = house.sysfs.write

        def slowly(path: str, value: str) -> None:
            write(path, value)
            kernel.pass_on()

        house.sysfs.write = slowly  # type: ignore[method-assign]
        events, failed = read_poison(house.sysfs, trace, [*names, "mem9"])
    assert [(e.serial, e.dpa, e.damaged) for e in events] == [(0x100, 0x4000, True)]
    assert failed == ["mem9: it has no poison list"]


# ------------------------------------------------------------------------ the monitor


def test_bad_memory_is_told_once(case: Case) -> None:
    case.event(case.start + 0x2000)
    assert case.monitor.hear() is True
    assert [t.pages for t in case.monitor.tell()] == [2]
    assert case.link.told == [(0, 0x2000, 64)]
    case.event(case.start + 0x2000)  # the list, read again
    case.monitor.hear()
    assert case.monitor.tell() == []
    assert case.monitor.hear() is False


def test_metadata(case: Case) -> None:
    region = read(case.house.sysfs).regions[0]
    case.event(case.start + region.bytes - 64)
    case.monitor.hear()
    case.monitor.tell()
    assert case.link.told == [(-1, (16 << 20) - 64, 64)]


def test_what_is_not_bad_is_not_told(case: Case) -> None:
    case.event(case.start, kind="Clear")
    for line in trace_lines("6.12"):
        if "memory_module" in line or "correctable" in line:
            case.kernel.say(line)
    assert case.monitor.hear() is False
    case.monitor.tell()
    assert case.link.told == []
    assert case.monitor.events > 2


def test_a_daemon_that_is_away_is_told_later(case: Case) -> None:
    case.link.there = False
    case.event(case.start)
    case.monitor.hear()
    with pytest.raises(CtlError):
        case.monitor.tell()
    case.link.there = True
    case.monitor.tell()
    assert case.link.told == [(0, 0, 64)]


def test_a_daemon_that_was_restarted_is_told_again(case: Case) -> None:
    case.event(case.start)
    case.monitor.hear()
    case.monitor.tell()
    case.link.pools = [{**case.house.pool, "incarnation": 2}]
    case.monitor.tell()
    assert case.link.told == [(0, 0, 64)] * 2


def test_an_address_of_a_region_that_was_taken_apart_is_dropped(case: Case) -> None:
    """Another region may lie there now: what is not bad must stay."""
    case.link.there = False
    case.event(case.start)
    case.monitor.hear()
    case.house.machine.unplug(0x100)
    case.link.there = True
    case.monitor.tell()
    assert case.link.told == []
    assert case.monitor.bad == []


def test_a_pool_that_went_meanwhile(case: Case) -> None:
    case.link.pools = [{**case.house.pool, "name": "other"}]
    case.event(case.start)
    case.monitor.hear()
    assert case.monitor.tell() == []
    assert any("no such pool" in note for note in case.monitor.notes)


def test_what_cannot_be_placed_is_said(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    case.event((1 << 64) - 1)
    case.monitor.hear()
    assert case.monitor.tell() == []
    assert any("is spread over 2 devices" in note for note in case.monitor.notes)


def test_lost_events_make_it_read_the_lists(case: Case) -> None:
    case.kernel.say("CPU:0 [LOST 3 EVENTS]")
    assert case.monitor.hear() is True
    asked: list[Any] = []
    case.monitor.read_lists = asked.append  # type: ignore[method-assign, assignment]
    case.monitor.tell()
    assert len(asked) == 1


def test_it_runs_until_a_signal(
    house: CxlHouse, kernel: Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(monitor_module, "PROBE", 0.1)
    monkeypatch.setattr(monitor_module, "TURN", 0.02)
    link, said = FakeLink(house), Notifier({})
    states: list[str] = []
    for name in ("ready", "status"):
        monkeypatch.setattr(said, name, states.append)
    monkeypatch.setattr(said, "stopping", lambda: states.append("stopping"))
    start = read(house.sysfs).regions[0].start or 0
    ending = threading.Event()

    class Caught:
        def wait(self, timeout: float) -> signal.Signals | None:
            return signal.SIGTERM if ending.is_set() else None

    run = threading.Thread(
        target=watch, args=(house.sysfs, link, said, cast(Signals, Caught()), 3600.0)
    )
    run.start()
    try:
        for _ in range(500):
            if states:
                break
            time.sleep(0.01)
        link.there = False
        line = trace_lines("7.3")[0].replace("hpa=0x4d0008000", f"hpa={start + 4096:#x}")
        kernel.say(line.replace("region=region2", f"region={house.region}"))
        for _ in range(500):
            if any("no daemon" in state for state in states):
                break
            time.sleep(0.01)
        assert link.told == []
        link.there = True
        for _ in range(500):
            if link.told:
                break
            time.sleep(0.01)
    finally:
        ending.set()
        run.join(10)
    assert link.told == [(0, 4096, 128)]
    assert states[-1] == "stopping"
    assert kernel.value("events/cxl/enable") == "0"


def test_a_signal_that_has_come_is_taken_without_waiting() -> None:
    with Signals((signal.SIGUSR1,)) as signals:
        assert signals.wait(0) is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.wait(0) is signal.SIGUSR1
        assert signals.wait(0) is None


# ------------------------------------------------------------------------ the command


@pytest.fixture
def daemon(
    house: CxlHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeDaemon]:
    monkeypatch.setenv("SAC_CONFIG", str(tmp_path / "sac.toml"))
    (tmp_path / "sac.toml").write_text("")
    answers: dict[str, Any] = {
        "pool.list": {"pools": [house.pool]},
        "pool.quarantine": {"pages": 1},
    }
    fake = FakeDaemon(tmp_path / "s", answers)
    monkeypatch.setenv("SAC_SOCKET", str(fake.path))
    yield fake
    fake.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_once(house: CxlHouse, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(house, f"sac-once-{os.getpid()}")
    start = read(house.sysfs).regions[0].start or 0
    line = trace_lines("7.3")[0].replace("hpa=0x4d0008000", f"hpa={start:#x}")
    line = line.replace("region=region2", f"region={house.region}")
    heard = Monitor.read_lists

    def list_(self: Monitor, pools: Any) -> None:
        kernel.say(line)
        heard(self, pools)

    monkeypatch.setattr(Monitor, "read_lists", list_)
    words = ["--sysroot", str(house.sysfs.root), "device", "monitor", "--once"]
    done = CliRunner().invoke(root, ["-o", "json", *words])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["schema"] == "sac.device.monitor/1"
    assert found["poison"][0]["dpa"] == 0x4000
    assert found["quarantined"] == [
        {"pool": "kv", "extent": 0, "offset": 0, "bytes": 128, "pages": 1}
    ]


def test_only_root_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = CliRunner().invoke(root, ["device", "monitor", "--once"])
    assert done.exit_code == 5
    assert "only root" in done.stderr
