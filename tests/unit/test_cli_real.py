# SPDX-License-Identifier: Apache-2.0
"""The command line and the real daemon: what docs/sacctl.md shows, and records with the keys
of the golden files."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.test_cli_json import GOLDEN

import libsac

ROOT = Path(__file__).resolve().parents[2]
SACCTL = [sys.executable, "-m", "sacctl"]


class House:
    """A daemon with settings, socket, records and pools in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = folder / "sac.toml"
        config.write_text(
            f'[daemon]\nrun_dir = "{folder}/run"\n[pools]\ndir = "{folder}/pools.d"\n'
        )
        self.env = {**os.environ, "SAC_CONFIG": str(config), "PYTHONSAFEPATH": "1"}
        self.env["SAC_SOCKET"] = f"{folder}/run/sacd.sock"
        self.socket = folder / "run" / "sacd.sock"
        self.log = (folder / "log").open("w")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*SACCTL, "daemon", "run"], env=self.env, stdout=self.log, stderr=self.log
        )
        end = time.monotonic() + 60
        while self.run("daemon", "status").returncode:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)

    def run(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*SACCTL, *words],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def ok(self, words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self.run(*words.split())
        said = (words, done.stdout, done.stderr, (self.folder / "log").read_text())
        assert done.returncode == code, said
        return done

    def json(self, words: str, code: int = 0) -> Any:
        return json.loads(self.ok(f"-o json {words}", code).stdout)

    def create(self, name: str = "kv", size: str = "2x32M") -> None:
        self.ok(f"pool create {name} --emulate {size} --path {self.folder}/{name}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.wait(30) in (0, -signal.SIGKILL)
        self.log.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


# ------------------------------------------------------------------------------- docs


def shown() -> list[str]:
    text = (ROOT / "docs" / "sacctl.md").read_text()
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.M | re.S)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


def test_what_the_page_shows_works(house: House, tmp_path: Path) -> None:
    """Every command of docs/sacctl.md, in its order; the pools lie in this test's folder."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "sacctl"
    command.write_text(f'#!/bin/sh\nexec {" ".join(SACCTL)} "$@"\n')
    command.chmod(0o755)
    house.env["PATH"] = f"{tmp_path}/bin:{house.env['PATH']}"
    lines = shown()
    assert len(lines) > 20
    for line in lines:
        if line.endswith("&"):  # that daemon runs already
            assert line == "sacctl daemon run &"
            continue
        made = re.match(r"sacctl pool create (\w+)", line)
        if made:
            line += f" --path {tmp_path}/{made[1]}"
        done = subprocess.run(
            ["bash", "-c", line],
            env=house.env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)


# ---------------------------------------------------------------------------- records


def keys_of(value: Any) -> Any:
    """The keys of a record and of what is in it; of a list those of all its items."""
    if isinstance(value, dict):
        return {key: keys_of(inner) for key, inner in value.items()}
    if isinstance(value, list):
        records = [keys_of(inner) for inner in value if isinstance(inner, dict)]
        merged: dict[str, Any] = {}
        for record in records:
            merged |= record
        return [merged] if records else []
    return None


def same_keys(got: Any, golden: Any, where: str) -> None:
    if isinstance(golden, dict):
        assert isinstance(got, dict), where
        assert set(got) == set(golden), where
        for key in golden.keys() - {"labels"}:  # their keys are the metric's own
            same_keys(got[key], golden[key], f"{where}.{key}")
    elif isinstance(golden, list):
        assert isinstance(got, list), where
        if got and golden:
            same_keys(got[0], golden[0], f"{where}[]")


def check(house: House, name: str, words: str, code: int = 0) -> Any:
    got = house.json(words, code)
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    assert got["schema"] == golden["schema"]
    same_keys(keys_of(got), keys_of(golden), name)
    return got


def test_records_of_the_daemon_are_those_of_the_golden_files(
    house: House, tmp_path: Path
) -> None:
    at = f"--path {tmp_path}/kv"
    assert check(house, "pool.create", f"pool create kv --emulate 2x32M {at}")["created"]
    assert not house.json(f"pool create kv --emulate 2x32M {at}")["created"]
    house.ok(f"pool create kv --emulate 3x32M {at}", 1)
    made = "namespace create chat --layout deepseek-v3.2-fp8 --layers 2 --quota 32M"
    assert check(house, "namespace.create", made)["created"]
    assert not house.json(made)["created"]
    house.ok(f"{made} --mode 0644", 1)
    with libsac.connect("kv", socket=str(house.socket), name="tester") as pool:
        ns = pool.namespace("chat")
        keys = ns.keys(range(256))
        with ns.put(keys) as put:
            for plane in ns.layout.planes:
                for layer in plane.layers:
                    shape = (len(put.missing), plane.rows, plane.row_bytes)
                    put.write(plane.name, layer, np.zeros(shape, np.uint8))
            put.commit()
        with ns.pin(keys) as prefix:
            assert prefix.pages == 4
            shown = check(house, "namespace.show", "namespace show chat")
            assert shown["namespace"]["pages"] == 4
            assert shown["clients"][0]["name"] == "tester"
            clients = check(house, "client.list", "client list")["clients"]
            assert [c["pid"] for c in clients] == [os.getpid()]
            assert clients[0]["pinned"] == 4
            stats = check(house, "stats", "stats")
            assert stats["namespaces"][0]["pages"] == 4
            assert stats["namespaces"][0]["latency"]["pin"]["count"] >= 1
            flushed = house.ok("-o json namespace flush chat", 7)
            assert json.loads(flushed.stdout)["pages"] == 4
            assert "tester" in house.ok("namespace flush chat", 7).stdout
            refused = house.run("pool", "destroy", "kv", "--yes")
            assert refused.returncode == 4, refused.stderr
        check(house, "namespace.flush", "namespace flush chat")
        check(house, "namespace.verify", "namespace verify chat")
    check(house, "namespace.resize", "namespace resize chat --quota 16M")
    check(house, "namespace.list", "namespace list")
    check(house, "pool.list", "pool list")
    check(house, "pool.show", "pool show kv")
    check(house, "pool.extend", "pool extend kv --emulate 16M")
    check(house, "daemon.status", "daemon status")
    check(house, "daemon.reload", "daemon reload")
    check(house, "health", "health")
    check(house, "metrics", "metrics")
    check(house, "bench.lookup", "bench lookup --size 4M --repeats 3")
    check(house, "namespace.destroy", "namespace destroy chat --yes")
    check(house, "pool.destroy", "pool destroy kv --yes")
    assert not (tmp_path / "kv").exists()


VICTIM = """
import libsac, sys
pool = libsac.connect("kv", socket=sys.argv[1], name="victim")
pool.namespace("x", libsac.Layout([libsac.Plane("r", [0], 64)], 16))
print("there", flush=True)
sys.stdin.read()
"""


def test_a_client_is_evicted(house: House, tmp_path: Path) -> None:
    house.create()
    child = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(house.socket)],
        env=house.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        house.ok(f"client evict {child.pid}", 4)
        assert house.json(f"client evict {child.pid} --yes")["pid"] == child.pid
        assert house.json("client list")["clients"][0]["evicted"]
        assert house.json(f"client evict {child.pid} --kill --yes")["killed"]
        assert child.wait(30) == -signal.SIGKILL
    finally:
        child.kill()
        child.communicate()


def test_pools_with_and_without_the_daemon(house: House, tmp_path: Path) -> None:
    house.create()
    house.ok("namespace create chat --layout glm-5-fp8 --layers 2")
    house.process.kill()
    house.process.wait()
    house.ok("stats", 3)
    house.ok("health", 30)
    assert house.json("pool list")["pools"][0]["state"] == "offline"
    house.ok(f"pool create other --emulate 16M --path {tmp_path}/other")
    house.ok("pool extend other --emulate 16M")
    house.start()
    served = house.json("pool list")["pools"]
    assert [(p["name"], p["state"]) for p in served] == [
        ("kv", "serving"),
        ("other", "serving"),
    ]
    assert len(served[1]["extents"]) == 2
    assert house.json("namespace list")["namespaces"][0]["name"] == "chat"
    house.process.terminate()
    assert house.process.wait(30) == 0
    house.ok("pool destroy kv --yes")
    house.ok("pool destroy other --yes")
    assert house.json("pool list")["pools"] == []
    house.start()


def test_files_that_went_away_are_a_finding(house: House, tmp_path: Path) -> None:
    house.create()
    house.process.terminate()
    house.process.wait(30)
    shutil.move(tmp_path / "kv", tmp_path / "away")
    house.start()
    assert house.json("pool list")["pools"][0]["state"] == "absent"
    found = house.json("health", 20)["findings"]
    assert [f["code"] for f in found] == ["SAC201"]
    shutil.move(tmp_path / "away", tmp_path / "kv")
    assert house.json("daemon reload")["pools"] == ["kv"]
    house.ok("health")


def test_a_second_daemon_is_refused(house: House) -> None:
    done = house.ok("daemon run", 6)
    assert "another daemon" in done.stderr


def test_stats_watch_over_a_restart(house: House) -> None:
    house.create()
    watch = subprocess.Popen(
        [*SACCTL, "-o", "json", "stats", "--watch", "--interval", "0.1"],
        env=house.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watch.stdout is not None
    first = json.loads(watch.stdout.readline())
    house.process.kill()
    house.process.wait()
    house.start()
    seen: set[int] = set()
    end = time.monotonic() + 30
    while time.monotonic() < end and len(seen) < 10:
        seen.add(json.loads(watch.stdout.readline())["time_ms"])
    watch.send_signal(signal.SIGINT)
    _, said = watch.communicate(timeout=30)
    assert watch.returncode == 0
    assert max(seen) > first["time_ms"]
    assert said.count("trying again") >= 1
    assert "Traceback" not in said
