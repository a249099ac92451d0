# SPDX-License-Identifier: Apache-2.0
"""The settings file: defaults, every key, and errors that name the key."""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest

from sacctl import paths
from sacctl.errors import DeniedError, NotFoundError, UsageError
from sacctl.settings import RELOADABLE, Settings, load, parse_listen

DOC = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sac.toml"
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def _no_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SAC_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_without_a_file_there_are_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "config_file", lambda: Path("/nonexistent/sac.toml"))
    settings = load()
    assert settings == Settings()
    assert settings.file is None
    assert settings.daemon.socket == paths.socket_file()
    assert settings.daemon.socket_mode == 0o660
    assert settings.metrics.listen == ""


def test_every_key(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    settings = load(
        write(
            tmp_path,
            f"""
            [daemon]
            run_dir = "{tmp_path}/run"
            socket_mode = "0666"
            socket_group = "{group}"
            admin_group = "{os.getgid()}"
            creators_group = ""
            max_clients = 7
            status_interval = 1
            [log]
            level = "debug"
            format = "json"
            [metrics]
            listen = "127.0.0.1:9478"
            [pools]
            dir = "{tmp_path}/pools"
            """,
        )
    )
    assert settings.daemon.run_dir == tmp_path / "run"
    assert settings.daemon.socket == tmp_path / "run" / "sacd.sock"  # follows run_dir
    assert settings.daemon.socket_mode == 0o666
    assert settings.daemon.socket_group == group
    assert settings.daemon.max_clients == 7
    assert (settings.log.level, settings.log.format) == ("debug", "json")
    assert settings.metrics.listen == "127.0.0.1:9478"
    assert settings.pools.dir == tmp_path / "pools"
    assert settings.file == tmp_path / "sac.toml"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[deamon]\n", ["unknown key deamon", "daemon"]),
        ("[daemon]\nsockt = '/x'\n", ["daemon.sockt", "daemon.socket"]),
        ("daemon = 3\n", ["daemon is 3", "[daemon]"]),
        ("[daemon]\nsocket = 'relative'\n", ["daemon.socket", "absolute"]),
        ("[daemon]\nsocket = '/" + "x" * 200 + "'\n", ["daemon.socket", "107"]),
        ("[daemon]\nsocket_mode = 660\n", ["daemon.socket_mode", '"0660"']),
        ("[daemon]\nsocket_mode = '0066'\n", ["daemon.socket_mode", "own user"]),
        ("[daemon]\nadmin_group = 'no-such-group-x'\n", ["daemon.admin_group", "no such"]),
        ("[daemon]\nmax_clients = 0\n", ["daemon.max_clients", "1 to"]),
        ("[daemon]\nmax_clients = true\n", ["daemon.max_clients", "whole"]),
        ("[daemon]\nrun_dir = '~nobody-has-this-name/x'\n", ["daemon.run_dir"]),
        ("[log]\nlevel = 'loud'\n", ["log.level", "debug, info"]),
        ("[metrics]\nlisten = '0.0.0.0:9478'\n", ["metrics.listen", "loopback"]),
        ("[metrics]\nlisten = '9478'\n", ["metrics.listen", "127.0.0.1:9478"]),
        ("[metrics\n", ["not TOML"]),
        ("[daemon]\nmax_clients = " + "9" * 5000 + "\n", ["not TOML"]),
        ("x = " + "[" * 5000 + "]" * 5000 + "\n", ["not TOML"]),
    ],
)
def test_faults_name_file_and_key(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_a_named_file_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no settings file"):
        load(tmp_path / "none.toml")
    monkeypatch.setenv("SAC_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(NotFoundError):
        load()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    path.chmod(0)
    with pytest.raises(DeniedError, match="cannot read the settings"):
        load(path)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9478", ("127.0.0.1", 9478)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("[::1]:9478", ("::1", 9478)),
        ("127.8.8.8:0", ("127.8.8.8", 0)),
    ],
)
def test_listen(text: str, address: tuple[str, int]) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize("text", ["", ":", "x:1", "127.0.0.1:70000", "127.0.0.1:", "[::]:1"])
def test_listen_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"needed|loopback"):
        parse_listen(text)


def test_changes_by_name(tmp_path: Path) -> None:
    old = load(write(tmp_path, "[log]\nlevel = 'info'\n"))
    new = load(write(tmp_path, "[log]\nlevel = 'debug'\n[daemon]\nmax_clients = 9\n"))
    assert old.changed(new) == ["daemon.max_clients", "log.level"]
    assert old.changed(old) == []


def test_docs_have_every_key() -> None:
    text = DOC.read_text()
    for name in Settings().values():
        assert f"`{name.partition('.')[2]}`" in text, name
    assert set(Settings().values()) >= RELOADABLE
