# SPDX-License-Identifier: Apache-2.0
"""The daemon as a process: start, service manager, signals, reload, kill."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from system.daemon_kit import LAYOUT, MAIN, Place, clean

from sacctl.errors import NotFoundError


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, ["daemon.status_interval = 1"])
    yield made
    made.close()


# ------------------------------------------------------------------- start and service manager


def test_start_status_and_clean_stop(place: Place) -> None:
    place.make_pool()
    place.start()
    result = place.ask("status")
    assert result["daemon"]["state"] == "serving"
    assert result["daemon"]["socket"] == str(place.socket)
    assert [(p["name"], p["state"]) for p in result["pools"]] == [("kv", "serving")]
    assert not clean(place)
    assert place.stop() == 0
    assert clean(place)
    assert "every pool is marked clean" in place.log.read_text()
    with pytest.raises(NotFoundError, match="no daemon listens"):
        place.ask("status")


def test_sigint_too(place: Place) -> None:
    place.make_pool()
    place.start()
    assert place.stop(signal.SIGINT) == 0
    assert clean(place)


def test_notifications_of_a_whole_life(place: Place) -> None:
    place.make_pool()
    place.start(wait=False, WATCHDOG_USEC="1500000")
    ready = place.expect("READY=1")
    assert ready["STATUS"] == "1 pool, 0 namespaces, 0 clients"
    started = time.monotonic()
    for _ in range(3):
        place.expect("WATCHDOG=1")
    assert time.monotonic() - started < 4.5  # more often than every 1.5 s
    place.expect("STATUS=1 pool, 0 namespaces, 0 clients")
    assert place.process is not None
    place.process.send_signal(signal.SIGHUP)
    assert int(place.expect("RELOADING=1")["MONOTONIC_USEC"]) > 0
    place.expect("READY=1")
    place.process.send_signal(signal.SIGTERM)
    place.expect("STOPPING=1")
    assert place.process.wait(30) == 0


def test_socket_of_the_service_manager(place: Place) -> None:
    """LISTEN_PID must be the daemon's own, so a shell puts it there and execs."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = place.folder / "given.sock"
    listening.bind(str(path))
    listening.listen(16)
    place.make_pool()
    with place.log.open("ab") as log:
        place.process = subprocess.Popen(
            ["sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&9 9<&-', "sh",
             sys.executable, "-P", "-c", MAIN],
            env=place.env(), stderr=log, pass_fds=(9,),
            preexec_fn=lambda: os.dup2(listening.fileno(), 9),
        )  # fmt: skip
    place.expect("READY=1")
    assert not place.socket.exists()
    place.socket = path
    status = place.ask("status")["daemon"]
    assert (status["pools"], status["socket"]) == (1, str(path))
    assert place.ask("reload")["restart"] == []
    assert place.stop() == 0
    assert path.exists()  # the manager's
    listening.close()


def test_a_second_daemon_is_refused(place: Place) -> None:
    place.start()
    second = place.spawn()
    assert second.wait(30) == 6
    assert "another daemon runs in" in place.log.read_text()
    assert place.ask("status")["daemon"]["state"] == "serving"


def test_a_run_dir_that_others_may_write_is_refused(place: Place) -> None:
    run = place.folder / "run"
    run.mkdir()
    run.chmod(0o777)
    process = place.spawn()
    assert process.wait(30) == 4
    assert "chmod" in place.log.read_text()


def test_open_files_are_raised_to_the_hard_limit(place: Place) -> None:
    process = place.start()
    limits = Path(f"/proc/{process.pid}/limits").read_text()
    soft, hard = next(
        line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files")
    )
    assert soft == hard


# ----------------------------------------------------------------------------------- reload


def test_reload(place: Place) -> None:
    place.make_pool("first")
    place.start()
    place.make_pool("second")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place.write(
        [
            f"metrics.listen = '127.0.0.1:{port}'",
            "daemon.max_clients = 5",
            "log.level = 'debug'",
        ]
    )
    result = place.ask("reload")
    assert result["pools"] == ["second"]
    assert set(result["applied"]) == {"metrics.listen", "log.level", "daemon.status_interval"}
    assert result["restart"] == ["daemon.max_clients"]
    assert result["errors"] == []
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    assert 'sac_pool_bytes{pool="first"}' in text
    # Broken settings change nothing; the daemon goes on.
    place.config.write_text("[daemon]\nnonsense = 1\n")
    assert "daemon.nonsense" in place.ask("reload")["errors"][0]
    assert place.ask("status")["daemon"]["pools"] == 2


# -------------------------------------------------------------------------------------- kill


def test_sigkill_and_again(place: Place) -> None:
    place.make_pool()
    for turn in range(5):
        place.start()
        with place.link() as link:
            if turn == 0:
                link.call("namespace.create", name="chat", layout=LAYOUT)
            assert [n["name"] for n in link.call("namespace.list")["namespaces"]] == ["chat"]
            pool = link.call("pool.show", name="kv")["pool"]
        assert pool["recovered"] is (turn > 0)
        assert pool["incarnation"] >= turn + 1
        place.stop(signal.SIGKILL)
        assert not clean(place)
    place.start()
    codes = [f["code"] for f in place.ask("health")["findings"]]
    assert codes == ["SAC208"]
    assert place.stop() == 0
    place.start()
    assert place.ask("health")["findings"] == []
