# SPDX-License-Identifier: Apache-2.0
"""Commands that call other parts of sacctl: pool changes, daemon run, bench, explanations.

The parts are replaced: what is tested is what they are given and what becomes of the answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from unit import cli_records as r
from unit.cli_fake import FakeDaemon
from unit.test_cli_json import ANSWERS, compare

from sacctl.cli import root
from sacctl.errors import CtlError, NotFoundError
from sacctl.health import CHECKS
from sacctl.pool.record import Record

RECORD = Record(
    name="kv",
    uuid="00112233445566778899aabbccddeeff",
    created="2026-11-29T20:00:00+00:00",
    meta="/dev/shm/sac-0/kv/meta",
    data=("/dev/shm/sac-0/kv/data.0",),
    sizes=(1 << 30,),
)
STEPS = ["make the folder /dev/shm/sac-0/kv", "write the record"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sac.toml").write_text(f'[pools]\ndir = "{tmp_path}/pools.d"\n')
    monkeypatch.setenv("SAC_CONFIG", str(tmp_path / "sac.toml"))
    monkeypatch.setenv("SAC_SOCKET", str(tmp_path / "s"))
    return tmp_path


@pytest.fixture
def daemon(home: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(home / "s", dict(ANSWERS))
    yield fake
    fake.close()


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(root, list(words))
    assert result.exit_code == code, (words, result.stdout, result.stderr)
    return result


class Part:
    """Stands in for create, extend or destroy; remembers how it was called."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        if isinstance(self.made, Exception):
            raise self.made
        kwargs.get("say", lambda _: None)(STEPS[0])
        return self.made


def put(monkeypatch: pytest.MonkeyPatch, name: str, made: Any) -> Part:
    part = Part(made)
    monkeypatch.setattr(f"sacctl.pool.{name}.{name}", part)
    return part


# ------------------------------------------------------------------------------ pools


def test_create(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(record=RECORD, created=True, served=True, steps=STEPS, pool=r.pool())
    part = put(monkeypatch, "create", made)
    result = run("-o", "json", "pool", "create", "kv", "--emulate", "2x1G", "--huge", "2M")
    compare("pool.create", result.stdout)
    (spec, records), options = part.calls[0]
    assert (spec.name, spec.sizes, spec.huge, spec.path) == ("kv", (1 << 30,) * 2, "2M", "")
    assert records.folder.name == "pools.d"
    assert options["daemon"].path == daemon.path
    assert options["dry_run"] is False
    assert result.stderr == ""
    assert STEPS[0] in run("-v", "pool", "create", "kv", "--emulate", "1G").stderr


def test_create_without_a_daemon_or_twice(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(record=RECORD, created=True, served=False, steps=STEPS, pool={})
    part = put(monkeypatch, "create", made)
    result = run("pool", "create", "--emulate", "1G")
    assert "offline" in result.stdout
    assert "next: sacctl daemon run" in result.stderr
    assert part.calls[0][0][0].name == "default"
    assert part.calls[0][1]["daemon"] is None
    made.created = False
    assert "there already" in run("pool", "create", "--emulate", "1G").stderr


def test_plans(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(record=RECORD, created=True, served=True, steps=STEPS, pool={})
    for name, words in (
        ("create", ["pool", "create", "kv", "--emulate", "1G"]),
        ("extend", ["pool", "extend", "kv", "--emulate", "1G"]),
        ("destroy", ["pool", "destroy", "kv"]),
    ):
        part = put(monkeypatch, name, made)
        assert run(*words, "--dry-run").stdout == "".join(f"{s}\n" for s in STEPS)
        assert all(options["dry_run"] for _, options in part.calls)


def test_extend(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(record=RECORD, served=True, steps=STEPS, pool=r.pool())
    part = put(monkeypatch, "extend", made)
    result = run("-o", "json", "pool", "extend", "kv", "--emulate", "512M")
    compare("pool.extend", result.stdout)
    assert part.calls[0][0][:2] == ("kv", (512 << 20,))


def test_destroy(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    part = put(monkeypatch, "destroy", SimpleNamespace(record=RECORD, steps=STEPS))
    result = run("-o", "json", "pool", "destroy", "kv", "--yes")
    compare("pool.destroy", result.stdout)
    assert [options.get("dry_run", False) for _, options in part.calls] == [True, False]
    part.calls.clear()
    refused = run("pool", "destroy", "kv", code=4)
    assert "pool kv of 2 GiB with 1 namespace of 1 GiB (chat)" in refused.stderr
    assert [options.get("dry_run", False) for _, options in part.calls] == [True]


def test_a_pool_of_another_user_is_no_missing_pool(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = NotFoundError("there is no pool 'kv'", object="kv")
    put(monkeypatch, "destroy", missing)
    put(monkeypatch, "extend", missing)
    for words in (["destroy", "kv", "--yes"], ["extend", "kv", "--emulate", "1G"]):
        assert "of user 0" in run("pool", *words, code=5).stderr
    missing.object = "none"
    assert "no pool" in run("pool", "destroy", "none", "--yes", code=3).stderr


# --------------------------------------------------------------------------- daemon run


def test_daemon_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def serve(settings: Any) -> int:
        seen.append(settings)
        return 0

    module = ModuleType("sacctl.daemon.run")
    module.run = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sacctl.daemon.run", module)
    run("daemon", "run", "--run-dir", str(home / "run"))
    assert seen[0].daemon.run_dir == home / "run"
    assert seen[0].daemon.socket == home / "run" / "sacd.sock"
    assert seen[0].pools.dir == home / "pools.d"
    run("--socket", str(home / "other"), "daemon", "run")
    assert seen[1].daemon.socket == home / "other"
    (home / "sac.toml").write_text("[daemon]\nrun_dirr = '/x'\n")
    assert "daemon.run_dir" in run("daemon", "run", code=2).stderr
    assert "no settings file" in run("--config", "/nowhere", "daemon", "run", code=3).stderr


def test_reload_in_part(daemon: FakeDaemon) -> None:
    daemon.answers["reload"] = {
        "applied": [],
        "restart": ["daemon.socket"],
        "pools": [],
        "errors": ["cannot read x"],
    }
    result = run("daemon", "reload", code=7)
    assert "daemon.socket" in result.stdout
    assert "cannot read x" in result.stderr


# ------------------------------------------------------------------------------- health


def test_health_without_a_daemon(home: Path) -> None:
    result = run("-o", "json", "health", code=30)
    record = json.loads(result.stdout)
    assert record["status"] == "unknown"
    assert record["findings"][0]["code"] == "SAC101"
    line = run("health", "--plugin", code=3).stdout
    assert line.startswith("SAC UNKNOWN - SAC101")


@pytest.mark.parametrize(
    ("status", "code", "plugin"), [("ok", 0, 0), ("degraded", 10, 1), ("critical", 20, 2)]
)
def test_health_codes(status: str, code: int, plugin: int, daemon: FakeDaemon) -> None:
    daemon.answers["health"] = r.health(status)
    run("health", code=code)
    assert run("health", "--plugin", code=plugin).stdout.count("\n") == 1


def test_explanations(home: Path) -> None:
    for code in CHECKS:
        text = run("health", "--explain", code.lower()).stdout
        assert text.startswith(f"{code}: ")
        assert all(len(line) < 80 for line in text.splitlines())
        values = json.loads(run("-o", "json", "health", "--explain", code).stdout)
        assert values["code"] == code
        assert values["cause"]
        assert values["action"]
    assert "no finding SAC000" in run("health", "--explain", "SAC000", code=3).stderr
    run("health", "--explain", "SAC101", "--plugin", code=2)


def test_golden_explanation(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = CHECKS["SAC101"]
    sample = type(check)("SAC101", "unknown", "a title", "It means\nthis.\n\nDo that.")
    monkeypatch.setitem(CHECKS, "SAC101", sample)
    compare("health.explain", run("-o", "json", "health", "--explain", "SAC101").stdout)


# -------------------------------------------------------------------------------- bench


def found(what: str) -> dict[str, Any]:
    return {
        "what": what,
        "pool": "kv",
        "namespace": "bench-1-00000000",
        "size_bytes": 256 << 20,
        "page_bytes": 4096,
        "pages": 65536,
        "page_size_obtained": 4096,
        "cpus": 2,
        "results": [
            {
                "name": "hits",
                "unit": "key",
                "units": 2048,
                "bytes": 0,
                "calls": 51,
                "p50_ns": 204800,
                "p99_ns": 300000,
                "limit": "two random cache lines a key",
                "limit_ns": 180000,
                "ratio": 1.125,
            }
        ],
    }


def test_bench(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    pools: list[Any] = []

    def bench(pool: Any, **options: Any) -> dict[str, Any]:
        pools.append(pool)
        calls.append(options)
        return found("lookup")

    closed: list[str] = []

    def fake_pool(state: Any, name: str, size: int) -> Any:
        return SimpleNamespace(name=name, close=lambda: closed.append(name))

    module = ModuleType("sacctl.bench")
    module.BENCHES = dict.fromkeys(("lookup", "put", "gather", "interleave"), bench)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sacctl.bench", module)
    monkeypatch.setattr("sacctl.cli.bench._pool", fake_pool)
    words = ["bench", "lookup", "--pool", "kv", "--size", "1M", "--repeats", "5"]
    compare("bench.lookup", run("-o", "json", *words).stdout)
    assert calls[0] == {"pool_name": "kv", "size": 1 << 20, "repeats": 5}
    assert closed == ["kv"]
    text = run(*words).stdout
    for word in ("2,048 keys", "205 us", "100 ns", "1.12", "two random cache lines"):
        assert word in text
    run("bench", "put", "--embedded")
    assert pools[-1].name == ""
    assert run("bench", "nothing", code=2).stderr.startswith("error: there is no command")


def test_bench_closes_the_pool_after_an_error(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []

    def bench(pool: Any, **options: Any) -> dict[str, Any]:
        raise CtlError("no room")

    module = ModuleType("sacctl.bench")
    module.BENCHES = {"put": bench}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sacctl.bench", module)
    fake = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr("sacctl.cli.bench._pool", lambda *_: fake)
    run("bench", "put", "--embedded", code=1)
    assert closed == [True]
