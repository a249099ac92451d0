# SPDX-License-Identifier: Apache-2.0
"""Smaller parts of the daemon: notifications, logs, latencies, metrics over HTTP."""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sacctl.daemon import log as log_module
from sacctl.daemon import notify as notify_module
from sacctl.daemon.latency import UPPER, latency_record
from sacctl.daemon.log import JournalHandler, Log, setup, to_journal
from sacctl.daemon.metrics import MetricsListener
from sacctl.daemon.notify import Handed, Notifier, take_handed
from sacctl.errors import CtlError, UsageError

# ---------------------------------------------------------------------- notifications


def manager(address: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind("\0" + address[1:] if address.startswith("@") else address)
    made.settimeout(5)
    return made


@pytest.mark.parametrize("abstract", [False, True])
def test_notifications(tmp_path: Path, abstract: bool) -> None:
    address = f"@sac-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with manager(address) as receiver:
        env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "3000000"}
        notifier = Notifier(env)
        assert env == {}  # no child is to have them
        assert notifier.watchdog == 3.0
        notifier.ready("2 pools\nX=1")
        assert receiver.recv(4096) == b"READY=1\nSTATUS=2 pools X=1"
        notifier.alive()
        assert receiver.recv(4096) == b"WATCHDOG=1"
        notifier.reloading()
        fields = dict(f.split("=") for f in receiver.recv(4096).decode().split("\n"))
        assert fields["RELOADING"] == "1"
        assert int(fields["MONOTONIC_USEC"]) > 0
        notifier.stopping()
        assert receiver.recv(4096).startswith(b"STOPPING=1")
    notifier.alive()  # the manager has gone: no error
    notifier.close()
    notifier.alive()


def test_files_to_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These must arrive: a manager that is busy is waited for, one that hangs is not."""
    monkeypatch.setattr(notify_module, "PATIENCE", 0.3)
    with manager(str(tmp_path / "notify")) as receiver, (tmp_path / "x").open("wb") as file:
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert notifier.there
        assert notifier.keep("pool.kv.meta", file.fileno())
        text, fds, _, _ = socket.recv_fds(receiver, 4096, 4)
        assert text == b"FDSTORE=1\nFDPOLL=0\nFDNAME=pool.kv.meta"
        assert os.fstat(fds[0]).st_ino == os.fstat(file.fileno()).st_ino
        os.close(fds[0])
        assert notifier.drop("pool.kv.meta")
        assert receiver.recv(4096) == b"FDSTOREREMOVE=1\nFDNAME=pool.kv.meta"
        for _ in range(2000):  # more than a socket holds
            notifier.alive()
        assert not notifier.keep("pool.kv.0", file.fileno())
        reading = threading.Timer(0.1, lambda: [receiver.recv(4096) for _ in range(5)])
        reading.start()
        assert notifier.keep("pool.kv.0", file.fileno())
        reading.join()
        notifier.close()
    assert not notifier.there
    assert not notifier.drop("pool.kv.0")
    assert not Notifier({}).keep("pool.kv.0", 0)


def test_no_manager() -> None:
    notifier = Notifier({"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"})
    assert notifier.watchdog == 0.0  # another process's
    notifier.ready("x")
    assert Notifier({"NOTIFY_SOCKET": "relative", "WATCHDOG_USEC": "x"}).watchdog == 0.0


def in_child(count: str, make: str, names: str = "") -> str:
    """The socket that take_handed() gives in a child whose descriptor 3 is what make opens.
    names: LISTEN_FDNAMES."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            made = eval(make)
            os.dup2(made.fileno(), 3)
            env = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count}
            env |= {"LISTEN_FDNAMES": names} if names else {}
            try:
                given = take_handed(env).listening
                said = f"{given} {given is not None and os.get_inheritable(3)}"
            except UsageError as error:
                said = f"error {error}"
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        return file.read()


LISTENING = "(lambda s: (s.bind('\\0sac-x' + str(os.getpid())), s.listen(1), s)[2])"
LISTENING += "(socket.socket(socket.AF_UNIX))"


def test_socket_of_the_service_manager() -> None:
    assert in_child("1", LISTENING) == "3 False"


@pytest.mark.parametrize("make", ["os.fdopen(os.pipe()[0])", "socket.socket(socket.AF_UNIX)"])
def test_what_is_no_listening_socket(make: str) -> None:
    assert in_child("1", make).startswith("error ")


@pytest.mark.parametrize("name", ["pool.kv.meta", "pool.kv.-1", "pool." + "x" * 250])
def test_a_kept_file_of_no_use_does_not_stop_the_daemon(name: str) -> None:
    assert in_child("1", "os.fdopen(os.pipe()[0])", name) == "None False"


def test_socket_for_another_process() -> None:
    mine = str(os.getpid())
    for env in ({"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {}):
        assert take_handed(env) == Handed()
    assert take_handed({"LISTEN_PID": mine, "LISTEN_FDS": "0"}) == Handed()


# ------------------------------------------------------------------------------- logs


@pytest.fixture
def _quiet() -> Iterator[None]:
    yield
    setup("error", "text", io.StringIO())


@pytest.mark.usefixtures("_quiet")
def test_text_stays_on_one_line() -> None:
    out = io.StringIO()
    setup("info", "text", out)
    log = Log()
    log.info("client a\nb came", pool="kv", client="\x1b[31m")
    log.debug("not shown")
    line = out.getvalue()
    assert line.count("\n") == 1
    assert "info: client a\\nb came (pool=kv client=\\x1b[31m)" in line


@pytest.mark.usefixtures("_quiet")
def test_json_lines() -> None:
    out = io.StringIO()
    setup("debug", "json", out)
    log = Log()
    log.warning('a "quoted" message', namespace="chat", unknown="x")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["level"], first["namespace"]) == ("warning", "chat")
    assert "unknown" not in first
    assert "ValueError: why" in second["trace"]


def journal_fields(datagram: bytes) -> dict[str, str]:
    fields, at = {}, 0
    while at < len(datagram):
        end = datagram.index(b"\n", at)
        name, equals, value = datagram[at:end].partition(b"=")
        at = end + 1
        if not equals:
            (length,) = struct.unpack_from("<Q", datagram, at)
            value = datagram[at + 8 : at + 8 + length]
            at += 8 + length + 1
        fields[name.decode()] = value.decode()
    return fields


@pytest.mark.usefixtures("_quiet")
def test_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setattr(JournalHandler.__init__, "__defaults__", (str(tmp_path / "journal"),))
    out = io.StringIO()
    setup("info", "journal", out)
    Log().info("nobody listens yet", pool="kv")
    assert "nobody listens yet" in out.getvalue()  # the fallback
    with manager(str(tmp_path / "journal")) as journal:
        Log().error("two\nlines", pool="kv", namespace="chat", client="ab")
        fields = journal_fields(journal.recv(65536))
    assert fields["MESSAGE"] == "two\nlines"
    assert fields["PRIORITY"] == "3"
    assert (fields["SAC_POOL"], fields["SAC_NAMESPACE"], fields["SAC_CLIENT"]) == (
        "kv", "chat", "ab",
    )  # fmt: skip
    assert fields["CODE_FILE"].endswith("test_daemon_parts.py")
    assert fields["CODE_FUNC"] == "test_journal"
    assert int(fields["CODE_LINE"]) > 0


def test_journal_stream_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "x").open("w") as file:
        found = os.fstat(file.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        assert to_journal(file)
        monkeypatch.setenv("JOURNAL_STREAM", "1:2")
        assert not to_journal(file)
        monkeypatch.setenv("JOURNAL_STREAM", "nonsense")
        assert not to_journal(file)
        monkeypatch.delenv("JOURNAL_STREAM")
        assert not to_journal(file)
    assert not to_journal(io.StringIO())


# -------------------------------------------------------------------------- latencies


def test_buckets_are_those_of_the_protocol() -> None:
    # Bucket 4 e + f ends where 4 e + f + 1 begins.
    assert UPPER[4 * 10 - 1] == 1 << 10
    assert UPPER[4 * 10] == (1 << 10) * 5 // 4
    assert UPPER[-1] == 1 << 32
    assert sorted(UPPER) == UPPER


def test_percentiles() -> None:
    counts = np.zeros(128, np.uint64)
    counts[40], counts[60] = 99, 1
    record = latency_record(counts)
    assert record["count"] == 100
    assert record["p50_ns"] == record["p99_ns"] == UPPER[40]
    assert record["p999_ns"] == UPPER[60]
    assert record["buckets"] == [[UPPER[40], 99], [UPPER[60], 1]]


def test_no_counts_and_hostile_counts() -> None:
    assert latency_record(np.zeros(128, np.uint64))["p50_ns"] == 0
    record = latency_record(np.full(128, np.iinfo(np.uint64).max, np.uint64))
    assert record["count"] == 128 * (2**64 - 1)
    assert record["p50_ns"] == UPPER[63]


# ------------------------------------------------------------------- metrics over HTTP


@pytest.fixture
def listener() -> Iterator[MetricsListener]:
    made = MetricsListener(lambda: "sac_x 1\n")
    yield made
    made.close()


def get(listener: MetricsListener, path: str, **headers: str) -> tuple[int, str, str]:
    assert listener.address is not None
    connection = http.client.HTTPConnection(*listener.address[:2], timeout=5)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("where", ["127.0.0.1:0", "[::1]:0"])
def test_metrics(listener: MetricsListener, where: str) -> None:
    try:
        listener.listen(where)
    except CtlError:
        if where.startswith("["):
            pytest.skip("no IPv6 here")
        raise
    code, kind, text = get(listener, "/metrics")
    assert (code, text) == (200, "sac_x 1\n")
    assert kind.startswith("text/plain; version=0.0.4")
    assert get(listener, "/")[0] == 404
    assert get(listener, "/metrics", Host="evil.example:9478")[0] == 403
    for host in ("localhost", "localhost:9478", "127.0.0.1", "[::1]", "[::1]:9478"):
        assert get(listener, "/metrics", Host=host)[0] == 200
    assert listener.address is not None
    with socket.create_connection(listener.address[:2], 5) as raw:
        raw.sendall(b"HEAD /none HTTP/1.0\r\n\r\n")
        assert raw.makefile("rb").read().endswith(b"\r\n\r\n")


def test_metrics_that_fail(listener: MetricsListener) -> None:
    listener._render = lambda: str(1 // 0)
    listener.listen("127.0.0.1:0")
    code, _, text = get(listener, "/metrics")
    assert code == 500
    assert "ZeroDivisionError" in text


def test_a_slow_reader_hinders_nobody(listener: MetricsListener) -> None:
    listener.listen("127.0.0.1:0")
    assert listener.address is not None
    slow = [socket.create_connection(listener.address[:2]) for _ in range(3)]
    for one in slow:
        one.sendall(b"GET /metr")
    assert get(listener, "/metrics")[0] == 200
    for one in slow:
        one.close()


def test_the_port_is_taken(listener: MetricsListener) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CtlError, match="cannot listen for metrics"):
            listener.listen(f"127.0.0.1:{port}")
    assert listener.address is None
    listener.listen("")
    assert not any(t.name == "metrics" for t in threading.enumerate())
