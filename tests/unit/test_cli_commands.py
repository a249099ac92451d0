# SPDX-License-Identifier: Apache-2.0
"""Every command against a fake daemon: what is asked, said and printed, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from unit import cli_records as r
from unit.cli_fake import FakeDaemon
from unit.test_cli_json import ANSWERS

from sacctl.cli import root
from sacctl.errors import (
    BusyError,
    CtlError,
    DeniedError,
    NotFoundError,
    PartlyError,
    RefusedError,
    UsageError,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings of its own, and no daemon."""
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


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands of the tree, groups too."""
    context = click.Context(group, info_name="sacctl")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*words, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


TREE = sorted(commands(root))


# ------------------------------------------------------------------------------ help


def test_the_tree() -> None:
    expected = """
        bench bench.gather bench.interleave bench.lookup bench.policy bench.put client
        client.evict client.list completion daemon daemon.reload daemon.run daemon.status
        demo device device.list device.monitor device.show device.topology doctor health metrics
        namespace namespace.create namespace.destroy namespace.flush namespace.list
        namespace.resize namespace.show namespace.verify pool pool.adopt pool.assemble
        pool.create pool.destroy pool.extend pool.list pool.plan pool.show stats
    """
    assert [".".join(words) for words in TREE] == expected.split()


@pytest.mark.parametrize("words", [(), *TREE], ids=" ".join)
def test_every_help_has_the_exit_codes(words: tuple[str, ...]) -> None:
    said = run(*words, "--help").stdout
    codes = said.split("Exit codes:")[1]
    expected = ("0", "10", "20", "30") if words == ("health",) else tuple("01234567")
    for code in expected:
        assert f"\n  {code} " in codes
    assert all(len(line) <= 80 for line in said.splitlines())


def test_short_helps_of_lazy_commands_are_those_of_the_commands() -> None:
    context = click.Context(root)
    for name, (_, short) in root.lazy.items():
        command = root.get_command(context, name)
        assert command is not None
        assert (command.get_short_help_str(200)) == short


def test_nothing_shows_the_help_on_stderr() -> None:
    for words in ((), ("pool",), ("namespace",)):
        result = run(*words, code=2)
        assert "Usage: sacctl" in result.stderr
        assert not result.stdout


def test_version() -> None:
    assert run("--version").stdout.strip()


# ----------------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("poool list", "did you mean 'pool'"),
        ("pool lst", "did you mean 'list'"),
        ("pool list --nope", "No such option"),
        ("namespace create x --layout nope", "neither a file nor a preset"),
        ("namespace create x --layout glm-5-fp8 --quota 1GB", "powers of 1000"),
        ("namespace create x --layout glm-5-fp8 --mode 999", "nine bits in octal"),
        ("namespace create x --layout glm-5-fp8 --page-tokens 63", ""),
        ("pool create kv", "--emulate SIZE or --devices"),
        ("pool create kv --emulate 1G --devices cxl0", "give one"),
        ("pool create kv --emulate nonsense", "no size of a pool"),
        ("pool create ../x --emulate 1G", "cannot be a pool's name"),
        ("pool create kv --devices cxl0,,cxl1", "commas"),
        ("pool extend kv", "--emulate SIZE"),
        ("stats --count 3", "--watch"),
        ("-o yaml stats", "yaml"),
        ("bench lookup --size 0.3", "whole number"),
    ],
)
def test_usage_errors(words: str, said: str, daemon: FakeDaemon) -> None:
    code = 3 if "nope" in words and "layout" in words else 2
    result = run(*words.split(), code=code)
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_layout_file(daemon: FakeDaemon, tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    plane = {"name": "kv", "layers": "0-3", "row_bytes": 64}
    file.write_text(json.dumps({"page_tokens": 16, "planes": [plane]}))
    run("namespace", "create", "x", "-p", "kv", "--layout", str(file))
    sent = daemon.asked[-1]
    assert sent["layout"]["planes"][0]["layers"] == [0, 1, 2, 3]
    assert (sent["mode"], sent["quota"], sent["policy"]) == ("0600", 0, "lru")
    file.write_text('{"page_tokens": 16,\n "planes": [}')
    assert "line 2" in run("namespace", "create", "x", "--layout", str(file), code=2).stderr
    missing = str(tmp_path / "none.json")
    assert "none.json" in run("namespace", "create", "x", "--layout", missing, code=3).stderr


# ---------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CtlError("it broke"), 1),
        (UsageError("it broke"), 2),
        (NotFoundError("it broke"), 3),
        (RefusedError("it broke"), 4),
        (DeniedError("it broke", errno=1), 5),
        (BusyError("it broke"), 6),
        (PartlyError("it broke"), 7),
    ],
)
def test_errors_of_the_daemon(error: CtlError, code: int, daemon: FakeDaemon) -> None:
    error.object, error.hint = "pool kv", "do this"
    daemon.answers["stats"] = error
    result = run("stats", code=code)
    why = ": Operation not permitted" if error.errno else ""
    assert result.stderr == f"error: pool kv: it broke{why}. next: do this\n"


def test_no_daemon_says_how_to_start_one(home: Path) -> None:
    for words in ("namespace list", "client list", "stats", "metrics", "daemon status"):
        result = run(*words.split(), code=3)
        assert result.stderr.startswith("error: no daemon listens at ")
        assert "sacctl daemon run" in result.stderr


def test_unexpected_errors_are_one_line_and_with_v_a_traceback(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["stats"] = {"stats": {}}
    quiet = run("stats", code=1)
    assert quiet.stderr.startswith("error: a fault of sacctl itself: KeyError")
    assert quiet.stderr.count("\n") == 1
    assert "Traceback" in run("-v", "stats", code=1).stderr


def test_names_of_others_cannot_write_to_the_terminal(daemon: FakeDaemon) -> None:
    nasty = r.client("\x1b[2J\n\u202egood")
    daemon.answers["client.list"] = {"clients": [nasty]}
    said = run("client", "list").stdout
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "\\u001b[2J\\u000a\\u202egood" in said
    daemon.answers["client.list"] = CtlError("no: \x1b[31m")
    assert "\x1b" not in run("client", "list", code=1).stderr


# ---------------------------------------------------------------------------- tables


@pytest.mark.parametrize(
    "words",
    ["pool list", "pool show kv", "namespace list", "namespace show chat", "client list",
     "daemon status", "daemon reload", "stats", "-v stats", "health"],
)  # fmt: skip
def test_tables_are_plain_when_piped(words: str, daemon: FakeDaemon) -> None:
    daemon.answers["pool.list"] = {"pools": [r.pool()]}
    said = run(*words.split(), code=10 if words == "health" else 0).stdout
    assert said
    assert "\x1b" not in said
    assert all(line == line.rstrip() for line in said.splitlines())


def test_options_of_the_root_are_taken_behind_the_verb(daemon: FakeDaemon, home: Path) -> None:
    moved = home / "moved"
    daemon.path.rename(moved)
    said = run("client", "list", "--socket", str(moved), "-o", "json").stdout
    assert json.loads(said)["clients"][0]["pid"] == 4711
    moved.rename(daemon.path)


def test_empty_lists(daemon: FakeDaemon) -> None:
    daemon.answers |= {
        "pool.list": {"pools": []},
        "namespace.list": {"namespaces": []},
        "client.list": {"clients": []},
    }
    for noun in ("pool", "namespace", "client"):
        result = run(noun, "list")
        assert result.stdout == ""
        assert result.stderr.startswith("no ")
        assert json.loads(run("-o", "json", noun, "list").stdout)[f"{noun}s"] == []


# ------------------------------------------------------------------------- the pools


def test_which_pool(daemon: FakeDaemon) -> None:
    daemon.answers["pool.list"] = {"pools": [r.pool()]}
    run("namespace", "show", "chat")
    assert daemon.asked[-1] == {"op": "namespace.show", "pool": "kv", "name": "chat"}
    daemon.answers["pool.list"] = {"pools": [r.pool(), r.pool("two")]}
    assert "kv, two" in run("namespace", "show", "chat", code=2).stderr
    daemon.answers["pool.list"] = {"pools": []}
    assert "pool create" in run("namespace", "show", "chat", code=3).stderr


def test_devices_that_are_not_there(home: Path) -> None:
    (home / "empty").mkdir()
    at = ("--sysroot", str(home / "empty"))
    result = run(*at, "pool", "create", "--devices", "cxl0,cxl1", code=3)
    assert "no CXL memory device" in result.stderr
    assert "no cxl0 and no cxl1" in result.stderr
    assert "--emulate 2x1G" in result.stderr


def test_pools_without_a_daemon(home: Path) -> None:
    records = home / "pools.d"
    records.mkdir()
    (records / "one.toml").write_text(
        'name = "one"\nkind = "emulated"\nstate = "ready"\nuuid = "' + "ab" * 16 + '"\n'
        'created = "2026-11-29T20:00:00+00:00"\nuid = 0\nhuge = ""\npath = ""\n'
        'meta = "/nowhere/meta"\ndata = ["/nowhere/data.0"]\nsizes = [1048576]\nfolders = []\n'
    )
    (records / "two.toml").write_text("not = toml = at all\n")
    said = json.loads(run("-o", "json", "pool", "list").stdout)["pools"]
    assert [(p["name"], p["state"]) for p in said] == [("one", "offline"), ("two", "damaged")]
    shown = json.loads(run("-o", "json", "pool", "show", "one").stdout)["pool"]
    assert shown["extents"][0]["bytes"] == 1 << 20
    assert shown["hint"] == "sacctl daemon run"
    assert "no daemon runs" in run("pool", "show", "one").stdout
    assert "there is no pool 'three'" in run("pool", "show", "three", code=3).stderr


# --------------------------------------------------------------------- asking, plans


def test_destroy_asks_and_nobody_is_there(daemon: FakeDaemon) -> None:
    result = run("namespace", "destroy", "chat", "-p", "kv", code=4)
    assert "--yes" in result.stderr
    assert "900 pages" in result.stderr
    assert "namespace.destroy" not in daemon.ops()
    assert "client.evict" not in daemon.ops()
    run("client", "evict", "4711", code=4)
    assert "client.evict" not in daemon.ops()


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("yes\n", 0), ("n\n", 4), ("", 4)])
def test_answers(
    typed: str, code: int, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Typed:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return typed

    monkeypatch.setattr("sacctl.cli.context._stdin", Typed)
    run("namespace", "destroy", "chat", "-p", "kv", code=code)
    assert ("namespace.destroy" in daemon.ops()) == (code == 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("namespace create x --layout glm-5-fp8 --quota 1G --checksum", "checksum"),
        ("namespace resize chat --quota 512M", "evict pages until 512 MiB of 1 GiB"),
        ("namespace flush chat", "evict 900 pages and 12 tails"),
        ("namespace verify chat", "header and rows of each of 900 pages"),
        ("namespace destroy chat", "engine (4711)"),
        ("client evict 0123", "revoke the views of kv/chat"),
        ("client evict 4711 --kill", "SIGKILL"),
    ],
)
def test_dry_run_changes_nothing(words: str, said: str, daemon: FakeDaemon) -> None:
    daemon.answers["pool.list"] = {"pools": [r.pool()]}
    assert said in run(*words.split(), "--dry-run").stdout
    assert set(daemon.ops()) <= {"pool.list", "namespace.show", "client.list"}
    daemon.asked.clear()
    steps = json.loads(run("-o", "json", *words.split(), "--dry-run").stdout)["steps"]
    assert any(said in step for step in steps)


def test_flush_says_what_stayed(daemon: FakeDaemon) -> None:
    stayed: dict[str, Any] = dict(ANSWERS["namespace.flush"])
    stayed |= {"pages": 3, "pinned": 3, "holders": [r.holder()]}
    daemon.answers["namespace.flush"] = stayed
    result = run("namespace", "flush", "chat", "-p", "kv", code=7)
    assert "engine" in result.stdout
    assert "3 parts of pages stayed" in result.stderr


def test_clients_by_pid_id_and_beginning(daemon: FakeDaemon) -> None:
    other = "0123ffff" + "0" * 24
    daemon.answers["client.list"] = {"clients": [r.client(), r.client("b", 12, other)]}
    for who, id_ in (("4711", r.CLIENT_ID), ("12", other), ("0123f", other)):
        run("client", "evict", who, "--yes", "--kill")
        assert daemon.asked[-1] == {"op": "client.evict", "id": id_, "kill": True}
    assert "may be" in run("client", "evict", "0123", "--yes", code=2).stderr
    assert "no client" in run("client", "evict", "ffff", "--yes", code=3).stderr
    assert "no client" in run("client", "evict", "012", "--yes", code=3).stderr


def test_there_already_is_said(daemon: FakeDaemon) -> None:
    daemon.answers["namespace.create"] = {"namespace": r.namespace(), "created": False}
    result = run("namespace", "create", "chat", "-p", "kv", "--layout", "glm-5-fp8")
    assert "there already" in result.stderr


# --------------------------------------------------------------------------- metrics


def test_metrics_text_is_the_daemons(daemon: FakeDaemon) -> None:
    assert run("metrics").stdout == ANSWERS["metrics"]["text"]
    family = json.loads(run("-o", "json", "metrics").stdout)["metrics"][0]
    assert family["samples"][0] == {
        "name": "sac_pool_bytes",
        "labels": {"pool": "kv"},
        "value": 2 << 30,
    }


# ------------------------------------------------------------------------------- watch


def test_watch_piped_is_a_snapshot_an_interval(daemon: FakeDaemon) -> None:
    looks = iter(range(1, 100))

    def stats(request: dict[str, Any]) -> dict[str, Any]:
        n = next(looks)
        return {"stats": r.stats(1000 * n, 1_790_000_000_000 + 1000 * n)}

    daemon.answers["stats"] = stats
    said = run("-o", "json", *["stats", "--watch", "--interval", "0.1", "--count", "3"]).stdout
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line["schema"] for line in lines] == ["sac.stats/1"] * 3
    text = run(*["stats", "--watch", "--interval", "0.1", "--count", "2"]).stdout
    totals, rates = text.split("pools:")[1:]
    assert "000/s" not in totals
    assert "1,000/s" in rates


def test_watch_goes_on_when_the_daemon_comes_back(daemon: FakeDaemon, home: Path) -> None:
    looks = iter(range(1, 100))

    def stats(request: dict[str, Any]) -> Any:
        n = next(looks)
        return BusyError("starting") if n == 2 else {"stats": r.stats(n, n)}

    daemon.answers["stats"] = stats
    result = run("-o", "json", *["stats", "--watch", "--interval", "0.1", "--count", "2"])
    assert len(result.stdout.splitlines()) == 2
    assert "starting; trying again" in result.stderr


def test_stats_of_one_client(daemon: FakeDaemon) -> None:
    run("stats", "--client", "4711", "--namespace", "chat", "--pool", "kv")
    assert daemon.asked[-1] == {
        "op": "stats",
        "pool": "kv",
        "namespace": "chat",
        "client": r.CLIENT_ID,
    }
